"""Measurements with their tokens, as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ping_llm.measurements.addresses import parse_prefix
from ping_llm.measurements.parquet import first_measurements
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.measurements.schema import NO_REPLY, THROUGHPUT
from ping_llm.measurements.times import time_text
from ping_llm.tokens import reference, vocab
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.statement import Statement, whole
from ping_llm.tokens.vocab import BYTE0, DEFAULT_FIELDS, OPTIONAL, Field, starts_field, token_name


@dataclass(frozen=True)
class ShownField:
    """The tokens of one field and their meaning."""

    ids: tuple[int, ...]
    meaning: str

    @property
    def role(self) -> str:
        return token_name(self.ids[0])

    @property
    def bytes(self) -> str:
        """The bytes of the field in hexadecimal, with the PREFIX_END that may follow."""
        return " ".join(token_name(token) for token in self.ids[1:])


@dataclass(frozen=True)
class Shown:
    """A given measurement and its tokens."""

    statement: Statement
    fields: tuple[ShownField, ...]

    @property
    def ids(self) -> list[int]:
        return [token for field in self.fields for token in field.ids]

    def title(self) -> str:
        s = self.statement
        parts = [time_text(s.seconds)] if s.seconds is not None and Field.TIME in s.order else []
        parts.append(f"{s.src or 'unknown source'} → {s.dst if Field.DST in s.order else '?'}")
        if s.rtt is not None and Field.RESULT in s.order:
            parts.append("no reply" if s.rtt == NO_REPLY else f"{s.rtt:,.15g} ms")
        return "  ".join(parts) + f"  ({len(self.ids)} tokens)"

    def as_dict(self) -> dict[str, Any]:
        s = self.statement
        return {
            "measurement": {
                "event_time": None if s.seconds is None else time_text(s.seconds),
                "src_addr": None if s.src is None else str(s.src),
                "dst_addr": None if s.dst is None else str(s.dst),
                "rtt": s.rtt,
                "size": s.size,
                "packet_error_count": s.errors,
                "msm_id": s.msm_id,
                "probe_id": s.probe_id,
                "throughput_mbps": s.throughput,
            },
            "ids": self.ids,
            "fields": [
                {"role": field.role, "bytes": field.bytes, "meaning": field.meaning} for field in self.fields
            ],
        }


def show_context(context: Sequence[Statement], encoding: RttEncoding) -> list[Shown]:
    """Encode a context and decode it again."""
    written: list[list[int]] = []
    previous_times: list[int | None] = []
    previous = None
    for statement in context:
        written.append(reference.encode_one(statement, previous, encoding))
        previous_times.append(previous)
        if Field.TIME in statement.order:
            previous = statement.seconds
    decoded = reference.decode([token for ids in written for token in ids], encoding)
    return [
        Shown(
            statement,
            tuple(ShownField(tuple(part), _meaning(part, back, before, encoding)) for part in _split(ids)),
        )
        for statement, ids, back, before in zip(context, written, decoded, previous_times, strict=True)
    ]


def _split(ids: Sequence[int]) -> Iterator[list[int]]:
    """Split the tokens of a measurement before each role."""
    part: list[int] = []
    for token in ids:
        if starts_field(token) and part:
            yield part
            part = []
        part.append(token)
    yield part


def _meaning(part: Sequence[int], decoded: Statement, previous: int | None, encoding: RttEncoding) -> str:
    match part[0]:
        case vocab.MEASUREMENT:
            return (
                "" if Field.SRC in decoded.order else f"from {decoded.src or 'an unknown source'}, as before"
            )
        case vocab.SRC_IPV4 | vocab.SRC_IPV6:
            return str(decoded.src)
        case vocab.DST_IPV4 | vocab.DST_IPV6:
            return str(decoded.dst)
        case vocab.TIME_ABS:
            return time_text(decoded.seconds or 0)
        case vocab.TIME_DELTA1 | vocab.TIME_DELTA4:
            return f"{(decoded.seconds or 0) - (previous or 0):,} s later"
        case vocab.RTT:
            code = int.from_bytes(bytes(token - BYTE0 for token in part[1:]), "big")
            return f"{decoded.rtt:,.15g} ms, {_bin(encoding, code)}"
        case vocab.FAILED:
            return "no reply"
        case vocab.SIZE:
            return f"{decoded.size:,} bytes"
        case vocab.ERRORS:
            return f"{decoded.errors} packet errors" + (" or more" if decoded.errors == 255 else "")
        case vocab.EXTRA if part[1] == BYTE0 + vocab.EXTRA_THROUGHPUT:
            return f"{decoded.throughput:,.15g} Mbit/s"
        case vocab.EXTRA:
            return f"probe {decoded.probe_id}"
        case _:
            return f"measurement {decoded.msm_id}"


def _bin(encoding: RttEncoding, code: int) -> str:
    if encoding.name == "float64":
        return "exactly"
    low, high = encoding.edges(code)
    return f"for {low:,.15g} and up" if high == float("inf") else f"for {low:,.15g} to {high:,.15g}"


def read_contexts(place: Path, count: int, order: Sequence[Field] = DEFAULT_FIELDS) -> list[list[Statement]]:
    """The first measurements of a Parquet file or a folder of them; a new source begins a new context."""
    contexts: list[list[Statement]] = []
    source = None
    for statement in _read_statements(place, count, tuple(order)):
        if statement.src != source:
            contexts.append([])
        else:
            stated = tuple(field for field in statement.order if field != Field.SRC)
            statement = replace(statement, order=stated)
        contexts[-1].append(statement)
        source = statement.src
    return contexts


def _read_statements(place: Path, count: int, order: tuple[Field, ...]) -> Iterator[Statement]:
    for known in first_measurements([place], count):
        numbers = {name: known.column(column).tolist() for name, column in _COLUMNS.items()}
        for row, (src, dst, time, rtt) in enumerate(
            zip(known.src, known.dst, known.time.tolist(), known.rtt.tolist(), strict=True)
        ):
            yield Statement(
                order,
                whole(src.tobytes()),
                whole(dst.tobytes()),
                time // 1_000_000,
                rtt,
                **{name: _known(values[row]) for name, values in numbers.items()},
            )


#: The optional values of a statement, and the columns of the table that they come from.
_COLUMNS = {
    "size": "size",
    "errors": "packet_error_count",
    "msm_id": "msm_id",
    "probe_id": "probe_id",
    "throughput": THROUGHPUT,
}


def _known(value: Any) -> Any:
    return None if value == UNKNOWN else value


_NOON = int(datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp())
_SRC, _DST, _TIME, _RESULT = DEFAULT_FIELDS


def _state(order: tuple[Field, ...], src: str, dst: str, seconds: int, rtt: float, **more: Any) -> Statement:
    return Statement(order, parse_prefix(src), parse_prefix(dst), seconds, rtt, **more)


def examples() -> list[tuple[str, list[Statement]]]:
    """Example contexts with titles. Their addresses are those reserved for documentation."""
    probe, target = "192.0.2.1", "198.51.100.7"
    return [
        (
            "the source is stated once; times are absolute, then deltas; fields come in any order",
            [
                _state((_SRC, _DST, _TIME, _RESULT), probe, target, _NOON, 12.345),
                _state((_DST, _TIME, _RESULT), probe, target, _NOON + 60, 302_281.66),
                _state((_RESULT, _DST, _TIME), probe, "203.0.113.9", _NOON + 3660, -1.0),
                _state((_TIME, _DST, _RESULT), probe, target, _NOON + 30, 0.001),
                _state((_DST, _RESULT), probe, target, _NOON, 0.0),
            ],
        ),
        (
            "addresses cut to a prefix",
            [
                _state((_SRC, _DST, _RESULT), "192.0.2.0/24", target, _NOON, 20.5),
                _state((_DST, _RESULT), "192.0.2.0/24", "198.0.0.0/8", _NOON, 20.25),
            ],
        ),
        (
            "IPv6, whole and cut; an IPv4-mapped address is IPv4",
            [
                _state((_SRC, _DST, _RESULT), "2001:db8::1", "2001:db8:ffff::53", _NOON, 239.0),
                _state((_SRC, _RESULT, _DST), "2001:db8::/32", "2001:db8:ffff::/48", _NOON, 240.125),
                _state((_SRC, _RESULT), "::ffff:192.0.2.1", target, _NOON, 4.096),
            ],
        ),
        (
            "the optional fields; 255 errors are 255 or more, and throughputs have 7 bits of mantissa",
            [
                _state(
                    (_SRC, _DST, _RESULT, *OPTIONAL.values()),
                    *(probe, target, _NOON, -1.0),
                    size=1000,
                    errors=300,
                    msm_id=1001,
                    probe_id=6012,
                    throughput=94.3,
                )
            ],
        ),
    ]
