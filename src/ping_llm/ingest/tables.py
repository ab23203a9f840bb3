"""Parquet and CSV/TSV tables with the design's columns, under common names → columns.

A table is taken at its word: one row is one measurement, from the source it names. Only types are forgiven.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ping_llm.ingest import arrays
from ping_llm.ingest.columns import ACCEPTED, UNKNOWN, VERDICT, Columns
from ping_llm.schema import REQUIRED_COLUMNS, Reject

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
}  # fmt: skip

#: What stands for "no value" in a CSV field. NaN does not: it is a value, and a wrong one.
_NULLS = ["", "NULL", "null", "None", "NA", "N/A", "\\N"]

#: Rows of a Parquet file judged at a time.
_BATCH_ROWS = 65_536


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


def missing_columns(found: dict[str, int]) -> list[str]:
    return [name for name in REQUIRED_COLUMNS if name not in found]


def from_arrays(given: dict[str, pa.Array], count: int) -> Columns:
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
    return Columns(
        verdict=np.full(count, ACCEPTED, np.uint8),
        time_us=time_us, time_state=time_state,
        src=src, src_state=src_state, dst=dst, dst_state=dst_state, ip_version=version,
        rtt=rtt, rtt_state=rtt_state,
        msm_id=msm_id, size=size, packet_error_count=errors, probe_id=probe_id,
        fields_bad=msm_bad | size_bad | errors_bad | probe_bad,
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


def read_csv_block(records: Sequence[bytes], form: CsvFormat) -> Columns:
    """Columns of a block of CSV lines. A line with another number of fields is UNPARSABLE."""
    table = _parse_quickly(records, form)
    unparsable = np.zeros(len(records), bool)
    if table is None:
        table, unparsable = _parse_singly(records, form)
    columns = from_arrays(table, len(records))
    columns.verdict[unparsable] = VERDICT[Reject.UNPARSABLE]
    return columns


def _parse_quickly(records: Sequence[bytes], form: CsvFormat) -> dict[str, pa.Array] | None:
    """Arrow's parser; None if a line is odd in any way (a stray quote may swallow the lines after it)."""
    names = [str(place) for place in range(form.columns)]
    wanted = {name: str(place) for name, place in form.places.items()}
    data = b"\n".join(records)
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


def read_parquet(path: Path) -> Iterator[tuple[Columns, pa.RecordBatch]]:
    """Columns of a Parquet file, batch by batch, with the batch they come from.

    Raises:
      pa.ArrowException, OSError: the file is damaged.
      LookupError: a required column is missing; the text names it.
    """
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        names = file.schema_arrow.names
        places = match_columns(names)
        if absent := missing_columns(places):
            raise LookupError(absent_sentence(absent, names))
        wanted = {name: names[place] for name, place in places.items()}
        for batch in file.iter_batches(_BATCH_ROWS, columns=sorted(set(wanted.values()))):
            batch = _with_valid_text(batch)
            yield from_arrays({name: batch[own] for name, own in wanted.items()}, len(batch)), batch


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
    row: dict[str, Any] = batch.slice(index, 1).to_pylist()[0]
    return json.dumps(row, default=str, ensure_ascii=False).encode("utf-8", "replace")
