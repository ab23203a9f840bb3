"""The measurements that may be known at the time of a query: those that are strictly earlier.

Every method gets a `History` with the queries and does all its lookups through it, so the rule against
looking ahead is implemented in one place: `before` never returns a measurement at or after the query's time.
A query without a time may see all measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ping_llm.measurements.columns import NO_TIME, Columns, Queries
from ping_llm.measurements.ids import hashed, place_in

#: Number of calls with new pairs after which a history groups all its pairs.
_FEW_CALLS = 3


@dataclass(frozen=True)
class Ranges:
    """For query i, rows `low[i]:high[i]` of `columns` are the earlier ones of its group, oldest first."""

    columns: Columns
    low: np.ndarray
    high: np.ndarray

    @property
    def count(self) -> np.ndarray:
        out: np.ndarray = self.high - self.low
        return out


class History:
    """Measurements that queries may look back on.

    Args:
      columns: The measurements.
      limit: Largest number of measurements of the query's source to look back on, the newest ones; None: all.
        An array has a limit for each query of the call.
    """

    def __init__(self, columns: Columns, limit: int | np.ndarray | None = None):
        self._set(columns, columns.src, limit)

    @classmethod
    def of_contexts(cls, contexts: Sequence[Columns]) -> "History":
        """A history in which each query looks back on its own context, given by `Queries.owner`."""
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
        """The key that groups each query's measurements, uint8 [n, 16]: its source or its context."""
        return queries.src if queries.owner is None else _number_keys(queries.owner)

    def __len__(self) -> int:
        return len(self.columns)

    def for_some(self, rows: np.ndarray | slice) -> "History":
        """This history for some of the queries of a call, with their limits if each query has its own."""
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
        """Like `replies_of_pair`, failures included."""
        return self._of_pair("results", queries)

    def _of_pair(self, which: str, queries: Queries) -> Ranges:
        keys = hashed(queries.dst, after=hashed(self._of(queries)))
        grouped = self._pairs.get(which)
        if grouped is None or not grouped.has_all(keys):
            # Most histories get few calls: group only the pairs of the call at first, later all pairs.
            calls = 1 if grouped is None else grouped.calls + 1
            grouped = self._grouped(which, keys if calls <= _FEW_CALLS else None)
            self._pairs[which], grouped.calls = grouped, calls
        ranges = grouped.before(keys, queries.time)
        if self.limit is None:
            return ranges
        # Not older than the oldest measurement of the source within the limit; no rows if there is none.
        source = self.of_source(queries)
        if not len(self):
            return ranges
        oldest = source.columns.time[np.minimum(source.low, len(self) - 1)]
        start = grouped.position(keys, np.where(source.count > 0, oldest, queries.time))
        low = np.maximum(ranges.low, np.where(source.count > 0, start, ranges.high))
        return Ranges(ranges.columns, np.minimum(low, ranges.high), ranges.high)

    def _grouped(self, which: str, pairs: np.ndarray | None) -> "_Grouped":
        """Measurements grouped by pair, for some pairs (hashes) or for all (None)."""
        known, of_rows = self._by_source.columns, self._by_source.pairs
        asked = None if pairs is None else np.unique(pairs)
        chosen = np.ones(len(known), bool) if asked is None else place_in(asked, of_rows) >= 0
        if which == "replies":
            chosen &= known.replied
        return _Grouped(known.take(chosen), of_rows[chosen], asked)


class _Grouped:
    """Columns sorted by group and, within a group, by time.

    Args:
      keys: uint64 [n], a hash of the group of each row.
      asked: uint64, ascending: the groups of which all rows are included; None: all groups.
    """

    def __init__(self, columns: Columns, keys: np.ndarray, asked: np.ndarray | None = None):
        self._groups, ids = np.unique(keys, return_inverse=True)
        self._asked, self.calls = asked, 1
        # Rows of equal times are in an order that does not depend on the order of the input.
        order = np.lexsort((columns.rtt, hashed(columns.dst), columns.time, ids))
        self.columns = columns.take(order)
        self._starts = np.searchsorted(ids[order], np.arange(len(self._groups) + 1))
        # One ascending key for (group, rank of the time), so that each lookup is a single binary search.
        self._times = np.unique(columns.time)
        self._key = ids[order] * (len(self._times) + 1) + np.searchsorted(self._times, self.columns.time)

    @cached_property
    def pairs(self) -> np.ndarray:
        """uint64 [n]: a hash of each row's group and destination."""
        return hashed(self.columns.dst, after=np.repeat(self._groups, np.diff(self._starts)))

    def has_all(self, keys: np.ndarray) -> bool:
        """Whether all measurements of these groups are included."""
        return self._asked is None or bool((place_in(self._asked, keys) >= 0).all())

    def position(self, keys: np.ndarray, time: np.ndarray) -> np.ndarray:
        """For each query, the first row of its group not earlier than `time`; 0 for an unknown group."""
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
    """Numbers in the format of packed addresses, uint8 [n, 16]."""
    keys = np.zeros((len(numbers), 2), np.int64)
    keys[:, 0] = numbers
    return keys.view(np.uint8)
