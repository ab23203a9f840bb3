"""Where in time the splits begin and end, by exact quantiles of the times, out of core."""

import duckdb
import numpy as np

from ping_llm.errors import PingError
from ping_llm.schema import END_TIME_US
from ping_llm.shards.assign import TimeCuts
from ping_llm.shards.measurements import ParquetInput
from ping_llm.shards.options import ShardOptions

_HOUR_US = 3_600 * 10**6


def time_range(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> tuple[int, int]:
    """First and last time in µs."""
    query = f"SELECT min(epoch_us(event_time)), max(epoch_us(event_time)) FROM {data.scan}"
    first, last = connection.sql(query + " WHERE isfinite(event_time)").fetchall()[0]
    return first or 0, last or 0


def find_cuts(connection: duckdb.DuckDBPyConnection, data: ParquetInput, options: ShardOptions) -> TimeCuts:
    """Cuts at which the splits have their fractions of the rows, as nearly as equal times allow.

    Counting by hour first, then by time within the hour of a cut, holds a few thousand numbers instead of
    sorting all times.
    """
    hours = _histogram(connection, data, f"epoch_us(event_time) // {_HOUR_US}", "isfinite(event_time)")
    ends = np.cumsum(hours[:, 1])
    cuts = [0]
    for fraction in np.cumsum(options.fractions)[:-1].tolist():
        wanted = round(fraction * int(ends[-1]))
        position = int(np.searchsorted(ends, wanted, side="left").clip(0, len(hours) - 1))
        hour = int(hours[position, 0])
        inside = f"epoch_us(event_time) // {_HOUR_US} = {hour}"
        times = _histogram(connection, data, "epoch_us(event_time)", inside)
        before = int(ends[position] - hours[position, 1])
        # Rows before each of these times, and before the end of the hour.
        candidates = np.append(times[:, 0], (hour + 1) * _HOUR_US)
        rows_before = before + np.append(0, np.cumsum(times[:, 1]))
        cuts.append(int(candidates[np.abs(rows_before - wanted).argmin()]))
    cuts.append(END_TIME_US)
    begins = np.array(cuts[:-1], np.int64)
    begins[1:] += options.gap_seconds * 10**6
    ends_us = np.array(cuts[1:], np.int64)
    for index in options.used:
        if options.gap_seconds and begins[index] >= ends_us[index]:
            raise PingError(
                f"The gap of {options.gap_seconds:,} s leaves no time for the split {options.splits[index]}: "
                "give a smaller --gap or a larger fraction."
            )
    return TimeCuts(begins, ends_us)


def _histogram(connection: duckdb.DuckDBPyConnection, data: ParquetInput, key: str, where: str) -> np.ndarray:
    query = f"SELECT {key} AS k, count(*) AS n FROM {data.scan} WHERE {where} GROUP BY k ORDER BY k"
    found = connection.sql(query).fetchnumpy()
    return np.stack([np.asarray(found["k"], np.int64), np.asarray(found["n"], np.int64)], axis=1)
