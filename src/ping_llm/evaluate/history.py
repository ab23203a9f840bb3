"""What may be known at the moment of a query: measurements that are strictly earlier.

A `History` is handed to every method beside the queries. All of them look things up through it, so the
rule of no peeking stands in one place: `before` never returns a measurement at or after the query's time.
"""

from dataclasses import dataclass

import numpy as np

from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.ids import Ids, pairs_of


@dataclass(frozen=True)
class Ranges:
    """For query i, the rows `low[i]:high[i]` of `columns` are the earlier ones of its group, oldest first."""

    columns: Columns
    low: np.ndarray
    high: np.ndarray

    @property
    def count(self) -> np.ndarray:
        return self.high - self.low


class History:
    """Measurements that a query may look back on.

    Args:
      columns: the measurements.
      limit: look back on the newest `limit` of the query's source at most; None is all of them. An array
        has a limit for each query of the call.
    """

    def __init__(self, columns: Columns, limit: int | np.ndarray | None = None):
        self.columns, self.limit = columns, limit
        self._by_source = _Grouped(columns, columns.src)
        self._pairs: dict[str, _Grouped] = {}

    def __len__(self) -> int:
        return len(self.columns)

    def limited(self, limit: int | np.ndarray | None) -> "History":
        out = object.__new__(History)
        out.__dict__.update(self.__dict__, limit=limit)
        return out

    def of_source(self, queries: Queries) -> Ranges:
        """Earlier measurements of the query's source, failures included."""
        return self._by_source.before(queries.src, queries.time, self.limit)

    def replies_of_pair(self, queries: Queries) -> Ranges:
        """Earlier replies of the query's source and destination, among the newest `limit` of the source."""
        return self._of_pair("replies", queries)

    def results_of_pair(self, queries: Queries) -> Ranges:
        """The same with failures."""
        return self._of_pair("results", queries)

    def _of_pair(self, which: str, queries: Queries) -> Ranges:
        if which not in self._pairs:
            part = self.columns if which == "results" else self.columns.take(self.columns.replied)
            self._pairs[which] = _Grouped(part, pairs_of(part.src, part.dst))
        grouped, keys = self._pairs[which], pairs_of(queries.src, queries.dst)
        ranges = grouped.before(keys, queries.time)
        if self.limit is None:
            return ranges
        # Not older than the oldest that the limit leaves of the source; nothing when it leaves nothing.
        source = self.of_source(queries)
        oldest = source.columns.time[np.minimum(source.low, max(len(self) - 1, 0))] if len(self) else 0
        low = np.maximum(ranges.low, grouped.position(keys, np.where(source.count > 0, oldest, queries.time)))
        return Ranges(ranges.columns, np.minimum(low, ranges.high), ranges.high)


class _Grouped:
    """Columns sorted by group and, in a group, by time."""

    def __init__(self, columns: Columns, keys: np.ndarray):
        self._ids = Ids(keys)
        ids = self._ids.of_rows
        order = np.lexsort((columns.time, ids))
        self.columns = columns.take(order)
        self._starts = np.searchsorted(ids[order], np.arange(len(self._ids) + 1))
        # One ascending key for (group, time), so that every lookup is a single binary search.
        self._origin = int(columns.time.min()) if len(columns) else 0
        self._span = int(columns.time.max()) - self._origin + 2 if len(columns) else 1
        self._key = ids[order] * self._span + (self.columns.time - self._origin)

    def position(self, keys: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Of each query, the first row of its group that is not earlier than `time`; 0 for a new group."""
        group = self._ids.find(keys)
        offset = np.clip(time - self._origin, 0, self._span - 1)
        found = np.searchsorted(self._key, np.maximum(group, 0) * self._span + offset, side="left")
        return np.where(group >= 0, found, 0)

    def before(self, keys: np.ndarray, time: np.ndarray, limit: int | np.ndarray | None = None) -> Ranges:
        group = self._ids.find(keys)
        high = self.position(keys, time)
        low = np.where(group >= 0, self._starts[np.maximum(group, 0)], 0)
        if limit is not None:
            low = np.maximum(low, high - limit)
        return Ranges(self.columns, low, high)
