"""Parquet and CSV/TSV tables with the design's columns, under common names → columns.

A table is taken at its word: one row is one measurement, from the source it names. Only types are forgiven.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ping_llm.ingest import arrays
from ping_llm.ingest.columns import ParsedRecords
from ping_llm.ingest.options import MAX_RECORD_BYTES, RAW_BYTES
from ping_llm.measurements.rules import ACCEPTED, UNKNOWN, VERDICT
from ping_llm.measurements.schema import PING, REQUIRED_COLUMNS, Reject

#: Names a column may have, in lower case with _ for spaces, dashes and dots; the first one present is taken.
NAMES = {
    "event_time": ("event_time", "timestamp", "time", "ts", "datetime", "date_time", "start_time", "created"),
    "src_addr": ("src_addr", "src", "src_ip", "source", "source_ip", "source_addr", "source_address", "from"),
    "dst_addr": (
        "dst_addr", "dst", "dst_ip", "dest", "destination", "destination_ip", "destination_addr",
        "destination_address", "dest_ip", "target", "target_ip", "to",
    ),
    "rtt": ("rtt", "rtt_ms", "avg", "rtt_avg", "avg_rtt", "mean_rtt", "latency", "latency_ms", "ping_ms"),
    "ip_version": ("ip_version", "af", "address_family", "version"),
    "msm_id": ("msm_id", "measurement_id", "msm"),
    "size": ("size", "packet_size"),
    "packet_error_count": ("packet_error_count", "packet_errors", "errors", "lost"),
    "probe_id": ("probe_id", "prb_id", "probe"),
    "kind": ("kind",),
}  # fmt: skip

#: What stands for "no value" in a CSV field. NaN does not: it is a value, and a wrong one.
_NULLS = ["", "NULL", "null", "None", "NA", "N/A", "\\N"]

# A field may be as long as its record.
csv.field_size_limit(MAX_RECORD_BYTES)

#: Rows of a Parquet file judged at a time, and bytes of text that they may have.
_BATCH_ROWS = 65_536
_BATCH_BYTES = 64 << 20

#: A row group that unpacks to more than both is refused. Real ones unpack to 20 times their size at most.
MAX_GROUP_BYTES, MAX_RATIO = 1 << 30, 1_000


class MissingColumns(Exception):
    """A table lacks a required column. The text names it."""


def match_columns(names: Sequence[str]) -> dict[str, int]:
    """Our column name → place in the table, for those that are there."""
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(_normal(name), place)
    found = {}
    for column, candidates in NAMES.items():
        for candidate in candidates:
            if candidate in places:
                found[column] = places[candidate]
                break
    return found


def _normal(name: str) -> str:
    return name.strip().strip('"').strip().lower().replace(" ", "_").replace("-", "_").replace(".", "_")


def missing_columns(found: Mapping[str, Any], required: Sequence[str] = REQUIRED_COLUMNS) -> list[str]:
    return [name for name in required if name not in found]


def from_arrays(given: dict[str, pa.Array], count: int) -> ParsedRecords:
    """Columns of a table's arrays by our names; absent optional ones are unknown."""

    def optional(name: str) -> tuple[np.ndarray, np.ndarray]:
        if name in given:
            return arrays.integers(given[name])
        return np.full(count, UNKNOWN, np.int64), np.zeros(count, bool)

    time_us, time_state = arrays.times(given["event_time"])
    src, src_state = arrays.packed_addresses(given["src_addr"])
    dst, dst_state = arrays.packed_addresses(given["dst_addr"])
    rtt, rtt_state = arrays.floats(given["rtt"])
    version, version_bad = optional("ip_version")
    version[version_bad] = 0
    msm_id, msm_bad = optional("msm_id")
    size, size_bad = optional("size")
    errors, errors_bad = optional("packet_error_count")
    probe_id, probe_bad = optional("probe_id")
    kind, kind_bad = np.full(count, PING, np.uint8), np.zeros(count, bool)
    if "kind" in given:
        kind, kind_bad = arrays.kinds(given["kind"])
    return ParsedRecords(
        verdict=np.full(count, ACCEPTED, np.uint8),
        time_us=time_us, time_state=time_state,
        src=src, src_state=src_state, dst=dst, dst_state=dst_state, ip_version=version,
        rtt=rtt, rtt_state=rtt_state,
        msm_id=msm_id, size=size, packet_error_count=errors, probe_id=probe_id,
        fields_bad=msm_bad | size_bad | errors_bad | probe_bad | kind_bad,
        kind=kind,
    )  # fmt: skip


