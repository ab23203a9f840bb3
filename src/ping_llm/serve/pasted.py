"""Measurements in a pasted text: a table, RIPE Atlas results, or the output of `ping` or a similar tool.

Whatever cannot be read is counted and named, never guessed.
"""

import csv
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ping_llm.answer.conditions import LARGEST, WHOLE
from ping_llm.answer.context import as_microseconds
from ping_llm.errors import UsageError
from ping_llm.ingest import atlas, tool_text
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.tables import match_columns
from ping_llm.measurements.addresses import is_ipv4_one, pack_one, unpack_one
from ping_llm.measurements.rules import ACCEPTED, REASONS, judge
from ping_llm.measurements.schema import MAX_RTT_MS, is_rtt
from ping_llm.measurements.times import moment_text
from ping_llm.serve.options import LIMITS
from ping_llm.serve.refusals import Refused

#: Largest number of reasons listed for rows left out; further rows are only counted.
_REASONS = 5


@dataclass
class Pasted:
    """The measurements of a text, in the form of a context, and the reasons for rows left out."""

    format: str
    measurements: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    reasons: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, count: int = 1) -> None:
        self.left_out += count
        if len(self.reasons) < _REASONS:
            self.reasons.append(reason)

    def keep_newest(self, most: int) -> None:
        """Keep the newest measurements, in the order of the text; count and name the others.

        As in a context, a measurement without a time is older than one with a time, and of equal times the
        later row is newer.
        """
        older = len(self.measurements) - most
        if older <= 0:
            return
        stated = [one["event_time"] for one in self.measurements]
        times = [-1 if text is None else as_microseconds(text) for text in stated]
        newest = sorted(range(len(times)), key=times.__getitem__)[older:]
        self.measurements = [self.measurements[place] for place in sorted(newest)]
        self.left_out += older
        # First, because the rows before it may have used up the room for reasons.
        reason = f"{older:,} older measurements, because only the newest {most:,} are used"
        self.reasons = [reason, *self.reasons[: _REASONS - 1]]

    def note(self) -> str | None:
        """Return a sentence about the rows left out; None if all were read."""
        if not self.left_out:
            return None
        return f"rows of the measurements left out: {self.left_out:,} ({'; '.join(self.reasons)})"

    def as_dict(self) -> dict[str, Any]:
        sources = Counter(one["src_addr"] for one in self.measurements if one["src_addr"])
        return {
            "format": self.format,
            "measurements": self.measurements,
            "sources": dict(sources.most_common(100)),
            "left_out": self.left_out,
            "reasons": self.reasons,
        }


def read(text: str) -> Pasted:
    """Read a text in any of the three formats; of more measurements than a context takes, the newest.

    Raises:
      Refused: the text has none of them, or no measurement.
    """
    text = text.lstrip("\ufeff").strip()
    if not text:
        raise Refused(422, "the text is empty: paste a table, Atlas results or the output of ping", "text")
    if text[0] in "[{":
        pasted = _atlas(text)
    elif tool_text.is_tool_text(text[:4096].encode()):
        pasted = _ping(text)
    else:
        pasted = _table(text)
    if not pasted.measurements:
        why = pasted.reasons[0] if pasted.reasons else "it has no rows"
        raise Refused(422, f"no measurement was found ({pasted.format}): {why}", "text")
    pasted.keep_newest(LIMITS.context)
    return pasted


