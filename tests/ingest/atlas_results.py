"""Hand-written Atlas results, from a source in a public range to destinations in TEST-NET."""

import json
from collections.abc import Iterable
from typing import Any

PUBLIC_SOURCE = "100.0.0.7"  # not a documentation address: those are not public, and that matters here
DESTINATION = "192.0.2.1"


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


def write_lines(results: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(result).encode() + b"\n" for result in results)
