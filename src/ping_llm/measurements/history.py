"""What may be known at the moment of a query: measurements that are strictly earlier.

A `History` is handed to every method beside the queries. All of them look things up through it, so the
rule of no peeking stands in one place: `before` never returns a measurement at or after the query's time. A
query without a time may look at everything: there is no before and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ping_llm.measurements.columns import NO_TIME, Columns, Queries
from ping_llm.measurements.ids import hashed, place_in

#: After so many calls about other pairs, a history groups all its pairs.
_FEW_CALLS = 3


@dataclass(frozen=True)
class Ranges:
    """For query i, the rows `low[i]:high[i]` of `columns` are the earlier ones of its group, oldest first."""

    columns: Columns
    low: np.ndarray
    high: np.ndarray

    @property
    def count(self) -> np.ndarray:
        out: np.ndarray = self.high - self.low
        return out


class History:
    """Measurements that a query may look back on.

    Args:
      columns: the measurements.
      limit: look back on the newest `limit` of the query's source at most; None is all of them. An array
        has a limit for each query of the call.
    """

    def __init__(self, columns: Columns, limit: int | np.ndarray | None = None):
        self._set(columns, columns.src, limit)

    @classmethod
    def of_contexts(cls, contexts: Sequence[Columns]) -> "History":
        """Each query looks back on a context of its own: `Queries.owner` says which."""
        out = cls.__new__(cls)
        counts = [len(context) for context in contexts]
        keys = _number_keys(np.repeat(np.arange(len(contexts)), counts))
        out._set(Columns.concatenate([Columns.empty(), *contexts]), keys, None)
        return out

    def _set(self, columns: Columns, keys: np.ndarray, limit: int | np.ndarray | None) -> None:
        self.columns, self.limit = columns, limit
        self._by_source = _Grouped(columns, hashed(keys))
        self._pairs: dict[str, _Grouped] = {}

    def _of(self, queries: Queries) -> np.ndarray:
        """What each query's measurements are grouped by."""
        return queries.src if queries.owner is None else _number_keys(queries.owner)

    def __len__(self) -> int:
        return len(self.columns)

    def for_some(self, rows: np.ndarray | slice) -> "History":
        """The same for some of the queries of a call: with their limits, where each query has its own."""
        return self.limited(self.limit[rows]) if isinstance(self.limit, np.ndarray) else self

    def limited(self, limit: int | np.ndarray | None) -> "History":
        out = object.__new__(History)
        out.__dict__.update(self.__dict__, limit=limit)
        return out

    def of_source(self, queries: Queries) -> Ranges:
        """Earlier measurements of the query's source, failures included."""
        return self._by_source.before(hashed(self._of(queries)), queries.time, self.limit)

    def replies_of_pair(self, queries: Queries) -> Ranges:
        """Earlier replies of the query's source and destination, among the newest `limit` of the source."""
        return self._of_pair("replies", queries)

    def results_of_pair(self, queries: Queries) -> Ranges:
        """The same with failures."""
        return self._of_pair("results", queries)

    def _of_pair(self, which: str, queries: Queries) -> Ranges:
        keys = hashed(queries.dst, after=hashed(self._of(queries)))
        grouped = self._pairs.get(which)
        if grouped is None or not grouped.has_all(keys):
            # Most histories are asked few times: only the pairs of the call are grouped, later all of them.
            calls = 1 if grouped is None else grouped.calls + 1
            grouped = self._grouped(which, keys if calls <= _FEW_CALLS else None)
            self._pairs[which], grouped.calls = grouped, calls
        ranges = grouped.before(keys, queries.time)
        if self.limit is None:
            return ranges
        # Not older than the oldest that the limit leaves of the source; nothing when it leaves nothing.
        source = self.of_source(queries)
        if not len(self):
            return ranges
        oldest = source.columns.time[np.minimum(source.low, len(self) - 1)]
        start = grouped.position(keys, np.where(source.count > 0, oldest, queries.time))
        low = np.maximum(ranges.low, np.where(source.count > 0, start, ranges.high))
        return Ranges(ranges.columns, np.minimum(low, ranges.high), ranges.high)

    def _grouped(self, which: str, pairs: np.ndarray | None) -> "_Grouped":
        """Measurements by pair, those of some pairs or of all."""
        known, of_rows = self._by_source.columns, self._by_source.pairs
        asked = None if pairs is None else np.unique(pairs)
        chosen = np.ones(len(known), bool) if asked is None else place_in(asked, of_rows) >= 0
        if which == "replies":
            chosen &= known.replied
        return _Grouped(known.take(chosen), of_rows[chosen], asked)


class _Grouped:
    """Columns sorted by group and, in a group, by time.

    Args:
      keys: uint64 [n], a hash of the group of each row.
      asked: uint64, ascending: the groups that all rows were searched for; None: all.
    """

    def __init__(self, columns: Columns, keys: np.ndarray, asked: np.ndarray | None = None):
        self._groups, ids = np.unique(keys, return_inverse=True)
        self._asked, self.calls = asked, 1
        # Equal times in an order that does not depend on how the measurements came.
        order = np.lexsort((columns.rtt, hashed(columns.dst), columns.time, ids))
        self.columns = columns.take(order)
        self._starts = np.searchsorted(ids[order], np.arange(len(self._groups) + 1))
        # One ascending key for (group, rank of the time), so that every lookup is a single binary search.
        self._times = np.unique(columns.time)
        self._key = ids[order] * (len(self._times) + 1) + np.searchsorted(self._times, self.columns.time)

    @cached_property
    def pairs(self) -> np.ndarray:
        """uint64 [n]: a hash of each row's group and destination."""
        return hashed(self.columns.dst, after=np.repeat(self._groups, np.diff(self._starts)))

    def has_all(self, keys: np.ndarray) -> bool:
        """Whether it has all measurements of these groups."""
        return self._asked is None or bool((place_in(self._asked, keys) >= 0).all())

    def position(self, keys: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Of each query, the first row of its group that is not earlier than `time`; 0 for a new group."""
        group = place_in(self._groups, keys)
        rank = np.where(time == NO_TIME, len(self._times), np.searchsorted(self._times, time))
        found = np.searchsorted(self._key, np.maximum(group, 0) * (len(self._times) + 1) + rank)
        return np.where(group >= 0, found, 0)

    def before(self, keys: np.ndarray, time: np.ndarray, limit: int | np.ndarray | None = None) -> Ranges:
        group = place_in(self._groups, keys)
        high = self.position(keys, time)
        low = np.where(group >= 0, self._starts[np.maximum(group, 0)], 0)
        if limit is not None:
            low = np.maximum(low, high - limit)
        return Ranges(self.columns, low, high)


def _number_keys(numbers: np.ndarray) -> np.ndarray:
    """Numbers in the place of addresses, uint8 [n, 16]."""
    keys = np.zeros((len(numbers), 2), np.int64)
    keys[:, 0] = numbers
    return keys.view(np.uint8)
