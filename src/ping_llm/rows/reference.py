"""The reference engine: one measurement at a time, in plain Python, with Arrow's own writer.

The other engines are tested against it, and it documents precisely what a build does. It processes about 10 k
measurements per second, all in memory: for debugging and tests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordWriter

from ping_llm.files import whole_file
from ping_llm.hashing import MASK, mix_int
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import RULES
from ping_llm.measurements.schema import (
    END_TIME_US,
    KINDS,
    MAX_PACKET_ERRORS,
    MAX_RTT_MS,
    MAX_SIZE,
    MAX_THROUGHPUT_MBPS,
    NO_REPLY,
    PING,
    THROUGHPUT,
    Reject,
)
from ping_llm.measurements.throughput import plain_code
from ping_llm.rows.block import KIND_BITS, THROUGHPUT_BITS
from ping_llm.rows.build import mark_encoded, write_totals
from ping_llm.rows.codec import ROW_SCHEMA
from ping_llm.rows.inputs import Range
from ping_llm.rows.manifest import FLAG_IPV4, FLAG_OTHER_KINDS, FLAG_THROUGHPUT, RowIndex, file_sha256
from ping_llm.rows.plan import Plan, RunOptions
from ping_llm.rows.shard import WRITER_OPTIONS, ShardInfo


class Ping(NamedTuple):
    """A valid measurement, with its fields in the sort order of rows."""

    src: bytes
    time: int
    dst: bytes
    rtt: float
    msm_id: int
    probe_id: int
    size: int  # combined with the kind and the throughput, as in records
    packet_error_count: int


def encode_all(plan: Plan, run: RunOptions) -> None:
    """Build every shard of a plan."""
    by_key: dict[tuple[int, int, bytes], list[Ping]] = defaultdict(list)
    rejected: Counter[Reject] = Counter()
    for ranges in plan.slices:
        for piece in ranges:
            for record in _records(piece):
                checked = check(record)
                if isinstance(checked, Reject):
                    rejected[checked] += 1
                else:
                    by_key[sort_key(checked, plan.options.by_probe)].append(checked)

    by_part: dict[int, list[list[Ping]]] = defaultdict(list)
    limit = plan.options.max_measurements
    for key in sorted(by_key):
        pings = sorted(by_key[key])
        part = part_of(key[0], plan)
        by_part[part] += [pings[start : start + limit] for start in range(0, len(pings), limit)]
    for part in range(plan.parts):
        _write_shard(plan, part, by_part[part])
    everything = [ping for pings in by_key.values() for ping in pings]
    write_totals(plan, np.array([rejected[rule] for rule in RULES]), len(everything), _content(everything))


def _records(piece: Range) -> Iterator[dict[str, Any]]:
    table = pq.ParquetFile(piece.file).read().slice(piece.begin, piece.end - piece.begin)
    times = table.column("event_time")
    per_microsecond = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": None}[times.type.unit]
    for record, time in zip(table.to_pylist(), times.cast(pa.int64()).to_pylist(), strict=True):
        if time is not None:
            record["event_time"] = time // 1000 if per_microsecond is None else time * per_microsecond
        yield record


def check(record: dict[str, Any]) -> Ping | Reject:
    """Check the rules in their order; return the measurement, or the reason for rejection."""
    time, rtt = record["event_time"], record["rtt"]
    if time is None:
        return Reject.MISSING_TIME
    if not 0 <= time < END_TIME_US:
        return Reject.BAD_TIME
    if not record["src_addr"]:
        return Reject.MISSING_SOURCE
    src = _packed(record["src_addr"])
    if src is None:
        return Reject.BAD_SOURCE
    if not record["dst_addr"]:
        return Reject.MISSING_DESTINATION
    dst = _packed(record["dst_addr"])
    if dst is None:
        return Reject.BAD_DESTINATION
    version = 4 if src.startswith(addresses.MAPPED_PREFIX) else 6
    if version != (4 if dst.startswith(addresses.MAPPED_PREFIX) else 6):
        return Reject.MIXED_VERSIONS
    if _number(record, "ip_version") not in (-1, version):
        return Reject.WRONG_VERSION
    if rtt is None:
        return Reject.MISSING_RTT
    if not (rtt == NO_REPLY or 0 <= rtt <= MAX_RTT_MS):
        return Reject.BAD_RTT
    numbers = [_number(record, name) for name in ("msm_id", "probe_id", "size", "packet_error_count")]
    largest = (2**63 - 1, 2**63 - 1, MAX_SIZE, MAX_PACKET_ERRORS)
    if not all(-1 <= number <= most for number, most in zip(numbers, largest, strict=True)):
        return Reject.BAD_FIELD
    kind = record.get("kind")
    kind = KINDS[PING] if kind is None else kind
    if kind not in KINDS:
        return Reject.BAD_FIELD
    throughput = _number(record, THROUGHPUT)
    throughput = -1 if throughput != throughput else throughput  # not a number
    if not (throughput == -1 or 0 <= throughput <= MAX_THROUGHPUT_MBPS):
        return Reject.BAD_FIELD
    numbers[2] += KINDS.index(kind) * 2**KIND_BITS
    if throughput != -1:
        numbers[2] += (1 + plain_code(throughput)) * 2**THROUGHPUT_BITS
    return Ping(src, time, dst, float(rtt) + 0.0, *numbers)


def _packed(text: str) -> bytes | None:
    try:
        return addresses.pack_one(text)
    except ValueError:
        return None


def _number(record: dict[str, Any], name: str) -> Any:
    value = record.get(name)
    return -1 if value is None else value


def sort_key(ping: Ping, by_probe: bool) -> tuple[int, int, bytes]:
    """The key (hash, probe, source) of a row, which also determines its position among the rows."""
    high, low = int.from_bytes(ping.src[:8], "big"), int.from_bytes(ping.src[8:], "big")
    by_source = mix_int((mix_int(high) + low) & MASK)
    if not by_probe:
        return by_source, 0, ping.src
    if ping.probe_id < 0:
        return by_source, 0, ping.src
    return mix_int(ping.probe_id + 1), ping.probe_id + 1, ping.src


def part_of(hashed: int, plan: Plan) -> int:
    upper = hashed >> 32
    split = next(split for split in plan.splits if split.begin <= upper < split.end)
    return split.first_part + (upper - split.begin) * split.parts // (split.end - split.begin)


def encode(pings: list[Ping]) -> bytes:
    """The record of one row, written by Arrow."""
    row = {
        "src": pings[0].src,
        "measurements": [
            {
                "event_time": ping.time,
                "dst": ping.dst,
                "rtt": ping.rtt,
                "msm_id": ping.msm_id,
                "probe_id": ping.probe_id,
                "size": ping.size,
                "packet_error_count": ping.packet_error_count,
            }
            for ping in pings
        ],
    }
    return pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA).serialize().to_pybytes()


def _content(pings: list[Ping]) -> int:
    """The content sum of the compiled engines; see sortable.content."""
    total = 0
    for ping in pings:
        bits = int(np.float64(ping.rtt).view(np.uint64))
        words = (
            int.from_bytes(ping.src[:8], "big"),
            int.from_bytes(ping.src[8:], "big"),
            ping.time,
            int.from_bytes(ping.dst[:8], "big"),
            int.from_bytes(ping.dst[8:], "big"),
            bits ^ MASK if bits >> 63 else bits | 1 << 63,
            ping.msm_id + 1,
            ping.probe_id + 1,
            (ping.size + 1) << 32 | (ping.packet_error_count + 1),
        )
        total += mix_int(sum(word * (mix_int(place) | 1) for place, word in enumerate(words)) & MASK)
    return total & MASK


def _write_shard(plan: Plan, part: int, rows: list[list[Ping]]) -> None:
    path = plan.shard_path(part)
    with whole_file(path) as aside:
        writer = ArrayRecordWriter(str(aside), WRITER_OPTIONS)
        for row in rows:
            writer.write(encode(row))
        writer.close()
    pings = [ping for row in rows for ping in row]
    info = ShardInfo(
        path.name,
        len(rows),
        len(pings),
        path.stat().st_size,
        file_sha256(path),
        f"{_content(pings):016x}",
    )
    sources = np.frombuffer(b"".join(row[0].src for row in rows), np.uint8).reshape(-1, 16)
    index = RowIndex(
        np.array([row[0].time for row in rows], np.int64),
        np.array([row[-1].time for row in rows], np.int64),
        sources,
        np.array([len(row) for row in rows], np.int32),
        np.where(addresses.is_ipv4(sources), FLAG_IPV4, 0).astype(np.uint8)
        + np.array([any(_kind(ping) for ping in row) for row in rows], np.uint8) * FLAG_OTHER_KINDS
        + np.array([any((ping.size + 1) >> THROUGHPUT_BITS for ping in row) for row in rows], np.uint8)
        * FLAG_THROUGHPUT,
    )
    mark_encoded(plan, part, info, index)


def _kind(ping: Ping) -> int:
    return (ping.size + 1) % 2**THROUGHPUT_BITS >> KIND_BITS
