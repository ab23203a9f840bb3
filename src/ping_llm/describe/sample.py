"""A uniform random sample of measurements, the same for the same seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError
from ping_llm.ingest import read_measurements
from ping_llm.ingest.options import find_files
from ping_llm.measurements.parquet import ParquetInput, open_input
from ping_llm.measurements.schema import KINDS, LAST_VERSION, PING, TABLE_VERSIONS, THROUGHPUT


def sample(places: Sequence[str], count: int, seed: int = 0) -> pa.Table:
    """Return up to `count` measurements by time, with the columns of the measurements table.

    Columns `kind` and `throughput_mbps` of Parquet are kept. Raw input gives the lowest version of the table
    that holds all values of the drawn measurements.
    """
    find_files(places)  # raises if a path does not exist
    try:
        data = open_input(places)
    except PingError:
        drawn = _from_stream(read_measurements(places, version=LAST_VERSION), count, seed)
        if drawn[THROUGHPUT].null_count == len(drawn):
            only_pings = set(drawn["kind"].to_pylist()) <= {KINDS[PING]}
            schema = TABLE_VERSIONS[1 if only_pings else 2]
            drawn = drawn.select(schema.names).replace_schema_metadata(schema.metadata)
    else:
        drawn = _from_parquet(data, count, seed)
    if not len(drawn):
        raise PingError(f"{' '.join(places)} has no measurement; `ping-llm ingest` says why.")
    return drawn.sort_by([("event_time", "ascending"), ("src_addr", "ascending"), ("dst_addr", "ascending")])


def _from_parquet(data: ParquetInput, count: int, seed: int) -> pa.Table:
    """Draw by row number: only the row groups that hold a drawn row are read."""
    count = min(count, data.rows)
    chosen = np.sort(np.random.default_rng(seed).choice(data.rows, count, replace=False))
    schema = TABLE_VERSIONS[data.version]
    pieces = [schema.empty_table()]
    before = 0
    for path, rows in zip(data.files, data.rows_of, strict=True):
        wanted = chosen[(chosen >= before) & (chosen < before + rows)] - before
        if len(wanted):
            pieces.append(_rows(path, wanted, schema))
        before += rows
    return pa.concat_tables(pieces)


def _rows(path: Path, wanted: np.ndarray, schema: pa.Schema) -> pa.Table:
    pieces = []
    with pq.ParquetFile(path) as file:
        before = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            here = wanted[(wanted >= before) & (wanted < before + rows)] - before
            if len(here):
                pieces.append(_in_schema(file.read_row_group(group).take(pa.array(here)), schema))
            before += rows
    return pa.concat_tables(pieces)


def _in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of the table: a missing kind is ping, other missing optional ones are null."""
    columns = []
    for field in schema:
        if field.name == "kind":
            given = rows["kind"].cast(pa.string()) if "kind" in rows.column_names else None
            nulls = pa.nulls(len(rows), pa.string())
            columns.append((nulls if given is None else given).fill_null(KINDS[PING]))
        elif field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        elif field.name == "ip_version":
            version = [6 if ":" in text else 4 for text in rows["src_addr"].to_pylist()]
            columns.append(pa.chunked_array([pa.array(version, pa.uint8())]))
        else:
            columns.append(pa.chunked_array([pa.nulls(len(rows), field.type)]))
    return pa.Table.from_arrays(columns, schema=schema)


def _from_stream(batches: Iterable[pa.RecordBatch], count: int, seed: int) -> pa.Table:
    """Draw a number per row; the rows with the smallest numbers are the sample."""
    random = np.random.default_rng(seed)
    schema = TABLE_VERSIONS[LAST_VERSION]
    drawn = schema.empty_table()
    numbers = np.zeros(0)
    for batch in batches:
        drawn = pa.concat_tables([drawn, pa.Table.from_batches([batch], schema)])
        numbers = np.append(numbers, random.random(len(batch)))
        if len(numbers) > count:
            smallest = np.sort(np.argpartition(numbers, count)[:count])
            drawn, numbers = drawn.take(pa.array(smallest)), numbers[smallest]
    return drawn
