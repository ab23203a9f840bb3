"""Conversion of tables with measurement columns under common names: CSV, TSV and JSON rows.

Rows are taken as they are: one row is one measurement, from the source in the row. Only types are converted.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv

from ping_llm.ingest import arrays
from ping_llm.ingest.columns import ParsedRecords
from ping_llm.ingest.options import MAX_RECORD_BYTES
from ping_llm.measurements.rules import ACCEPTED, UNKNOWN, VERDICT
from ping_llm.measurements.schema import PING, REQUIRED_COLUMNS, THROUGHPUT, Reject

#: Names a column may have, in lower case with _ for spaces, dashes and dots; the first one present is used.
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
    THROUGHPUT: (THROUGHPUT,),
}  # fmt: skip

#: Texts that mean "no value" in a CSV field. NaN is not one of them: it is an invalid value.
_NULLS = ["", "NULL", "null", "None", "NA", "N/A", "\\N"]

# A field may be as long as its record.
csv.field_size_limit(MAX_RECORD_BYTES)


class MissingColumns(Exception):
    """A table lacks a required column. The text names it."""


def match_columns(names: Sequence[str]) -> dict[str, int]:
    """Our column name → index in the table, for the columns that exist."""
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
    """Convert a table's arrays, by our names, to columns; absent optional columns are unknown."""

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
    throughput, throughput_bad = None, np.zeros(count, bool)
    if THROUGHPUT in given:
        throughput, throughput_bad = arrays.optional_floats(given[THROUGHPUT])
    return ParsedRecords(
        verdict=np.full(count, ACCEPTED, np.uint8),
        time_us=time_us, time_state=time_state,
        src=src, src_state=src_state, dst=dst, dst_state=dst_state, ip_version=version,
        rtt=rtt, rtt_state=rtt_state,
        msm_id=msm_id, size=size, packet_error_count=errors, probe_id=probe_id,
        fields_bad=msm_bad | size_bad | errors_bad | probe_bad | kind_bad | throughput_bad,
        kind=kind, throughput_mbps=throughput,
    )  # fmt: skip


@dataclass(frozen=True)
class CsvFormat:
    """The format of a CSV file, from its first line."""

    delimiter: str
    columns: int
    places: dict[str, int]


def csv_format(first_line: bytes) -> CsvFormat | None:
    """Recognise a header: at least two of the four required columns are present, by name."""
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
    """Convert a block of CSV lines to columns. A line with a wrong number of fields is UNPARSABLE."""
    return _judged(*csv_arrays(records, form))


def csv_arrays(records: Sequence[bytes], form: CsvFormat) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The fields of CSV lines by our column names, and a mask of lines with a wrong number of fields."""
    table = _parse_quickly(records, form)
    return (table, np.zeros(len(records), bool)) if table is not None else _parse_singly(records, form)


def _judged(table: dict[str, pa.Array], unparsable: np.ndarray) -> ParsedRecords:
    columns = from_arrays(table, len(unparsable))
    columns.verdict[unparsable] = VERDICT[Reject.UNPARSABLE]
    return columns


#: Keys of RIPE Atlas results that rows of a table do not have.
_OF_ATLAS = ("result", "fw", "sent", "rcvd", "avg")


def json_keys(first: bytes) -> dict[str, str] | None:
    """Our column name → key, if the first JSON object is a row of a table; None otherwise."""
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
    """Convert a block of JSON objects that are rows of a table to columns."""
    return _judged(*json_arrays(records, keys))


def json_arrays(records: Sequence[bytes], keys: dict[str, str]) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The values of JSON objects as texts by our column names, and a mask of records that are not objects."""
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
    """Parse CSV lines with Arrow; None if a line is unusual, so that no line affects the ones around it.

    For Arrow a carriage return ends a line, and an unmatched quote includes the lines after it. So text with
    these is not parsed by Arrow; the only quotes allowed are those around a whole field.
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
    """Pattern of a whole field in quotes, without quotes inside."""
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


def absent_sentence(absent: Sequence[str], names: Sequence[str]) -> str:
    known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return (
        f"the table has no column for {' and '.join(absent)} (it has {known}); docs/ingest.md lists the names"
    )
