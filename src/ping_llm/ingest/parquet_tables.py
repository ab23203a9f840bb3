"""Conversion of Parquet tables with any content to columns, batch by batch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ping_llm.ingest import arrays
from ping_llm.ingest.columns import ParsedRecords
from ping_llm.ingest.options import RAW_BYTES
from ping_llm.ingest.tables import (
    MissingColumns,
    absent_sentence,
    from_arrays,
    match_columns,
    missing_columns,
)
from ping_llm.measurements.schema import REQUIRED_COLUMNS

#: Largest number of Parquet rows per batch, and of bytes of text in them.
_BATCH_ROWS = 65_536
_BATCH_BYTES = 64 << 20

#: Limits of the unpacked size of a row group, and of its ratio to the file size; a row group above both is
#: refused. Real ones unpack to 20 times their size at most.
MAX_GROUP_BYTES, MAX_RATIO = 1 << 30, 1_000


def read_parquet(path: Path) -> Iterator[tuple[ParsedRecords, pa.RecordBatch]]:
    """Columns of a Parquet file, batch by batch, and each batch itself; raises like `parquet_arrays`."""
    for given, part in parquet_arrays(path, REQUIRED_COLUMNS):
        yield from_arrays(given, len(part)), part


def parquet_arrays(
    path: Path, required: Sequence[str]
) -> Iterator[tuple[dict[str, pa.Array], pa.RecordBatch]]:
    """Arrays of a Parquet file by our column names, batch by batch, with the batch they come from.

    Raises:
      pa.ArrowException, OSError, UnicodeDecodeError: the file is damaged.
      MissingColumns: a required column is missing; the text names it.
    """
    with _open(path) as file:
        names = file.schema_arrow.names
        places = match_columns(names)
        if absent := missing_columns(places, required):
            raise MissingColumns(absent_sentence(absent, names))
        wanted = {name: names[place] for name, place in places.items()}
        chosen = sorted(set(wanted.values()))
        _refuse_bomb(file.metadata, path.stat().st_size)
        texts = [name for name in chosen if _is_text(file.schema_arrow.field(name).type)]
        with _open(path, texts) as as_dictionaries:
            if any(
                _repeats_long_texts(as_dictionaries, group, texts) for group in range(file.num_row_groups)
            ):
                file = as_dictionaries
            for batch in file.iter_batches(_BATCH_ROWS, columns=chosen):
                batch = _with_short_text(_with_valid_text(batch))
                rows = _rows_at_once(batch)
                for start in range(0, len(batch), rows):
                    part = batch.slice(start, rows)
                    yield {name: part[own] for name, own in wanted.items()}, part


def _open(path: Path, as_dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, read_dictionary=list(as_dictionaries))


def _repeats_long_texts(file: pq.ParquetFile, number: int, texts: Sequence[str]) -> bool:
    """Whether a row group stores once a text that is longer than any valid value and may be in every row.

    Such row groups are read as dictionaries, as 130 kB in 65,536 rows would take 8.6 GB. Others are not,
    because that is slower.
    """
    group = file.metadata.row_group(number)
    stored = group.total_byte_size  # reading the sizes of columns may abort the process: see _refuse_bomb
    if not texts or not group.num_rows or stored * min(group.num_rows, _BATCH_ROWS) <= 8 * _BATCH_BYTES:
        return False
    # The first row comes with the whole dictionary.
    batch = next(file.iter_batches(1, row_groups=[number], columns=list(texts)), None)
    return batch is not None and max(map(_longest, batch.columns), default=0) > RAW_BYTES


def _longest(column: pa.Array) -> int:
    """Bytes of the longest text in a dictionary; 0 for other columns."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return 0
    return pc.max(pc.binary_length(column.dictionary)).as_py() or 0


def _is_text(kind: pa.DataType) -> bool:
    return arrays.is_text(kind) or pa.types.is_binary(kind)


def _refuse_bomb(metadata: pq.FileMetaData, packed: int) -> None:
    """Refuse a file in which a few bytes unpack to very many, because Arrow unpacks whole pages.

    This compares the total size of each row group with the size of the file: `RowGroupMetaData.column` of a
    damaged footer does not raise an error but aborts the process (pyarrow 26).

    Raises:
      pa.ArrowInvalid: a row group would take too much memory.
    """
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        unpacked = group.total_byte_size
        if unpacked > MAX_GROUP_BYTES and unpacked > MAX_RATIO * packed:
            raise pa.ArrowInvalid(
                f"row group {number} unpacks from {packed:,} to {unpacked:,} bytes; write it in smaller ones"
            )


def _with_short_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cut the texts of dictionaries to RAW_BYTES, the part that is kept of a reject."""
    for place, column in enumerate(batch.columns):
        if _longest(column) > RAW_BYTES:
            cut = pc.binary_slice(column.dictionary.cast(pa.binary()), 0, RAW_BYTES)
            mended = pa.DictionaryArray.from_arrays(column.indices, arrays.decoded_text(cut))
            batch = batch.set_column(place, batch.schema.field(place).with_type(mended.type), mended)
    return batch


def _rows_at_once(batch: pa.RecordBatch) -> int:
    """Number of rows that take at most _BATCH_BYTES even if each has the longest texts."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (1 + sum(map(_longest, batch.columns)))))


def _with_valid_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace invalid UTF-8 in strings, which Arrow does not check when it reads a file, by U+FFFD."""
    for place, column in enumerate(batch.columns):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (arrays.is_text(kind) or pa.types.is_string_view(kind)):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            mended = arrays.decoded_text(column)
            batch = batch.set_column(place, batch.schema.field(place).with_type(mended.type), mended)
    return batch


def row_text(batch: pa.RecordBatch, index: int) -> bytes:
    """A row of a table as text, for the rejects."""
    names = batch.schema.names
    row = {name: plain_value(column[index]) for name, column in zip(names, batch.columns, strict=True)}
    return json.dumps(row, default=str, ensure_ascii=False).encode("utf-8", "replace")


def plain_value(scalar: pa.Scalar) -> Any:
    """Convert any value for JSON; a reject may hold values for which Python has no type.

    Years outside 1 to 9999, unknown time zones and nanoseconds are written as numbers or NumPy dates. The
    text does not depend on pandas, which Arrow uses for nanoseconds if it is installed.
    """
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return plain_value(scalar.value)
    if pa.types.is_struct(kind):
        return {name: plain_value(value) for name, value in scalar.items()}
    if pa.types.is_nested(kind):
        return [plain_value(value) for value in scalar.values]
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return scalar.as_py()
    try:
        if getattr(kind, "unit", "") != "ns":
            return scalar.as_py()
        if pa.types.is_timestamp(kind) and scalar.value % 1_000 == 0:
            return pa.scalar(scalar.value // 1_000, pa.timestamp("us", kind.tz)).as_py()
    except (ValueError, OverflowError, LookupError):
        pass
    if pa.types.is_timestamp(kind):
        return f"{np.datetime64(scalar.value, kind.unit)} {kind.tz or ''}".rstrip()
    return f"{scalar.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).as_py()} {kind}"
