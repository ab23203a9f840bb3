"""`network_parquet`: rows made in memory from a table of measurements, for small data.

80 bytes a measurement stay in memory, and nothing is written. From some ten million measurements on, build
rows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ping_llm.addresses import is_ipv4, pack
from ping_llm.contexts.memory import MemoryRows
from ping_llm.errors import PingError
from ping_llm.rows.block import RowBlock
from ping_llm.rows.inputs import find_files
from ping_llm.schema import END_TIME_US, MAX_RTT_MS, NO_REPLY, OPTIONAL_COLUMNS, REQUIRED_COLUMNS

#: 80 bytes each: 4 GB.
MAX_MEASUREMENTS = 50_000_000


def rows_of_parquet(path: str | Path) -> MemoryRows:
    """One row a source, in time order; sources in the order of their bytes."""
    path = Path(path)
    files = [str(file.path) for file in find_files([path])]
    try:
        dataset = ds.dataset(files, format="parquet", partitioning=None)
    except (OSError, pa.ArrowInvalid) as error:
        raise PingError(
            f"cannot read measurements from {path}: {error}; give a Parquet file or folder"
        ) from error
    names = set(dataset.schema.names)
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise PingError(
            f"{path} has no column {', '.join(missing)}: not measurements as `ping-llm ingest` makes them"
        )
    count = dataset.count_rows()
    if not 0 < count <= MAX_MEASUREMENTS:
        raise PingError(
            f"{path} has {count:,} measurements; network_parquet takes 1 to {MAX_MEASUREMENTS:,}: "
            f"build rows (`ping-llm rows build {path} --out DIR`) and use probe_chunks"
        )
    table = dataset.to_table([*REQUIRED_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in names)])
    return MemoryRows(_block(table, path))


def _block(table: pa.Table, path: Path) -> RowBlock:
    src, good_src = pack(table["src_addr"].combine_chunks())
    dst, good_dst = pack(table["dst_addr"].combine_chunks())
    times = table["event_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    time = pc.fill_null(times, -1).to_numpy()
    rtt = pc.fill_null(table["rtt"].cast(pa.float64()), np.nan).to_numpy()
    numbers = {name: _numbers(table, name) for name in ("msm_id", "probe_id", "size", "packet_error_count")}
    for what, good in (
        ("address", good_src & good_dst & (is_ipv4(src) == is_ipv4(dst))),
        ("time", (time >= 0) & (time < END_TIME_US)),
        ("RTT", (rtt == NO_REPLY) | ((rtt >= 0) & (rtt <= MAX_RTT_MS))),
    ):
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            ends = f"{table['src_addr'][row]} to {table['dst_addr'][row]}"
            raise PingError(
                f"measurement {row} of {path} has a bad {what} ({ends}, {times[row]} µs, {rtt[row]} ms); "
                "`ping-llm ingest` and `ping-llm rows build` set such ones aside"
            )
    # Every column decides, so that the order of the files does not.
    words = np.ascontiguousarray(src).view(">u8").reshape(-1, 2)
    to = np.ascontiguousarray(dst).view(">u8").reshape(-1, 2)
    keys = (*reversed(list(numbers.values())), rtt, to[:, 1], to[:, 0], time, words[:, 1], words[:, 0])
    order = np.lexsort(keys)
    sorted_src = words[order]
    begins = np.flatnonzero(np.r_[True, (sorted_src[1:] != sorted_src[:-1]).any(axis=1)])
    counts = np.diff(np.r_[begins, len(order)])
    return RowBlock.from_columns(
        src[order][begins],
        counts,
        time[order],
        dst[order],
        rtt[order],
        **{name: values[order] for name, values in numbers.items()},
    )


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        return np.full(len(table), -1, np.int64)
    return pc.fill_null(table[name].cast(pa.int64()), -1).to_numpy()
