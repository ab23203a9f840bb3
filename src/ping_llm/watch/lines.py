"""Conversion of JSON lines to measurements: Atlas ping results, or rows of the measurements table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ping_llm.answer.context import as_microseconds
from ping_llm.errors import UsageError
from ping_llm.ingest.atlas import read_block
from ping_llm.ingest.columns import is_reject
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.records import Block
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.rules import ACCEPTED, REASONS, candidates_of, judge
from ping_llm.measurements.schema import Reject
from ping_llm.watch.inputs import RAW_BYTES, Chunk

#: Reason of a result of another kind, which is neither a measurement nor invalid.
NOT_PING = "not_ping"

_KEYS = ("src_addr", "dst_addr", "event_time", "rtt")


@dataclass(frozen=True)
class Rejected:
    """A line that is not a measurement."""

    file: str
    line: int
    reason: str
    raw: bytes

    def as_dict(self) -> dict[str, Any]:
        raw = self.raw[:RAW_BYTES].decode("utf-8", "backslashreplace")
        return {"file": self.file, "line": self.line, "reason": self.reason, "raw": raw}


def measurements_of(chunk: Chunk) -> tuple[Columns, list[Rejected]]:
    """Return the measurements of a chunk, in its order, and the other lines that are not blank."""
    rejected = [Rejected(chunk.name, line, Reject.TOO_LARGE, raw) for line, raw in chunk.too_long]
    texts = chunk.data.split(b"\n")
    numbers = [number for number, text in enumerate(texts) if text.strip()]
    if not numbers:
        return Columns.empty(), rejected
    lengths = np.array([len(text) for text in texts]) + 1
    ends = np.cumsum(lengths) - 1
    block = Block(chunk.data, (ends - lengths + 1)[numbers], ends[numbers], np.array(numbers))
    read = read_block(block, IngestOptions()).columns
    verdict = judge(read)
    columns = Columns(read.time_us, read.src, read.dst, read.rtt)
    odd = np.flatnonzero(verdict != ACCEPTED)
    if not len(odd):
        return columns, rejected
    rows = _rows_of(texts, numbers, odd)
    taken = np.flatnonzero(verdict == ACCEPTED)
    parts, places = [columns.take(taken)], [taken]
    for place in odd.tolist():
        if place in rows:
            row, reason = rows[place]
            if row is not None:
                parts.append(row)
                places.append(np.array([place]))
                continue
        else:
            bad = is_reject(verdict[place : place + 1])[0]
            reason = REASONS[verdict[place] - 1] if bad else NOT_PING
        line = numbers[place]
        rejected.append(Rejected(chunk.name, chunk.line + line, str(reason), texts[line]))
    order = np.argsort(np.concatenate(places), kind="stable")
    return Columns.concatenate(parts).take(order), rejected


def _rows_of(
    texts: Sequence[bytes], numbers: Sequence[int], odd: np.ndarray
) -> dict[int, tuple[Columns | None, str]]:
    """Return the measurement or the reject reason of each line that is a table row, by its place."""
    out: dict[int, tuple[Columns | None, str]] = {}
    for place in odd.tolist():
        text = texts[numbers[place]]
        if b'"event_time"' not in text:
            continue
        try:
            row = orjson.loads(text)
        except ValueError:
            continue
        if isinstance(row, dict) and "rtt" in row:
            out[place] = _row(row)
    return out


def _row(row: dict[str, Any]) -> tuple[Columns | None, str]:
    src, dst, at, rtt = (row.get(key) for key in _KEYS)
    try:
        time = as_microseconds(at) if isinstance(at, str | int | float) and not isinstance(at, bool) else None
    except (UsageError, ValueError, OverflowError):
        return None, str(Reject.BAD_TIME)
    number = float(rtt) if isinstance(rtt, int | float) and not isinstance(rtt, bool) else None
    if rtt is not None and number is None:
        return None, str(Reject.BAD_RTT)
    table = pa.table(
        {
            "src_addr": pa.array([src if isinstance(src, str) else None], pa.string()),
            "dst_addr": pa.array([dst if isinstance(dst, str) else None], pa.string()),
            "event_time": pa.array([time], pa.int64()),
            "rtt": pa.array([number], pa.float64()),
        }
    )
    candidates = candidates_of(table)
    verdict = int(judge(candidates)[0])
    if verdict != ACCEPTED:
        return None, str(REASONS[verdict - 1])
    return Columns(candidates.time_us, candidates.src, candidates.dst, candidates.rtt), ""
