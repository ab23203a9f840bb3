"""Conversion of parts to the table: sorted, without duplicates, one folder per day.

The days are split into groups (workers.py). DuckDB reads the rows of a group from the parts that have any,
sorts them by every column, spilling to the work folder if a day is too large, and returns them in order. The
order is total, so the bytes do not depend on the number of workers, on what each reads, or on interruptions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ping_llm.errors import PingError
from ping_llm.files import whole_file
from ping_llm.ingest.accounting import DAY_FILE, REJECTS_FILE, REJECTS_FOLDER
from ping_llm.ingest.options import REJECT_GROUP_ROWS, ROW_GROUP_ROWS
from ping_llm.ingest.parts import PART, REJECTS
from ping_llm.ingest.workers import Group, Written
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.measurements.schema import DAY_US, KINDS, MEASUREMENTS, TABLE_VERSIONS, THROUGHPUT, kind_names
from ping_llm.paths import duckdb_path

# Columns by which two results are equal. With `--rtt each` the RTT is that of one packet, so the hash of all
# packets is compared instead.
_IDENTITY = (
    "event_time", "src_high", "src_low", "dst_high", "dst_low",
    "msm_id", "probe_id", "size", "packet_error_count", "rtt", "kind",
)  # fmt: skip
_IDENTITY_OF_EACH = (*_IDENTITY[:-3], "kind", "packets_hash")
_OPTIONAL = ("msm_id", "size", "packet_error_count", "probe_id")
_PLACE = ("file", "record", "packet")


def write_group(
    group: Group, out: Path, spill: Path, each: bool, memory_mb: int, version: int = 1
) -> Written:
    """Sort the rows of a group and write the files of its days, in a `version` of the table."""
    written = Written()
    schema = TABLE_VERSIONS[version]
    identity = _IDENTITY_OF_EACH if each else _IDENTITY
    if THROUGHPUT in schema.names:  # in other versions it is unknown in all rows
        identity = (*identity, THROUGHPUT)
    duplicates = _Duplicates(identity)
    writer = _DayWriter(out, schema)
    try:
        for rows in _sorted_rows(group, spill, identity, memory_mb):
            columns = {name: rows[name].to_numpy() for name in rows.schema.names}
            repeated = duplicates.mark(columns)
            first_packets = columns["packet"] == 0
            _count(written.duplicates, columns["file"][repeated & first_packets])
            _count(written.measurements, columns["file"][~repeated & first_packets])
            if version > 1:
                _count_kinds(written.kinds, columns, ~repeated & first_packets)
            _count(written.packets, columns["file"][~repeated])
            kept = np.flatnonzero(~repeated)
            rows_kept = _measurements(columns, kept, version)
            writer.write(columns["event_time"][kept] // DAY_US, rows_kept)
        writer.close()
    finally:
        writer.abandon()
    return written


def _count(counter: Counter[int], files: np.ndarray) -> None:
    numbers, counts = np.unique(files, return_counts=True)
    counter.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


def _count_kinds(
    counter: Counter[tuple[int, int]], columns: dict[str, np.ndarray], wanted: np.ndarray
) -> None:
    for kind in range(len(KINDS)):
        files: Counter[int] = Counter()
        _count(files, columns["file"][wanted & (columns["kind"] == kind)])
        counter.update({(file, kind): count for file, count in files.items()})


def _sorted_rows(
    group: Group, spill: Path, identity: Sequence[str], memory_mb: int
) -> Iterator[pa.RecordBatch]:
    names = [name for name in PART.names if name != THROUGHPUT or name in identity]
    spill.mkdir(parents=True, exist_ok=True)
    limit = f"{memory_mb}MB"
    with duckdb.connect(
        config={"threads": 1, "memory_limit": limit, "temp_directory": str(spill)}
    ) as connection:
        # The progress bar would be written to stdout, among the results.
        connection.execute("SET enable_progress_bar = false")
        query = (
            f"SELECT {', '.join(names)} FROM read_parquet(?) WHERE event_time >= ? AND event_time < ? "
            f"ORDER BY {', '.join((*identity, *_PLACE))}"
        )
        parts = [duckdb_path(Path(part)) for part in group.parts]
        start, end = group.first_day * DAY_US, (group.last_day + 1) * DAY_US
        relation = connection.sql(query, params=[parts, start, end])
        yield from relation.to_arrow_reader(ROW_GROUP_ROWS)


class _Duplicates:
    """Marks duplicates in a sorted stream: rows whose result equals an earlier one from another place."""

    def __init__(self, identity: Sequence[str]):
        self._identity = identity
        self._last: dict[str, np.generic] = {}
        self._owner: tuple[int, int] = (-1, -1)

    def mark(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Return whether each row is a duplicate, bool [n]; call with consecutive slices of the stream."""
        count = len(columns["file"])
        new = np.zeros(count, bool)
        if not count:
            return new
        for name in self._identity:
            values = columns[name]
            new[1:] |= values[1:] != values[:-1]
            new[0] |= not self._last or values[0] != self._last[name]
        self._last = {name: columns[name][-1] for name in self._identity}
        # The owner of an identity is the result of its first row; all others with it are duplicates.
        firsts = np.flatnonzero(new)
        run = np.cumsum(new) - 1
        files = np.concatenate([[self._owner[0]], columns["file"][firsts]]).astype(np.int64)
        records = np.concatenate([[self._owner[1]], columns["record"][firsts]])
        owner_files, owner_records = files[run + 1], records[run + 1]
        self._owner = (int(owner_files[-1]), int(owner_records[-1]))
        return (owner_files != columns["file"]) | (owner_records != columns["record"])