@dataclass(frozen=True)
class CsvFormat:
    """What the first line of a CSV file says."""

    delimiter: str
    columns: int
    places: dict[str, int]


def csv_format(first_line: bytes) -> CsvFormat | None:
    """Recognise a header: at least two of the four required columns, by name."""
    try:
        text = first_line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        return None
    delimiter = max(",\t;|", key=text.count)
    try:
        names = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return None
    places = match_columns(names)
    if len(REQUIRED_COLUMNS) - len(missing_columns(places)) < 2:
        return None
    return CsvFormat(delimiter, len(names), places)


def read_csv_block(records: Sequence[bytes], form: CsvFormat) -> ParsedRecords:
    """Columns of a block of CSV lines. A line with another number of fields is UNPARSABLE."""
    return _judged(*csv_arrays(records, form))


def csv_arrays(records: Sequence[bytes], form: CsvFormat) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Texts of CSV lines by our column names, and which lines have another number of fields."""
    table = _parse_quickly(records, form)
    return (table, np.zeros(len(records), bool)) if table is not None else _parse_singly(records, form)


def _judged(table: dict[str, pa.Array], unparsable: np.ndarray) -> ParsedRecords:
    columns = from_arrays(table, len(unparsable))
    columns.verdict[unparsable] = VERDICT[Reject.UNPARSABLE]
    return columns


#: Keys of RIPE Atlas results that a table's rows do not have.
_OF_ATLAS = ("result", "fw", "sent", "rcvd", "avg")


def json_keys(first: bytes) -> dict[str, str] | None:
    """Our column name → key, if the first of several JSON objects is a row of a table; None for others."""
    try:
        record = orjson.loads(first)
    except ValueError:
        return None
    if not isinstance(record, dict) or any(key in record for key in _OF_ATLAS):
        return None
    names = list(record)
    keys = {column: names[place] for column, place in match_columns(names).items()}
    return keys if {"src_addr", "dst_addr"} <= set(keys) else None


def read_json_block(records: Sequence[bytes], keys: dict[str, str]) -> ParsedRecords:
    """Columns of a block of JSON objects that are rows of a table."""
    return _judged(*json_arrays(records, keys))


def json_arrays(records: Sequence[bytes], keys: dict[str, str]) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Values of JSON objects as texts by our column names, and which records are no objects."""
    unparsable = np.zeros(len(records), bool)
    values: dict[str, list[str | None]] = {name: [] for name in keys}
    for index, record in enumerate(records):
        try:
            row = orjson.loads(record)
        except ValueError:
            row = None
        unparsable[index] = not isinstance(row, dict)
        for name, key in keys.items():
            value = None if unparsable[index] else row.get(key)
            values[name].append(value if value is None or isinstance(value, str) else str(value))
    return {name: pa.array(column, pa.string()) for name, column in values.items()}, unparsable