def _one(
    dst: str, rtt: float, src: str | None, time: int | None, further: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a measurement, with those further columns that hold valid numbers."""
    numbers = {
        name: value for name in LARGEST if (value := _number(name, str(further.get(name, "")))) is not None
    }
    return {
        "src_addr": src,
        "dst_addr": dst,
        "event_time": None if time is None else moment_text(time),
        "rtt": rtt,
    } | numbers


def _number(name: str, text: str) -> float | None:
    """Return the value of a further column; None if the text is not a valid value."""
    if not text.isascii() or "_" in text:
        return None
    if name in WHOLE:
        return int(text) if text.isdigit() and int(text) <= LARGEST[name] else None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= LARGEST[name] else None


def _atlas(text: str) -> Pasted:
    pasted = Pasted("atlas")
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        values = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                values.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                if line.strip():
                    pasted.leave_out(f"line {number} is not JSON: {error}")
    records = values if isinstance(values, list) else [values]
    if records and isinstance(records[0], dict) and "dst_addr" in records[0] and "rtt" in records[0]:
        return _objects(records, pasted)
    columns = atlas.read_carefully([orjson.dumps(one) for one in records], IngestOptions()).columns
    verdict = judge(columns)
    for row, code in enumerate(verdict.tolist()):
        if code == ACCEPTED:
            ends = (unpack_one(side[row].tobytes()) for side in (columns.dst, columns.src))
            dst, src = ends
            further = {name: getattr(columns, name)[row] for name in WHOLE}  # Atlas has no throughputs
            time = int(columns.time_us[row])
            pasted.measurements.append(_one(dst, float(columns.rtt[row]), src, time, further))
        else:
            known = code <= len(REASONS)
            pasted.leave_out(f"result {row + 1}: {REASONS[code - 1].value if known else 'not a ping'}")
    return pasted


def _objects(records: list[Any], pasted: Pasted) -> Pasted:
    """Read JSON objects with the column names of the measurements table."""
    pasted.format = "json"
    names = ("dst_addr", "rtt", "src_addr", "event_time")
    for number, record in enumerate(records, 1):
        given = record if isinstance(record, dict) else {}
        dst, rtt, src, time = (_text(given.get(name)) for name in names)
        _add(pasted, f"object {number}", dst, rtt, src, time, given)
    return pasted


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _table(text: str) -> Pasted:
    pasted = Pasted("csv")
    lines = text.splitlines()
    delimiter = max(",\t;|", key=lines[0].count)
    if not lines[0].count(delimiter):
        lines, delimiter = [" ".join(line.split()) for line in lines], " "
    try:
        rows = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise Refused(422, f"the table cannot be read: {error}", "text") from None
    places = match_columns(rows[0])
    first = 1
    if not {"dst_addr", "rtt"} <= set(places):
        if places or not tool_text.is_address(rows[0][0]):
            raise Refused(
                422,
                "the text is neither Atlas JSON nor the output of ping, and as a table it needs the "
                f"columns dst_addr and rtt: its first line is {lines[0][:100]!r}",
                "text",
            )
        # Without a header: destination, rtt and optionally a time.
        places, first = {"dst_addr": 0, "rtt": 1, "event_time": 2}, 0
    for number, row in enumerate(rows[first:], first + 1):
        if row:
            cells = {name: row[place].strip() for name, place in places.items() if place < len(row)}
            _add(
                pasted, f"line {number}", cells.get("dst_addr", ""), cells.get("rtt", ""),
                cells.get("src_addr", ""), cells.get("event_time", ""), cells,
            )  # fmt: skip
    return pasted


def _add(
    pasted: Pasted, where: str, dst: str, rtt: str, src: str, time: str, further: Mapping[str, Any] = {}
) -> None:
    try:
        ends = [pack_one(address) for address in (dst, src) if address]
        if len({is_ipv4_one(end) for end in ends}) > 1:
            raise ValueError(f"{src} and {dst} are not of the same IP version")
        if not dst:
            raise ValueError("dst_addr is missing")
        try:
            value = float(rtt)
        except ValueError:
            value = math.nan
        if not is_rtt(value):
            raise ValueError(f"rtt must be -1 (no reply) or 0 to {MAX_RTT_MS:,.0f} ms, not {rtt[:32]!r}")
        moment = as_microseconds(time) if time else None
    except (ValueError, OverflowError, UsageError) as error:
        pasted.leave_out(f"{where}: {str(error)[:200]}")
    else:
        pasted.measurements.append(_one(dst, value, src or None, moment, further))


def _ping(text: str) -> Pasted:
    """Read the output of ping: each reply is a measurement, and so is each packet without a reply."""
    pasted = Pasted("ping")
    rows, strange = tool_text.read_lines(text, most_lost=LIMITS.context)
    for row in rows:
        if not tool_text.is_address(row.dst):
            pasted.leave_out(f"line {row.line} names no address: {row.dst[:80]!r}")
            continue
        time = "" if row.time is None else str(row.time)
        _add(pasted, f"line {row.line}", row.dst, str(row.rtt), row.src or "", time)
    for line in strange:
        pasted.leave_out(f"line {line} is not understood")
    return pasted