def measurement_rows(part: pa.RecordBatch, version: int = 1) -> pa.RecordBatch:
    """Convert part rows to rows of a version of the table."""
    columns = {name: part[name].to_numpy() for name in part.schema.names}
    return _measurements(columns, np.arange(len(part)), version)


def _measurements(columns: dict[str, np.ndarray], kept: np.ndarray, version: int) -> pa.RecordBatch:
    schema = TABLE_VERSIONS[version]
    src = _packed(columns["src_high"][kept], columns["src_low"][kept])
    dst = _packed(columns["dst_high"][kept], columns["dst_low"][kept])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns["event_time"][kept], pa.int64()).cast(MEASUREMENTS.field("event_time").type),
            addresses.unpack(src),
            addresses.unpack(dst),
            pa.array(np.where(addresses.is_ipv4(src), 4, 6).astype(np.uint8)),
            pa.array(columns["rtt"][kept]),
            *(
                _nullable(columns[name][kept])
                for name in ("msm_id", "size", "packet_error_count", "probe_id")
            ),
            *([kind_names(columns["kind"][kept])] if "kind" in schema.names else []),
            *([_nullable(columns[THROUGHPUT][kept], pa.float64())] if THROUGHPUT in schema.names else []),
        ],
        schema=schema,
    )


