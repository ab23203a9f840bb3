"""The input: Parquet files of measurements, read in one order as columns of numbers, out of core."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm import addresses
from ping_llm.errors import PingError, UsageError
from ping_llm.ingest.inputs import find_files
from ping_llm.schema import (
    END_TIME_US,
    MAX_RTT_MS,
    MEASUREMENTS,
    MIN_TIME_US,
    NO_REPLY,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
)
from ping_llm.shards.options import BATCH_ROWS

#: msm_id, size, packet_error_count or probe_id that is null in the table.
UNKNOWN = -1


@dataclass(frozen=True)
class Columns:
    """Measurements as arrays [n]; addresses packed, uint8 [n, 16]."""

    time: np.ndarray  # µs
    src: np.ndarray
    dst: np.ndarray
    rtt: np.ndarray
    msm_id: np.ndarray
    size: np.ndarray
    packet_error_count: np.ndarray
    probe_id: np.ndarray

    def __len__(self) -> int:
        return len(self.time)

    def take(self, chosen: np.ndarray | slice) -> "Columns":
        return Columns(*(column[chosen] for column in vars(self).values()))

    def to_arrow(self) -> pa.Table:
        """Rows of the measurements table, addresses in their canonical texts."""
        unknown = (
            pa.array(column, pa.int64(), mask=column == UNKNOWN)
            for column in (self.msm_id, self.size, self.packet_error_count, self.probe_id)
        )
        ip_version = np.where(addresses.is_ipv4(self.src), 4, 6).astype(np.uint8)
        src, dst = addresses.unpack(self.src), addresses.unpack(self.dst)
        time = pa.array(self.time, pa.timestamp("us", tz="UTC"))
        return pa.Table.from_arrays(
            [time, src, dst, pa.array(ip_version), pa.array(self.rtt), *unknown], schema=MEASUREMENTS
        )


@dataclass(frozen=True)
class ParquetInput:
    """Parquet files with the columns of a measurement, sorted by path."""

    files: tuple[Path, ...]
    rows_of: tuple[int, ...]
    columns: frozenset[str]  # that some file has; in the others they are unknown
    fingerprint: str  # of names below their common folder, sizes and footers

    @property
    def rows(self) -> int:
        return sum(self.rows_of)

    def place(self, row: int) -> str:
        """Where a row of the whole input is, for messages."""
        for path, rows in zip(self.files, self.rows_of, strict=True):
            if row < rows:
                return f"{path}, row {row + 1:,}"
            row -= rows
        raise IndexError(row)

    @property
    def scan(self) -> str:
        """The table in SQL."""
        names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in self.files)
        return f"read_parquet([{names}], hive_partitioning = false, union_by_name = true)"


def open_input(places: Sequence[str]) -> ParquetInput:
    """Files, folders and globs of measurement Parquet. Raises UsageError or PingError for anything else."""
    paths = [Path(name) for name in find_files(places)]
    inside_folders = any(Path(place).is_dir() for place in places)
    if inside_folders:
        # Beside the measurements lie reports (world.json, shard.json) and rejects.
        paths = [path for path in paths if path.suffix == ".parquet" and path.parent.name != "rejects"]
    if not paths:
        raise UsageError(f"{' '.join(places)} has no Parquet files; `ping-llm ingest` makes them.")
    digest = hashlib.sha256()
    rows = []
    columns: set[str] = set()
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (OSError, pa.ArrowException) as error:
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
    for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS):
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if name == "event_time":
            fits = pa.types.is_timestamp(kind)
        elif name in ("src_addr", "dst_addr"):
            fits = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        elif name == "rtt":
            fits = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        else:
            fits = pa.types.is_integer(kind) or pa.types.is_null(kind)
        if not fits:
            raise PingError(f"{path}: column {name} has type {kind}; `ping-llm ingest` converts it.")


def connect(memory_mb: int, threads: int, temporary: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB that spills below `temporary`, needs no network and keeps rows in their order."""
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
    # It would go to stdout, among the results.
    connection.execute("SET enable_progress_bar = false")
    return connection


def read_columns(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, wanted: frozenset[str] | None = None
) -> Iterator[Columns]:
    """All rows in order, checked against the rules of a measurement. Columns not wanted are zeros."""

    def column(name: str, sql: str, otherwise: str) -> str:
        use = name in data.columns and (wanted is None or name in wanted)
        return f"{sql if use else otherwise} AS {name}"

    selected = [
        # A time that is null or infinite becomes one that breaks the rule.
        column(
            "event_time", "coalesce(CASE WHEN isfinite(event_time) THEN epoch_us(event_time) END, -1)", "0"
        ),
        column("src_addr", "src_addr", "'::'"),
        column("dst_addr", "dst_addr", "'::'"),
        column("rtt", "coalesce(rtt::DOUBLE, 'nan'::DOUBLE)", "0.0::DOUBLE"),
        *(
            column(name, f"coalesce({name}, {UNKNOWN})::BIGINT", f"{UNKNOWN}::BIGINT")
            for name in ("msm_id", "size", "packet_error_count", "probe_id")
        ),
    ]
    both_addresses = wanted is None or {"src_addr", "dst_addr"} <= wanted
    row = 0
    try:
        reader = connection.sql(f"SELECT {', '.join(selected)} FROM {data.scan}").to_arrow_reader(BATCH_ROWS)
        for batch in reader:
            yield _columns(batch, data, row, both_addresses)
            row += len(batch)
    except duckdb.Error as error:
        raise PingError(f"Reading {data.files[0]} … failed: {str(error).splitlines()[0]}") from error


def _columns(batch: pa.RecordBatch, data: ParquetInput, first_row: int, both_addresses: bool) -> Columns:
    def refuse(wrong: np.ndarray, name: str, why: str) -> None:
        if wrong.any():
            index = int(wrong.argmax())
            raise PingError(
                f"{data.place(first_row + index)}: {name} {batch[name][index]} {why}; "
                "`ping-llm ingest` sorts such rows out."
            )

    time = batch["event_time"].to_numpy().astype(np.int64)
    refuse((time < MIN_TIME_US) | (time >= END_TIME_US), "event_time", "is not a time from 1970 to 2099")
    # A batch has far fewer addresses than rows: each is parsed once.
    src, src_valid = addresses.pack(batch["src_addr"].dictionary_encode())
    dst, dst_valid = addresses.pack(batch["dst_addr"].dictionary_encode())
    refuse(~src_valid, "src_addr", "is not an address")
    refuse(~dst_valid, "dst_addr", "is not an address")
    if both_addresses:
        mixed = addresses.is_ipv4(src) != addresses.is_ipv4(dst)
        refuse(mixed, "dst_addr", "is of another IP version than src_addr")
    rtt = batch["rtt"].to_numpy()
    refuse(~((rtt == NO_REPLY) | ((rtt >= 0) & (rtt <= MAX_RTT_MS))), "rtt", "is neither an RTT in ms nor -1")
    integers = (batch[name].to_numpy() for name in ("msm_id", "size", "packet_error_count", "probe_id"))
    return Columns(time, src, dst, rtt, *integers)
