"""The input of a build: Parquet files with the columns of a measurement, divided into slices of rows."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError
from ping_llm.measurements.parquet import measurement_files
from ping_llm.measurements.schema import KINDS, OPTIONAL_COLUMNS, PING, REQUIRED_COLUMNS, THROUGHPUT
from ping_llm.paths import sql_path

#: Rows per Arrow batch: 35 MB of text and numbers. Large, because addresses repeat within a batch.
BATCH_ROWS = 1 << 18


@dataclass(frozen=True)
class MeasurementFile:
    """A Parquet file, described by its footer."""

    path: Path
    bytes: int
    rows: int
    group_rows: tuple[int, ...]
    digest: str  # SHA-256 of the footer: schema, place, size and range of every column chunk


@dataclass(frozen=True)
class Range:
    """Rows [begin, end) of a file."""

    file: Path
    begin: int
    end: int


def find_files(places: Sequence[str | Path]) -> list[MeasurementFile]:
    """Find the files in folders (recursive, including Hive partitions) and globs; each file once."""
    return [_read_footer(path) for path in sorted({file.resolve() for file in measurement_files(places)})]


def _read_footer(path: Path) -> MeasurementFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - 8))
            tail = file.read(8)
            file.seek(max(0, size - 8 - int.from_bytes(tail[:4], "little")))
            digest = hashlib.sha256(file.read()).hexdigest()
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise PingError(f"cannot read {path} as Parquet: {str(error).splitlines()[0]}") from error
    groups = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return MeasurementFile(path, size, metadata.num_rows, groups, digest)


def source_fingerprint(files: Sequence[MeasurementFile]) -> str:
    """A hash of the input that does not depend on the names, folders and order of its files."""
    digests = sorted(f"{file.digest}:{file.bytes}" for file in files)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def cut(files: Sequence[MeasurementFile], slice_rows: int) -> list[list[Range]]:
    """Divide files into slices of about `slice_rows` rows, with whole row groups unless these are larger."""
    slices: list[list[Range]] = []
    current: list[Range] = []
    room = slice_rows
    for file in files:
        begin = 0
        for rows in file.group_rows:
            end = begin + rows
            while begin < end:
                if room <= 0 or (rows <= slice_rows and end - begin > room and current):
                    slices.append(current)
                    current, room = [], slice_rows
                stop = min(end, begin + room)
                if current and current[-1].file == file.path:
                    current[-1] = Range(file.path, current[-1].begin, stop)
                else:
                    current.append(Range(file.path, begin, stop))
                room -= stop - begin
                begin = stop
    if current:
        slices.append(current)
    return slices


class Scanner:
    """Reads ranges of files through DuckDB, with one thread per call; several threads may call at once."""

    def __init__(self, memory_bytes: int):
        self._database = duckdb.connect(
            config={
                "threads": 1,  # the thread of the caller: slices run in parallel
                "memory_limit": f"{max(128, memory_bytes // 10**6)}MB",
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )

    def batches(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges in a uniform format: event_time in µs, addresses as text, rtt, integers."""
        for piece in ranges:
            query = (
                f"{select(piece.file)} FROM read_parquet({sql_path(piece.file)}, file_row_number = true, "
                f"hive_partitioning = false) "
                f"WHERE file_row_number >= {piece.begin} AND file_row_number < {piece.end}"
            )
            try:
                with self._database.cursor() as cursor:
                    yield from cursor.sql(query).to_arrow_reader(BATCH_ROWS)
            except duckdb.Error as error:
                raise PingError(f"cannot read {piece.file}: {str(error).splitlines()[0]}") from error


_INTEGERS = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()})
_NUMBERS = _INTEGERS | {pa.uint64(), pa.float16(), pa.float32(), pa.float64()}
_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})


@cache
def select(file: Path) -> str:
    """The SQL, without FROM, that converts the columns of a file to the uniform format."""
    schema = pq.read_schema(file)
    for name in REQUIRED_COLUMNS:
        if name not in schema.names:
            raise PingError(f"{file} has no column {name}; a measurement needs {', '.join(REQUIRED_COLUMNS)}")
    types = {field.name: _plain(field.type) for field in schema}
    if not pa.types.is_timestamp(types["event_time"]):
        raise _wrong_type(file, "event_time", types, "a timestamp")
    for name in ("src_addr", "dst_addr"):
        if types[name] not in _TEXTS:
            raise _wrong_type(file, name, types, "text")
    if types["rtt"] not in _NUMBERS:
        raise _wrong_type(file, "rtt", types, "a number of milliseconds")
    integers = [_integer(file, name, types) for name in OPTIONAL_COLUMNS]
    # Parquet can hold infinite times; they become -1, which breaks the rule for times.
    time = "epoch_ns(event_time) // 1000" if types["event_time"].unit == "ns" else "epoch_us(event_time)"
    time = f"CASE WHEN event_time IS NULL THEN NULL WHEN isfinite(event_time) THEN {time} ELSE -1 END"
    chosen = [f"{time} AS event_time", "src_addr", "dst_addr", "CAST(rtt AS DOUBLE) AS rtt", *integers]
    chosen.append(_kind(file, types))
    chosen += _throughput(file, types)
    return "SELECT " + ", ".join(chosen)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _integer(file: Path, name: str, types: dict[str, pa.DataType]) -> str:
    kind = types.get(name, pa.null())
    if kind == pa.null():
        return f"CAST(NULL AS BIGINT) AS {name}"
    if kind == pa.uint64():  # a number too large for an int64 breaks a rule; it is not unknown
        return (
            f"CASE WHEN {name} IS NULL THEN NULL ELSE coalesce(TRY_CAST({name} AS BIGINT), -2) END AS {name}"
        )
    if kind not in _INTEGERS:
        raise _wrong_type(file, name, types, "an integer")
    return f"CAST({name} AS BIGINT) AS {name}"


def _kind(file: Path, types: dict[str, pa.DataType]) -> str:
    """SQL for the code of a kind: null or no column is a ping, and an invalid name breaks a rule."""
    kind = types.get("kind", pa.null())
    if kind == pa.null():
        return f"CAST({PING} AS BIGINT) AS kind"
    if kind not in _TEXTS:
        raise _wrong_type(file, "kind", types, "text")
    codes = " ".join(f"WHEN '{name}' THEN {code}" for code, name in enumerate(KINDS))
    return f"CAST(CASE coalesce(kind, '{KINDS[PING]}') {codes} ELSE -1 END AS BIGINT) AS kind"


def _throughput(file: Path, types: dict[str, pa.DataType]) -> list[str]:
    """SQL for the throughput; nothing if the file has no such column, so that it costs nothing."""
    kind = types.get(THROUGHPUT, pa.null())
    if kind == pa.null():
        return []
    if kind not in _NUMBERS:
        raise _wrong_type(file, THROUGHPUT, types, "a number of Mbit/s")
    return [f"CAST({THROUGHPUT} AS DOUBLE) AS {THROUGHPUT}"]


def _wrong_type(file: Path, name: str, types: dict[str, pa.DataType], wanted: str) -> PingError:
    return PingError(
        f"{file}: column {name} has type {types[name]}, it must be {wanted}; `ping-llm ingest` converts it"
    )