def _packed(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return np.stack([high, low], axis=1).astype(">u8").view(np.uint8).reshape(-1, 16)


def _nullable(values: np.ndarray, kind: pa.DataType = pa.int64()) -> pa.Array:
    return pa.array(values, kind, mask=values == UNKNOWN)


class _DayWriter:
    """Writes sorted measurements to date=YYYY-MM-DD/part-0.parquet, in row groups of fixed length."""

    def __init__(self, out: Path, schema: pa.Schema):
        self._out, self._schema = out, schema
        self._day: int | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._file: pq.ParquetWriter | None = None
        self._aside: Path | None = None

    def write(self, days: np.ndarray, rows: pa.RecordBatch) -> None:
        starts = [0, *(np.flatnonzero(days[1:] != days[:-1]) + 1).tolist(), len(days)]
        for start, end in pairwise(starts):
            if start < end:
                self._write_day(int(days[start]), rows.slice(start, end - start))

    def _write_day(self, day: int, rows: pa.RecordBatch) -> None:
        if day != self._day:
            self.close()
            self._day = day
        while len(rows):
            room = ROW_GROUP_ROWS - self._held_rows
            self._held.append(rows.slice(0, room))
            self._held_rows += len(self._held[-1])
            rows = rows.slice(room)
            if self._held_rows == ROW_GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        if self._file is None:
            assert self._day is not None
            self._writing = whole_file(day_folder(self._out, self._day) / DAY_FILE)
            self._file = pq.ParquetWriter(self._writing.__enter__(), self._schema, compression="zstd")
        # One chunk, because chunk boundaries determine page boundaries.
        self._file.write_table(pa.Table.from_batches(self._held, self._schema).combine_chunks())
        self._held, self._held_rows = [], 0

    def close(self) -> None:
        """Finish the file of the current day."""
        self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None
            self._writing.__exit__(None, None, None)
        self._day = None

    def abandon(self) -> None:
        """Remove an unfinished file; does nothing after close()."""
        if self._file is not None:
            self._file.close()
            self._file = None
            error = RuntimeError("abandoned")
            with suppress(RuntimeError):
                self._writing.__exit__(type(error), error, None)


def day_folder(out: Path, day: int) -> Path:
    return out / f"date={datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day):%Y-%m-%d}"


def day_as_part(day: Path, part: Path) -> int:
    """Write the rows of a day's file as a part of file 0, in the same order; return their number."""
    rows = 0
    with (
        pq.ParquetFile(day) as file,
        whole_file(part) as aside,
        pq.ParquetWriter(aside, PART, compression="lz4") as writer,
    ):
        for batch in file.iter_batches(ROW_GROUP_ROWS):
            writer.write_batch(_part_of_table(batch, rows))
            rows += len(batch)
    return rows


def _part_of_table(batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
    count = len(batch)
    halves = []
    for name in ("src_addr", "dst_addr"):
        packed, good = addresses.pack(batch[name])
        if not good.all():
            wrong = batch[name][int(np.argmin(good))]
            raise PingError(f"the table to append to has a row whose {name} {wrong} is not an address")
        pairs = packed.view(">u8").astype(np.uint64)
        halves += [pairs[:, 0], pairs[:, 1]]
    kind = np.zeros(count, np.uint8)
    if "kind" in batch.schema.names:
        names = batch["kind"].cast(pa.string())
        kind = pc.index_in(names, pa.array(KINDS)).cast(pa.uint8()).to_numpy()
    throughput = np.full(count, float(UNKNOWN))
    if THROUGHPUT in batch.schema.names:
        throughput = batch[THROUGHPUT].fill_null(UNKNOWN)
    arrays = [
        batch["event_time"].cast(pa.int64()), *halves, batch["rtt"],
        *(batch[name].fill_null(UNKNOWN) for name in _OPTIONAL), kind, throughput,
        np.zeros(count, np.uint64), np.zeros(count, np.uint32),
        np.arange(before, before + count), np.zeros(count, np.int32),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(
        [
            array if isinstance(array, pa.Array) else pa.array(array, one.type)
            for array, one in zip(arrays, PART, strict=True)
        ],
        schema=PART,
    )


def write_rejects(files: Sequence[Sequence[tuple[str, int]]], out: Path, earlier: Path | None = None) -> None:
    """Join the rejects of all files, in the order of the inputs, into rejects/rejects.parquet.

    Args:
      files: For each file, its parts, which may be missing, and the number of lines before each part.
      earlier: The rejects.parquet of the table to which files are appended.
    """
    with (
        whole_file(out / REJECTS_FOLDER / REJECTS_FILE) as aside,
        pq.ParquetWriter(aside, REJECTS, compression="zstd") as writer,
    ):
        if earlier is not None:
            with pq.ParquetFile(earlier) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group).cast(REJECTS).combine_chunks())
        for parts in files:
            held = REJECTS.empty_table()
            for part, lines_before in parts:
                for batch in _reject_batches(Path(part), lines_before):
                    held = pa.concat_tables([held, batch])
                    while len(held) >= REJECT_GROUP_ROWS:
                        writer.write_table(held.slice(0, REJECT_GROUP_ROWS).combine_chunks())
                        held = held.slice(REJECT_GROUP_ROWS)
            if len(held):
                writer.write_table(held.combine_chunks())


def _reject_batches(part: Path, lines_before: int) -> Iterator[pa.Table]:
    if not part.exists():
        return
    place = REJECTS.get_field_index("record")
    with pq.ParquetFile(part) as file:
        for batch in file.iter_batches(REJECT_GROUP_ROWS):
            table = pa.Table.from_batches([batch], REJECTS)
            records = pa.chunked_array([pa.array(table["record"].to_numpy() + lines_before)])
            yield table.set_column(place, REJECTS.field(place), records)
