"""The pair's own past: its last value, medians of its last 8 and of all, a weighted mean, its hour of the day.

The honest opponent wherever a pair has been measured before: paths persist for hours to days (Paxson,
"End-to-end routing behavior in the Internet", SIGCOMM 1996), so the last RTT is hard to beat. How far it
will be off is learned by how many values the past holds and how much they vary. A pair without a past is
answered with its destination's median, else the global one.
"""

from typing import ClassVar

import numpy as np
from numba import njit

from ping_llm.evaluate.baselines.base import PointBaseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids

#: "The last few" everywhere here.
RECENT = 8

#: Weight of the newest value in the exponentially weighted mean; of the log, so that one spike does little.
NEWEST_WEIGHT = 0.3

# Groups of equally good predictions: history of 1, 2–3, 4–7, 8+ values × spread of the recent ones.
_COUNT_EDGES = np.array([2, 4, 8])
_SPREAD_EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.3])
_HISTORY_GROUPS = (len(_COUNT_EDGES) + 1) * (len(_SPREAD_EDGES) + 1)

_LAST, _RECENT_MEDIAN, _WEIGHTED, _MEDIAN, _HOUR = range(5)


class PairHistory(PointBaseline):
    """`last` | `recent` (median of the last 8) | `weighted` | `median` (of all) | `hour` (of day)."""

    groups: ClassVar[int] = _HISTORY_GROUPS + 2
    _KINDS: ClassVar[dict[str, int]] = {
        "last": _LAST,
        "recent": _RECENT_MEDIAN,
        "weighted": _WEIGHTED,
        "median": _MEDIAN,
        "hour": _HOUR,
    }

    def __init__(self, kind: str = "last"):
        self.kind = kind
        self.name = f"pair {kind}"  # type: ignore[misc]

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._past = History(replies)
        self._destinations = Ids(replies.dst)
        self._overall = float(np.median(replies.rtt)) if len(replies) else 50.0
        self._destination_median = _medians(self._destinations.of_rows, replies.rtt, len(self._destinations))

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        trained = self._past.replies_of_pair(queries)
        recent = context.replies_of_pair(queries)
        kind = self._KINDS[self.kind]
        # The newest past: the context's where it has any, else the training data's.
        newer = recent.count > 0
        point, count, spread = _from_past(
            recent.columns.rtt, recent.columns.time, recent.low, recent.high, queries.time, kind
        )
        from_training = ~newer | ((trained.count > recent.count) & (kind in (_MEDIAN, _HOUR)))
        index = np.flatnonzero(from_training & (trained.count > 0))
        point[index], count[index], spread[index] = _from_past(
            trained.columns.rtt, trained.columns.time, trained.low[index], trained.high[index],
            queries.time[index], kind,
        )  # fmt: skip
        group = np.searchsorted(_COUNT_EDGES, count, side="right") * (len(_SPREAD_EDGES) + 1)
        group += np.searchsorted(_SPREAD_EDGES, spread)
        unknown = count == 0
        destination = self._destinations.find(queries.dst)
        fallback = np.append(self._destination_median, self._overall)[destination]
        point = np.where(unknown, fallback, point)
        group = np.where(unknown, np.where(destination >= 0, _HISTORY_GROUPS, _HISTORY_GROUPS + 1), group)
        return point, group

    def failure(self, queries: Queries) -> np.ndarray:
        return self.failures.by_pair(queries)


def _medians(number: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Median of the values of each number 0 … size - 1."""
    order = np.lexsort((values, number))
    start = np.searchsorted(number[order], np.arange(size))
    end = np.searchsorted(number[order], np.arange(size), side="right")
    ranked = values[order]
    return 0.5 * (ranked[start + (end - start - 1) // 2] + ranked[start + (end - start) // 2])


@njit(cache=True, nogil=True)
def _from_past(rtt, time, low, high, now, kind):
    """Point, number of values and spread (mean absolute step of log RTT) from rtt[low:high]."""
    n = len(low)
    point, spread = np.zeros(n), np.zeros(n)
    count = np.zeros(n, np.int64)
    for i in range(n):
        a, b = low[i], high[i]
        count[i] = b - a
        if b == a:
            continue
        first = max(a, b - RECENT)
        for j in range(first + 1, b):
            spread[i] += abs(np.log((rtt[j] + 0.1) / (rtt[j - 1] + 0.1)))
        spread[i] /= max(b - first - 1, 1)
        if kind == _LAST:
            point[i] = rtt[b - 1]
        elif kind == _RECENT_MEDIAN:
            point[i] = np.median(rtt[first:b])
        elif kind == _WEIGHTED:
            mean = np.log(rtt[first] + 0.1)
            for j in range(first + 1, b):
                mean += NEWEST_WEIGHT * (np.log(rtt[j] + 0.1) - mean)
            point[i] = np.exp(mean) - 0.1
        elif kind == _MEDIAN:
            point[i] = np.median(rtt[a:b])
        else:
            hour = (now[i] // 3_600_000_000) % 24
            same = np.empty(b - a)
            found = 0
            for j in range(a, b):
                # Within an hour of the same time of day, around midnight too.
                if ((time[j] // 3_600_000_000) % 24 - hour + 25) % 24 <= 2:
                    same[found] = rtt[j]
                    found += 1
            point[i] = np.median(same[:found]) if found else np.median(rtt[a:b])
    return point, count, spread
