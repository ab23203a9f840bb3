"""Statistics of a folder of rows, from its index alone, also as an HTML page; and the content of one row."""

from bisect import bisect_left, insort
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.measurements import addresses
from ping_llm.measurements.schema import KINDS, NO_REPLY
from ping_llm.measurements.throughput import mbps_of
from ping_llm.rows import MAX_CONTEXTS_PER_ROW, MEASUREMENTS_PER_CONTEXT
from ping_llm.rows.store import RowStore

LENGTHS = (512, 1024, 2048)
_LARGEST = 10
_PACKING_SAMPLE = 50_000
_PACKED_TOGETHER = 256  # sequences

# Tokens per measurement with the default fields and the compact RTT encoding: MEASUREMENT, the destination
# (role and bytes), the RTT (3), the time (2 to 5: 3.5). The source is stated once, the first time in full
# (9).
_IPV4_TOKENS = 1 + 5 + 3 + 3.5
_IPV6_TOKENS = 1 + 17 + 3 + 3.5


@dataclass(frozen=True)
class Padding:
    """Share of padding in sequences of `length` tokens: with one context per sequence, or packed."""

    length: int
    alone: float
    packed: float


@dataclass(frozen=True)
class Inspection:
    """The statistics of a folder."""

    path: str
    fingerprint: str
    rows: int
    measurements: int
    sources: int
    ipv4_rows: int
    shards: int
    bytes: int
    bytes_per_measurement: float
    measurements_per_row: dict[str, float]
    histogram: list[tuple[str, int, int]]  # label, rows, measurements
    first_time: str | None
    last_time: str | None
    median_span_hours: float
    largest_sources: list[tuple[str, int, int]]  # address, rows, measurements
    padding: list[Padding]
    rejected: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect(store: RowStore) -> Inspection:
    """Compute the statistics of the whole folder, without reading shards."""
    counts = store.counts.astype(np.int64)
    sources, source_rows, source_measurements = _by_source(store)
    largest = np.argsort(-source_measurements, kind="stable")[:_LARGEST]
    texts = addresses.unpack(np.ascontiguousarray(sources[largest])).to_pylist()
    span = (store.index.last_time - store.index.first_time) / 3.6e9
    size = sum(shard["bytes"] for shard in store.manifest["shards"])
    some = len(counts) > 0
    return Inspection(
        path=str(store.path),
        fingerprint=store.fingerprint,
        rows=len(store),
        measurements=int(counts.sum()),
        sources=len(sources),
        ipv4_rows=int(store.ipv4.sum()),
        shards=len(store.manifest["shards"]),
        bytes=size,
        bytes_per_measurement=size / max(1, int(counts.sum())),
        measurements_per_row={
            name: float(np.percentile(counts, percent)) if some else 0.0
            for name, percent in (("min", 0), ("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
        }
        | {"mean": float(counts.mean()) if some else 0.0},
        histogram=_histogram(counts),
        first_time=_time(int(store.index.first_time.min())) if some else None,
        last_time=_time(int(store.index.last_time.max())) if some else None,
        median_span_hours=float(np.median(span)) if some else 0.0,
        largest_sources=[
            (text, int(source_rows[i]), int(source_measurements[i]))
            for text, i in zip(texts, largest, strict=True)
        ],
        padding=[_padding(counts, store.ipv4, length) for length in LENGTHS],
        rejected=store.manifest["counts"]["rejected"],
    )


def _by_source(store: RowStore) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each source, with its numbers of rows and of measurements."""
    packed = np.ascontiguousarray(store.index.src).view(np.dtype((np.void, 16))).ravel()
    unique, inverse, rows = np.unique(packed, return_inverse=True, return_counts=True)
    measurements = np.bincount(inverse, weights=store.counts, minlength=len(unique)).astype(np.int64)
    return unique.view(np.uint8).reshape(-1, 16), rows, measurements


def _histogram(counts: np.ndarray) -> list[tuple[str, int, int]]:
    """Histogram of rows by their number of measurements, in powers of two."""
    if not len(counts):
        return []
    exponents = np.frexp(counts)[1] - 1
    lines = []
    for exponent in range(int(exponents.max()) + 1):
        chosen = exponents == exponent
        low, high = 2**exponent, 2 ** (exponent + 1) - 1
        label = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        lines.append((label, int(chosen.sum()), int(counts[chosen].sum())))
    return lines


def _padding(counts: np.ndarray, ipv4: np.ndarray, length: int) -> Padding:
    """Expected padding if a row gives min(⌈n/30⌉, 16) contexts, each cut to the length of a sequence."""
    if not len(counts):
        return Padding(length, 0.0, 0.0)
    per = np.where(ipv4, _IPV4_TOKENS, _IPV6_TOKENS)
    tokens = np.minimum(np.where(ipv4, 5, 17) + 5.5 + per * counts, length)
    contexts = np.minimum(-(-counts // MEASUREMENTS_PER_CONTEXT), MAX_CONTEXTS_PER_ROW)
    alone = 1 - (tokens * contexts).sum() / (contexts.sum() * length)
    rng = np.random.default_rng(0)
    sample = rng.choice(tokens, min(_PACKING_SAMPLE, int(contexts.sum())), p=contexts / contexts.sum())
    return Padding(length, float(alone), _packed_padding(sample.tolist(), length))


def _packed_padding(lengths: list[float], length: int) -> float:
    """Padding with the packing of the loader, but without the fillers that it adds to the remaining space.

    Some hundred sequences are packed at a time, the largest contexts first, each where it leaves the least
    space.
    """
    sequences, first = 0, 0
    while first < len(lengths):
        last, tokens = first, 0.0
        while last < len(lengths) and tokens + lengths[last] <= _PACKED_TOGETHER * length:
            tokens += lengths[last]
            last += 1
        free: list[float] = []
        for size in sorted(lengths[first:last], reverse=True):
            place = bisect_left(free, size)
            space = free.pop(place) if place < len(free) else float(length)
            insort(free, space - size)
        sequences += len(free)
        first = last
    return 1 - sum(lengths) / (sequences * length)


def row_table(store: RowStore, row: int, limit: int) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The facts about one row, and its first measurements with the columns of ROW_HEADER."""
    block = store.read([row])
    shown = min(limit, block.measurements)
    destinations = addresses.unpack(block.dst[:shown]).to_pylist()
    lines = [
        (
            _time(int(block.time[i])),
            destinations[i],
            "no reply" if block.rtt[i] == NO_REPLY else f"{block.rtt[i]:.3f} ms",
            *(
                None if column[i] == -1 else int(column[i])
                for column in (block.msm_id, block.probe_id, block.size, block.packet_error_count)
            ),
            mbps_of(int(block.throughput[i]) - 1) if block.throughput[i] else None,
        )
        for i in range(shown)
    ]
    facts = {
        "row": row,
        "source": addresses.unpack_one(block.src[0].tobytes()),
        "measurements": block.measurements,
        "first": _time(int(block.time[0])),
        "last": _time(int(block.time[-1])),
        "failed": int((block.rtt == NO_REPLY).sum()),
    }
    if block.kind.any():
        facts["kinds"] = {name: int((block.kind == code).sum()) for code, name in enumerate(KINDS)}
    if block.throughput.any():
        facts["throughputs"] = int((block.throughput > 0).sum())
    return facts, lines


ROW_HEADER = ("time", "destination", "rtt", "msm_id", "probe_id", "size", "errors", "Mbit/s")


def _time(microseconds: int) -> str:
    moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = microseconds % 1_000_000
    return f"{moment}.{fraction:06d}".rstrip("0") if fraction else moment


def write_html(found: Inspection, path: Path) -> None:
    """Write the statistics as one self-contained HTML page."""
    from ping_llm.files import write_text

    largest = max((rows for _, rows, _ in found.histogram), default=1) or 1
    bars = "".join(
        f"<tr><td>{label}</td><td>{rows:,}</td><td>{measurements:,}</td>"
        f'<td><div style="width:{400 * rows / largest:.0f}px"></div></td></tr>'
        for label, rows, measurements in found.histogram
    )
    facts = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in summary_lines(found)
    )
    sources = "".join(
        f"<tr><td>{escape(text)}</td><td>{rows:,}</td><td>{measurements:,}</td></tr>"
        for text, rows, measurements in found.largest_sources
    )
    padding = "".join(
        f"<tr><td>{one.length:,}</td><td>{one.alone:.1%}</td><td>{one.packed:.1%}</td></tr>"
        for one in found.padding
    )
    write_text(
        path,
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Probe rows: {escape(found.path)}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; }} td, th {{ padding: 0 1em 0 0; text-align: left; }}
.figures td:nth-child(n+2), .figures th:nth-child(n+2) {{ text-align: right; }}
div {{ height: .8em; background: #4477aa; }}
</style>
<h1>Probe rows</h1>
<table>{facts}</table>
<h2>Measurements per row</h2>
<table class="figures"><tr><th>measurements</th><th>rows</th><th>in all</th><th></th></tr>{bars}</table>
<h2>Largest sources</h2>
<table class="figures"><tr><th>source</th><th>rows</th><th>measurements</th></tr>{sources}</table>
<h2>Padding to expect</h2>
<table class="figures"><tr><th>tokens</th><th>not packed</th><th>packed</th></tr>{padding}</table>
</html>
""",
    )


def summary_lines(found: Inspection) -> list[tuple[str, str]]:
    """The statistics as (name, text)."""
    per_row = found.measurements_per_row
    ipv4 = found.ipv4_rows / max(1, found.rows)
    shards = "1 shard" if found.shards == 1 else f"{found.shards:,} shards"
    lines = [
        ("folder", found.path),
        ("fingerprint", found.fingerprint[:16]),
        ("rows", f"{found.rows:,} of {found.sources:,} sources, {ipv4:.0%} IPv4"),
        ("measurements", f"{found.measurements:,}"),
        (
            "per row",
            f"mean {per_row['mean']:.1f}, p50 {per_row['p50']:,.0f}, p90 {per_row['p90']:,.0f}, "
            f"p99 {per_row['p99']:,.0f}, max {per_row['max']:,.0f}",
        ),
        (
            "bytes",
            f"{found.bytes:,} in {shards}, {found.bytes_per_measurement:.1f} per measurement",
        ),
        ("time", f"{found.first_time} to {found.last_time}"),
        ("span of a row", f"median {found.median_span_hours:.1f} h"),
    ]
    return lines + [(f"rejected: {reason}", f"{count:,}") for reason, count in found.rejected.items()]
