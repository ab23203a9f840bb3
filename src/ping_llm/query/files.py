"""Small tables that a question brings along: contexts, pairs, measurements to score."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ping_llm import addresses
from ping_llm.errors import PingError, UsageError
from ping_llm.query.context import Question
from ping_llm.schema import END_TIME_US, NO_REPLY

_FORMATS = ".parquet, .csv, .jsonl or .ndjson"


@dataclass(frozen=True)
class Columns:
    """Measurements (rtt NaN where the table has none). time is in µs, -1 where unknown."""

    time: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    rtt: np.ndarray

    def __len__(self) -> int:
        return len(self.rtt)

    def take(self, index: np.ndarray) -> "Columns":
        return Columns(self.time[index], self.src[index], self.dst[index], self.rtt[index])


def read_table(path: Path) -> pa.Table:
    return pa.Table.from_batches(batches) if (batches := list(read_batches(path))) else pa.table({})


def read_batches(path: Path, rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Stream a Parquet, CSV or JSON-lines file (or a folder of Parquet files)."""

    from pyarrow import csv, dataset, json

    if not path.exists():
        raise UsageError(f"{path} does not exist")
    try:
        if path.suffix == ".csv":
            yield from csv.open_csv(path)
        elif path.suffix in (".jsonl", ".ndjson"):
            yield from json.read_json(path).to_batches(max_chunksize=rows)
        elif path.suffix == ".parquet" or path.is_dir():
            yield from dataset.dataset(path, format="parquet").to_batches(batch_size=rows)
        else:
            raise UsageError(f"{path}: a table ends in {_FORMATS}")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PingError(f"{path} is not a table: {str(error).splitlines()[0]}") from None


def to_columns(
    table: pa.Table | pa.RecordBatch, origin: Path, *, needs: tuple[str, ...], first: int = 0
) -> Columns:
    """Check and convert. `needs` names the columns that must be there; the others may be missing or null."""
    names = table.schema.names
    for name in needs:
        if name not in names:
            raise PingError(f"{origin} has no column {name}: it has {', '.join(names) or 'none'}")
    count = table.num_rows

    def packed(name: str) -> np.ndarray:
        if name not in names:
            return np.zeros((count, 16), np.uint8)
        values, valid = addresses.pack(_array(table, name).cast(pa.string()))
        if not valid.all():
            row = int(np.flatnonzero(~valid)[0])
            raise PingError(f"{origin}, row {first + row}: {name} {table[name][row]} is not an IP address")
        return values

    src, dst = packed("src_addr"), packed("dst_addr")
    mixed = (
        addresses.is_ipv4(src) != addresses.is_ipv4(dst)
        if {"src_addr", "dst_addr"} <= set(names)
        else src[:, 0] < 0
    )
    if mixed.any():
        row = int(np.flatnonzero(mixed)[0])
        raise PingError(
            f"{origin}, row {first + row}: {table['src_addr'][row]} and {table['dst_addr'][row]} "
            "are not of the same IP version"
        )
    time = np.full(count, -1, np.int64)
    if "event_time" in names:
        time = _microseconds(_array(table, "event_time"), origin)
        bad = (time < -1) | (time >= END_TIME_US)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise PingError(
                f"{origin}, row {first + row}: event_time {table['event_time'][row]} is outside 1970 to 2100"
            )
    rtt = np.full(count, np.nan)
    if "rtt" in names:
        rtt = _array(table, "rtt").cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        bad = ~((rtt >= 0) & np.isfinite(rtt) | (rtt == NO_REPLY))
        if "rtt" in needs and bad.any():
            row = int(np.flatnonzero(bad)[0])
            value = table["rtt"][row]
            raise PingError(
                f"{origin}, row {first + row}: rtt {value} is neither -1 (no reply) nor a time in ms"
            )
    return Columns(time, src, dst, rtt)


def read_columns(path: Path, *, needs: tuple[str, ...] = ("src_addr", "dst_addr", "rtt")) -> Columns:
    return to_columns(read_table(path), path, needs=needs)


def _array(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table[name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _microseconds(array: pa.Array, origin: Path) -> np.ndarray:
    """µs of a time column: timestamps, ISO texts, or numbers of seconds. Null is -1."""
    try:
        if pa.types.is_string(array.type):
            array = array.cast(pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(array.type):
            kind = pa.timestamp("us", tz=array.type.tz)
            return array.cast(kind, safe=False).cast(pa.int64()).fill_null(-1).to_numpy()
        seconds = array.cast(pa.float64()).fill_null(-1e-6).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PingError(f"{origin}: event_time cannot be read: {error}") from None
    return np.floor(seconds * 1e6 + 0.5).astype(np.int64)


def read_questions(path: Path) -> list[Question]:
    """A table of src_addr, dst_addr (addresses or prefixes) and, if known, event_time."""
    content = read_table(path)
    for name in ("src_addr", "dst_addr"):
        if name not in content.schema.names:
            raise PingError(
                f"{path} has no column {name}: it has {', '.join(content.schema.names) or 'none'}"
            )
    times = np.full(content.num_rows, -1, np.int64)
    if "event_time" in content.schema.names:
        times = _microseconds(_array(content, "event_time"), path)
    questions = []
    for row, (src, dst, time) in enumerate(
        zip(content["src_addr"].to_pylist(), content["dst_addr"].to_pylist(), times.tolist(), strict=True)
    ):
        try:
            questions.append(Question.of(str(src), str(dst), None if time == -1 else time / 1e6))
        except UsageError as error:
            raise PingError(f"{path}, row {row}: {error}") from None
    return questions