def _parse_quickly(records: Sequence[bytes], form: CsvFormat) -> dict[str, pa.Array] | None:
    """Arrow's parser; None if a line is odd in any way, so that no line depends on those beside it.

    To Arrow a carriage return ends a line, and a stray quote swallows the lines after it. It gets neither,
    only fields that are quoted as a whole, without quotes inside.
    """
    names = [str(place) for place in range(form.columns)]
    wanted = {name: str(place) for name, place in form.places.items()}
    data = b"\n".join(records)
    if b"\r" in data:
        data = b"\n".join([record.rstrip(b"\r") for record in records])
        if b"\r" in data:
            return None
    if b'"' in data and len(_quoted(form.delimiter).findall(data)) * 2 != data.count(b'"'):
        return None
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
            pyarrow.csv.ParseOptions(delimiter=form.delimiter, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=sorted(set(wanted.values())),
                strings_can_be_null=True,
                null_values=_NULLS,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(records):
        return None
    return {name: table[place].combine_chunks() for name, place in wanted.items()}


@cache
def _quoted(delimiter: str) -> re.Pattern[bytes]:
    """A whole field in quotes, without quotes inside."""
    edge = re.escape(delimiter.encode())
    return re.compile(rb'(?:(?<=%b)|(?<=\n)|\A)"[^"\n]*"(?=%b|\n|\Z)' % (edge, edge))


def _parse_singly(records: Sequence[bytes], form: CsvFormat) -> tuple[dict[str, pa.Array], np.ndarray]:
    unparsable = np.zeros(len(records), bool)
    values: dict[str, list[str | None]] = {name: [] for name in form.places}
    for index, record in enumerate(records):
        try:
            text = record.decode("utf-8", "replace").rstrip("\r").replace("\r", " ").replace("\0", "\ufffd")
            fields = next(csv.reader([text], delimiter=form.delimiter), [])
        except csv.Error:
            fields = []
        unparsable[index] = len(fields) != form.columns
        for name, place in form.places.items():
            field = "" if unparsable[index] else fields[place]
            values[name].append(None if field in _NULLS else field)
    return {name: pa.array(column, pa.string()) for name, column in values.items()}, unparsable


def read_parquet(path: Path) -> Iterator[tuple[ParsedRecords, pa.RecordBatch]]:
    """Columns of a Parquet file, batch by batch, with the batch they come from; raises as the next."""
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
    """Has a row group a text that is stored once, is longer than any value, and may be in every row?

    Such are read as dictionaries: 130 kB in 65,536 rows would take 8.6 GB. Others are not: it is slower.
    """
    group = file.metadata.row_group(number)
    stored = group.total_byte_size  # what its columns say of themselves may end the process: see _refuse_bomb
    if not texts or not group.num_rows or stored * min(group.num_rows, _BATCH_ROWS) <= 8 * _BATCH_BYTES:
        return False
    # The first row comes with the whole dictionary.
    batch = next(file.iter_batches(1, row_groups=[number], columns=list(texts)), None)
    return batch is not None and max(map(_longest, batch.columns), default=0) > RAW_BYTES


def _longest(column: pa.Array) -> int:
    """Bytes of the longest text of a dictionary; 0 for any other column."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return 0
    return pc.max(pc.binary_length(column.dictionary)).as_py() or 0


def _is_text(kind: pa.DataType) -> bool:
    return arrays.is_text(kind) or pa.types.is_binary(kind)


def _refuse_bomb(metadata: pq.FileMetaData, packed: int) -> None:
    """Raise if a few bytes stand for very many: Arrow unpacks whole pages.

    By the group's own total and the size of the file: `RowGroupMetaData.column` of a damaged footer does not
    raise but aborts the process (pyarrow 26).

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
    """Dictionaries with texts cut to RAW_BYTES: no more of them would be kept as a reject."""
    for place, column in enumerate(batch.columns):
        if _longest(column) > RAW_BYTES:
            cut = pc.binary_slice(column.dictionary.cast(pa.binary()), 0, RAW_BYTES)
            mended = pa.DictionaryArray.from_arrays(column.indices, arrays.decoded_text(cut))
            batch = batch.set_column(place, batch.schema.field(place).with_type(mended.type), mended)
    return batch


def _rows_at_once(batch: pa.RecordBatch) -> int:
    """Rows that take at most _BATCH_BYTES even if each has the longest texts."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (1 + sum(map(_longest, batch.columns)))))


def _with_valid_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Arrow takes a file's word that its strings are UTF-8; what is not gets U+FFFD."""
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


def absent_sentence(absent: Sequence[str], names: Sequence[str]) -> str:
    known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return (
        f"the table has no column for {' and '.join(absent)} (it has {known}); docs/ingest.md lists the names"
    )


def row_text(batch: pa.RecordBatch, index: int) -> bytes:
    """A row of a table as text, for the rejects."""
    names = batch.schema.names
    row = {name: plain_value(column[index]) for name, column in zip(names, batch.columns, strict=True)}
    return json.dumps(row, default=str, ensure_ascii=False).encode("utf-8", "replace")


def plain_value(scalar: pa.Scalar) -> Any:
    """A value for JSON, whatever it is: a reject may hold what Python has no type for.

    Years outside 1 to 9999, unknown time zones and nanoseconds are written as numbers and dates of NumPy. The
    text does not depend on pandas, which Arrow uses for nanoseconds where it is installed.
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
