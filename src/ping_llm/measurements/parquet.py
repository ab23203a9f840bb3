"""Tables of measurements in Parquet: find the files, examine them, and read and check their rows."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from glob import has_magic
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError, UsageError
from ping_llm.files import whole_file
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.measurements.schema import (
    KINDS,
    OPTIONAL_COLUMNS,
    PING,
    REQUIRED_COLUMNS,
    THROUGHPUT,
    table_version,
)
from ping_llm.paths import files_below, holds_measurements, literal, matching_files, sql_path

#: Rows per batch when reading.
BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class ParquetInput:
    """Parquet files with the columns of a measurement, sorted by path."""

    files: tuple[Path, ...]
    rows_of: tuple[int, ...]
    columns: frozenset[str]  # columns that at least one file has; they are unknown in the others
    fingerprint: str  # SHA-256 of the files' names, sizes, row counts and footers

    @property
    def rows(self) -> int:
        return sum(self.rows_of)

    def place(self, row: int, first: int = 0) -> str:
        """The file and row of a row of the whole input, counted from row `first`, for messages."""
        row += first
        for path, rows in zip(self.files, self.rows_of, strict=True):
            if row < rows:
                return f"{path}, row {row + 1:,}"
            row -= rows
        raise IndexError(row)

    @property
    def with_kind(self) -> bool:
        """Whether there is a column `kind`; without it, all measurements are pings."""
        return "kind" in self.columns

    @property
    def version(self) -> int:
        """The lowest version of the table format that has these columns."""
        return table_version(self.columns)

    @property
    def scan(self) -> str:
        """The table as a DuckDB SQL expression."""
        names = ", ".join(map(sql_path, self.files))
        return f"read_parquet([{names}], hive_partitioning = false, union_by_name = true)"


def measurement_files(places: Sequence[str | Path]) -> list[Path]:
    """The Parquet files given by files, folders (searched recursively) and globs: each once, sorted by path.

    In folders, hidden names (.name, _name), which other programs write, and `rejects/`, which holds the
    records rejected by ingest, are skipped.
    """
    found: set[str] = set()
    for place in map(str, places):
        path = Path(place)
        if path.is_dir():
            files = [file for file in files_below(path) if holds_measurements(path, file)]
        elif path.exists():
            files = [path]
        else:
            files = matching_files(place)
            if not files and not has_magic(place):
                raise UsageError(f"{place} does not exist; give Parquet files, folders or globs of them")
        if not files:
            raise UsageError(f"{place} has no Parquet files; `ping-llm ingest` makes them from raw results")
        found.update(map(str, files))
    return [literal(Path(name)) for name in sorted(found)]


def open_input(places: Sequence[str | Path]) -> ParquetInput:
    """Open files, folders and globs of measurement Parquet.

    Raises:
      UsageError: a place does not exist or has no Parquet files.
      PingError: a file is not Parquet, or lacks columns of a measurement.
    """
    paths = measurement_files(places)
    digest = hashlib.sha256()
    rows = []
    columns: set[str] = set()
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (OSError, pa.ArrowException, UnicodeError) as error:
            raise PingError(f"{path} is not a Parquet file ({str(error).splitlines()[0]}).") from error
        _check_types(path, schema)
        columns |= set(schema.names)
        rows.append(metadata.num_rows)
        digest.update(f"{path.name}:{path.stat().st_size}:{metadata.num_rows}\n".encode())
        digest.update(_footer(path))
    return ParquetInput(tuple(paths), tuple(rows), frozenset(columns), digest.hexdigest())


def _footer(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, 2)
        return file.read(length)


def _check_types(path: Path, schema: pa.Schema) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in schema.names]
    if missing:
        raise PingError(f"{path} has no column {', '.join(missing)}; `ping-llm ingest` makes such a table.")
    for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS, "kind", THROUGHPUT):
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if name == "event_time":
            fits = pa.types.is_timestamp(kind)
        elif name in ("src_addr", "dst_addr", "kind"):
            fits = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            fits |= name == "kind" and pa.types.is_null(kind)
        elif name in ("rtt", THROUGHPUT):
            fits = pa.types.is_floating(kind) or pa.types.is_integer(kind)
            fits |= name == THROUGHPUT and pa.types.is_null(kind)
        else:
            fits = pa.types.is_integer(kind) or pa.types.is_null(kind)
        if not fits:
            raise PingError(f"{path}: column {name} has type {kind}; `ping-llm ingest` converts it.")


def connect(memory_mb: int, threads: int, temporary: Path) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB connection that spills below `temporary`, needs no network and keeps row order."""
    temporary.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(
        config={
            "threads": threads,
            "memory_limit": f"{memory_mb}MB",
            "temp_directory": str(temporary),
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    # The progress bar would be written to stdout, among the results.
    connection.execute("SET enable_progress_bar = false")
    return connection


def read_columns(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, wanted: frozenset[str] | None = None
) -> Iterator[Columns]:
    """Read all rows in order, checked against the rules of a measurement.

    Columns that are not wanted hold placeholders: 0 or an empty address, UNKNOWN if optional.
    """

    def column(name: str, sql: str, otherwise: str) -> str:
        use = name in data.columns and (wanted is None or name in wanted)
        return f"{sql if use else otherwise} AS {name}"

    selected = [
        # An infinite time becomes -1, which breaks the rule.
        column(
            "event_time",
            "CASE WHEN event_time IS NULL THEN NULL "
            "WHEN isfinite(event_time) THEN epoch_us(event_time) ELSE -1 END",
            "0",
        ),
        column("src_addr", "src_addr", "'::'"),
        column("dst_addr", "dst_addr", "'::'"),
        column("rtt", "rtt::DOUBLE", "0.0::DOUBLE"),
        *(
            # A number too large for an int64 breaks a rule (-2); it is not unknown.
            column(
                name,
                f"CASE WHEN {name} IS NULL THEN {UNKNOWN} ELSE coalesce(TRY_CAST({name} AS BIGINT), -2) END",
                f"{UNKNOWN}::BIGINT",
            )
            for name in OPTIONAL_COLUMNS
        ),
        # Only if the column exists; without it, all throughputs are unknown anyway.
        *(
            [column(THROUGHPUT, f"{THROUGHPUT}::DOUBLE", "NULL::DOUBLE")]
            if THROUGHPUT in data.columns
            else []
        ),
        column("kind", f"coalesce(kind::VARCHAR, '{KINDS[PING]}')", f"'{KINDS[PING]}'"),
    ]
    read = {"src_addr", "dst_addr"} if wanted is None else wanted
    stand_in = "src" if "src_addr" not in read else "dst" if "dst_addr" not in read else None
    row = 0
    try:
        reader = connection.sql(f"SELECT {', '.join(selected)} FROM {data.scan}").to_arrow_reader(BATCH_ROWS)
        for batch in reader:
            yield Columns.from_table(
                batch, every=True, place=partial(data.place, first=row), stand_in=stand_in
            )
            row += len(batch)
    except duckdb.Error as error:
        raise PingError(f"Reading {data.files[0]} … failed: {str(error).splitlines()[0]}") from error


def read_measurements(
    places: str | Path | Sequence[str | Path], every_column: bool = False, with_kind: bool = False
) -> Columns:
    """Read Parquet files, or all Parquet files below folders, into memory, sorted by time.

    Args:
      every_column: Whether to read the optional columns as well, including `kind` and `throughput_mbps`.
      with_kind: Whether to read `kind`.
    """
    optional = [*OPTIONAL_COLUMNS] if every_column else ["ip_version"]
    optional += ["kind"] if every_column or with_kind else []
    optional += [THROUGHPUT] if every_column else []
    parts = []
    for file in measurement_files([places] if isinstance(places, str | Path) else places):
        try:
            with pq.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                _check_types(file, schema)
                names = [*REQUIRED_COLUMNS, *(name for name in optional if name in schema.names)]
                table = opened.read(names)
        except (OSError, pa.ArrowException, UnicodeError) as error:
            raise PingError(f"{file}: not a table of measurements: {str(error).splitlines()[0]}") from None
        place = partial(_row_of, file)
        parts.append(Columns.from_table(table, every_column, place, with_kind=with_kind))
    return Columns.concatenate(parts).sorted_by_time()


def first_measurements(places: Sequence[str | Path], count: int) -> Iterator[Columns]:
    """The first `count` measurements of Parquet files, in the order of the files, with every column."""
    data = open_input(places)
    wanted = [*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS, "kind", THROUGHPUT]
    for file in data.files:
        row = 0
        with pq.ParquetFile(file) as opened:
            names = [name for name in wanted if name in opened.schema_arrow.names]
            for batch in opened.iter_batches(min(count, BATCH_ROWS), columns=names):
                if not count:
                    return
                part = batch.slice(0, count)
                yield Columns.from_table(part, every=True, place=partial(_row_after, file, row))
                row, count = row + len(part), count - len(part)


def _row_after(path: Path, before: int, row: int) -> str:
    return _row_of(path, before + row)


def _row_of(path: Path, row: int) -> str:
    return f"{path}, row {row + 1:,}"


def write_measurements(columns: Columns, path: Path) -> None:
    """Write a table of measurements to a Parquet file, atomically."""
    with whole_file(path) as aside:
        pq.write_table(columns.to_arrow(), aside, compression="zstd")
