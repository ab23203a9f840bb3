"""Tables that belong to a query: contexts, pairs, measurements to score, and locations of prefixes.

Locations serve one check of an inverse search: no RTT can be shorter than light needs in fibre.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ping_llm.answer.context import Question, as_prefix
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements import addresses
from ping_llm.measurements.addresses import Prefix, parse_prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import END_TIME_US, NO_REPLY

_FORMATS = ".parquet, .csv, .jsonl or .ndjson"


def read_table(path: Path) -> pa.Table:
    return pa.Table.from_batches(batches) if (batches := list(read_batches(path))) else pa.table({})


def read_batches(path: Path, rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Stream a Parquet, CSV or JSON-lines file (or a folder of Parquet files)."""
    from pyarrow import csv, dataset, json

    from ping_llm.measurements.parquet import measurement_files  # imports DuckDB

    if not path.exists():
        raise UsageError(f"{path} does not exist")
    try:
        if path.suffix == ".csv":
            yield from csv.open_csv(path)
        elif path.suffix in (".jsonl", ".ndjson"):
            yield from json.read_json(path).to_batches(max_chunksize=rows)
        elif path.suffix == ".parquet" or path.is_dir():
            yield from dataset.dataset(measurement_files([path]), format="parquet").to_batches(
                batch_size=rows
            )
        else:
            raise UsageError(f"{path}: the name of a table must end in {_FORMATS}")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PingError(f"{path} is not a table: {str(error).splitlines()[0]}") from None


def to_columns(
    table: pa.Table | pa.RecordBatch, origin: Path | str, *, needs: tuple[str, ...], first: int = 0
) -> Columns:
    """Check and convert. `needs` names the required columns; the others may be missing or null.

    An unknown time is -1, an unknown rtt NaN.
    """
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
            raise PingError(f"{origin}, row {first + row}: rtt {value} must be -1 (no reply) or ms")
    return Columns(time, src, dst, rtt)


def read_columns(path: Path, *, needs: tuple[str, ...] = ("src_addr", "dst_addr", "rtt")) -> Columns:
    return to_columns(read_table(path), path, needs=needs)


def _array(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table[name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _microseconds(array: pa.Array, origin: Path | str) -> np.ndarray:
    """µs of a time column: timestamps, ISO texts, or numbers of seconds. Null is -1."""
    try:
        if pa.types.is_string(array.type):
            array = array.cast(pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(array.type):
            kind = pa.timestamp("us", tz=array.type.tz)
            stamps: np.ndarray = array.cast(kind, safe=False).cast(pa.int64()).fill_null(-1).to_numpy()
            return stamps
        seconds = array.cast(pa.float64()).fill_null(-1e-6).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PingError(f"{origin}: event_time cannot be read: {error}") from None
    out: np.ndarray = np.floor(seconds * 1e6 + 0.5).astype(np.int64)
    return out


def read_questions(path: Path) -> tuple[list[Question], np.ndarray | None]:
    """A table of src_addr, dst_addr (addresses or prefixes) and, if known, event_time and the rtt."""
    return questions_of(read_table(path), path)


def questions_of(content: pa.Table, path: Path | str) -> tuple[list[Question], np.ndarray | None]:
    """The same of a table in memory; `path` names it in errors."""
    for name in ("src_addr", "dst_addr"):
        if name not in content.schema.names:
            raise PingError(
                f"{path} has no column {name}: it has {', '.join(content.schema.names) or 'none'}"
            )
    times = np.full(content.num_rows, -1, np.int64)
    if "event_time" in content.schema.names:
        times = _microseconds(_array(content, "event_time"), path)
    if (bad := np.flatnonzero((times < -1) | (times >= END_TIME_US))).size:
        raise PingError(
            f"{path}, row {bad[0]}: event_time {content['event_time'][int(bad[0])]} is outside 1970 to 2100"
        )
    questions = []
    for row, (src, dst, time) in enumerate(
        zip(content["src_addr"].to_pylist(), content["dst_addr"].to_pylist(), times.tolist(), strict=True)
    ):
        try:
            questions.append(replace(Question.of(str(src), str(dst)), time=None if time == -1 else time))
        except UsageError as error:
            raise PingError(f"{path}, row {row}: {error}") from None
    if "rtt" not in content.schema.names:
        return questions, None
    rtt = _array(content, "rtt").cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return questions, rtt


class Places:
    """A table of prefix, latitude, longitude; the longest prefix that covers an address is its place."""

    def __init__(self, path: Path):
        table = read_table(path)
        for name in ("prefix", "latitude", "longitude"):
            if name not in table.schema.names:
                raise PingError(f"{path} has no column {name}: it needs prefix, latitude and longitude")
        self._places: dict[Prefix, tuple[float, float]] = {}
        for row, record in enumerate(table.to_pylist()):
            try:
                prefix = parse_prefix(str(record["prefix"]))
                place = (float(record["latitude"]), float(record["longitude"]))
            except (TypeError, ValueError) as error:
                raise PingError(f"{path}, row {row}: {error}") from None
            self._places[prefix] = place
        self._bits = sorted({(prefix.version, prefix.bits) for prefix in self._places}, reverse=True)

    @property
    def prefixes(self) -> list[Prefix]:
        return list(self._places)

    def of(self, address: Prefix) -> tuple[float, float] | None:
        """The place of the longest prefix that covers the address (or prefix)."""
        number = int.from_bytes(address.packed)
        for version, bits in self._bits:
            if version == address.version and bits <= address.bits:
                rest = address.address_bits - bits
                found = self._places.get(Prefix((number >> rest << rest).to_bytes(16), bits))
                if found is not None:
                    return found
        return None

    def least_rtts(self, src: str, addresses: Sequence[Prefix]) -> list[float | None]:
        """The least possible RTT of each, ms; None where a place is not known."""
        from ping_llm.answer.complete import least_rtt_ms  # imports JAX, which reading a table needs not

        here = self.of(as_prefix(src, "source"))
        places = [self.of(address) for address in addresses]
        known = [None if here is None or there is None else least_rtt_ms(here, there) for there in places]
        return [None if value is None else float(np.round(value, 3)) for value in known]
