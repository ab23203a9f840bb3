"""Hand-written Atlas results, from a source in a public range to destinations in TEST-NET."""

import json
from collections.abc import Iterable
from typing import Any

PUBLIC_SOURCE = "100.0.0.7"  # not a documentation address: those are not public, and that matters here
DESTINATION = "192.0.2.1"
# Of traceroutes, where private answers are left out.
ROUTER, OTHER_ROUTER, TARGET = "100.1.0.1", "100.1.0.2", "100.9.0.9"


def ping(**changes: Any) -> dict[str, Any]:
    """A ping result as firmware 5080 writes it. `sent` and `rcvd` follow `result`; None removes a key."""
    result = {
        "fw": 5080, "mver": "2.6.2", "lts": 14, "dst_name": DESTINATION, "af": 4, "dst_addr": DESTINATION,
        "src_addr": "192.168.1.2", "proto": "ICMP", "ttl": 57, "size": 64,
        "result": [{"rtt": 10.0}, {"rtt": 11.0}, {"rtt": 15.0}], "dup": 0,
        "msm_id": 1001, "prb_id": 7, "timestamp": 1_600_000_000, "msm_name": "Ping",
        "from": PUBLIC_SOURCE, "type": "ping", "step": 240, "stored_timestamp": 1_600_000_060,
    }  # fmt: skip
    result.update(changes)
    packets = result["result"] if isinstance(result["result"], list) else []
    packets = [
        packet
        for packet in packets
        if isinstance(packet, dict) and "dup" not in packet and "late" not in packet
    ]
    rtts = [packet["rtt"] for packet in packets if isinstance(packet.get("rtt"), int | float)]
    result.setdefault("rcvd", len(rtts))
    result.setdefault("sent", len(rtts) + sum("x" in packet for packet in packets))
    result.setdefault("min", min(rtts, default=-1))
    result.setdefault("max", max(rtts, default=-1))
    result.setdefault("avg", sum(rtts) / len(rtts) if rtts else -1)
    return {key: value for key, value in result.items() if value is not None}


def traceroute(*hops: Any, **changes: Any) -> dict[str, Any]:
    """A traceroute result as firmware 5080 writes it. A list of replies becomes a hop; None removes a key."""
    result = {
        "fw": 5080, "mver": "2.6.2", "lts": 14, "endtime": 1_600_000_009, "dst_name": TARGET, "af": 4,
        "dst_addr": TARGET, "src_addr": "192.168.1.2", "proto": "ICMP", "size": 48, "paris_id": 5,
        "result": [
            {"hop": number, "result": hop} if isinstance(hop, list) else hop
            for number, hop in enumerate(hops, 1)
        ],
        "msm_id": 5001, "prb_id": 7, "timestamp": 1_600_000_000, "msm_name": "Traceroute",
        "from": PUBLIC_SOURCE, "type": "traceroute",
    }  # fmt: skip
    return {key: value for key, value in (result | changes).items() if value is not None}


def reply(rtt: Any, origin: Any = ROUTER, **marks: Any) -> dict[str, Any]:
    """A reply to one packet of a hop; None removes a key."""
    values = {"from": origin, "ttl": 250, "size": 28, "rtt": rtt, **marks}
    return {key: value for key, value in values.items() if value is not None}


def write_lines(results: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(result).encode() + b"\n" for result in results)
