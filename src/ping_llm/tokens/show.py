"""Measurements beside their tokens, for people and for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.addresses import pack_one
from ping_llm.errors import PingError, UsageError
from ping_llm.schema import NO_REPLY, OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from ping_llm.tokens import reference, vocab
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.statement import EncodeError, Statement, check, whole
from ping_llm.tokens.vocab import BYTE0, DEFAULT_FIELDS, Field, token_name


@dataclass(frozen=True)
class ShownField:
    """One field's tokens and what they mean."""

    ids: tuple[int, ...]
    meaning: str

    @property
    def role(self) -> str:
        return token_name(self.ids[0])

    @property
    def bytes(self) -> str:
        """Its bytes in hexadecimal, with the PREFIX_END that may follow."""
        return " ".join(token_name(token) for token in self.ids[1:])


@dataclass(frozen=True)
class Shown:
    """A measurement as it was given, and its tokens."""

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
            },
            "ids": self.ids,
            "fields": [
                {"role": field.role, "bytes": field.bytes, "meaning": field.meaning} for field in self.fields
            ],
        }


def show_context(context: Sequence[Statement], encoding: RttEncoding) -> list[Shown]:
    """Encode a context, decode it again, and lay both side by side."""
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
    """Cut a measurement before each role."""
    part: list[int] = []
    for token in ids:
        if token < BYTE0 and token != vocab.PREFIX_END and part:
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
        case _:
            return f"measurement {decoded.msm_id}"


def _bin(encoding: RttEncoding, code: int) -> str:
    if encoding.name == "float64":
        return "exactly"
    low, high = encoding.edges(code)
    return f"for {low:,.15g} and up" if high == float("inf") else f"for {low:,.15g} to {high:,.15g}"


def time_text(seconds: int) -> str:
    """ISO 8601, as far as that reaches."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s after 1970"


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
    for path in _parquet_files(place):
        row = 0
        for batch in _batches(path, min(count, 1024)):
            for values in batch.to_pylist():
                if count == 0:
                    return
                yield _statement(values, order, path, row)
                count -= 1
                row += 1


def _parquet_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise UsageError(f"{place} does not exist: give a Parquet file of measurements, or a folder of them")
    # rejects/ beside an ingested table holds what is not a measurement.
    found = sorted(
        path for path in place.rglob("*.parquet") if "rejects" not in path.relative_to(place).parts
    )
    if not found:
        raise UsageError(f"{place} has no Parquet files: `ping-llm simulate` or `ping-llm ingest` makes some")
    return found


def _batches(path: Path, size: int) -> Iterator[pa.RecordBatch]:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise PingError(f"cannot read {path} as Parquet: {str(error).splitlines()[0]}") from error
    missing = [name for name in REQUIRED_COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise PingError(f"{path} has no column {missing[0]}: a table of measurements has {_columns()}")
    wanted = [*REQUIRED_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in file.schema_arrow.names)]
    for batch in file.iter_batches(size, columns=wanted):
        times = batch.column("event_time")
        try:
            times = times.cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64())
        except pa.ArrowException as error:
            raise PingError(f"{path}: event_time is {times.type}, not a timestamp") from error
        yield batch.set_column(batch.schema.get_field_index("event_time"), "event_time", times)


def _columns() -> str:
    return ", ".join(REQUIRED_COLUMNS)


def _statement(values: dict[str, Any], order: tuple[Field, ...], path: Path, row: int) -> Statement:
    try:
        statement = Statement(
            order=order,
            src=whole(pack_one(values["src_addr"] or "")),
            dst=whole(pack_one(values["dst_addr"] or "")),
            seconds=values["event_time"] // 1_000_000,
            rtt=float(values["rtt"]),
            size=_known(values.get("size")),
            errors=_known(values.get("packet_error_count")),
            msm_id=_known(values.get("msm_id")),
        )
        check(statement)
    except (EncodeError, ValueError, TypeError) as error:
        raise PingError(f"{path}, row {row}: {error}; `ping-llm ingest` sorts such rows out") from error
    return statement


def _known(value: int | None) -> int | None:
    return None if value is None or value == -1 else value
