"""The pair's own past: its last value, medians of its last 8 and of all, a weighted mean, and by hour.

A strong baseline wherever a pair has been measured before: most paths persist for hours to days, so the last
RTT is hard to improve on. The errors are learned by the number of values in the past and by their variation.
A pair without earlier replies is answered with its median in training, else with that of its destination, its
source, or all replies.
"""

from typing import ClassVar

import numpy as np

from ping_llm.answer import own_past
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.methods import pair_kernels
from ping_llm.answer.methods.base import LEVELS, SHARES, Medians, PointMethod
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History, Ranges
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.splits.novelty import Novelty

# Groups of equally good predictions: a past of 1, 2–3, 4–7, 8+ values × spread of the recent ones.
_COUNT_EDGES = np.array([2, 4, 8])
_SPREAD_EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.3])
#: Power by which a pair's newest results adjust the share of the marginal in its answer (`own_past`). On
#: later questions of v6-path-inflation and dense-series it saves 0.003 to 0.015 bits and 0.2 to 0.8 % of the
#: CRPS.
_PAST_POWER = 0.125
_HISTORY_GROUPS = (len(_COUNT_EDGES) + 1) * (len(_SPREAD_EDGES) + 1)

_KINDS = {
    "last": pair_kernels.LAST,
    "recent": pair_kernels.RECENT_MEDIAN,
    "weighted": pair_kernels.WEIGHTED,
    "median": pair_kernels.MEDIAN,
    "hour": pair_kernels.HOUR,
    "trained": pair_kernels.MEDIAN,
}


class PairHistory(PointMethod):
    """Prediction from a pair's past, in one of several ways.

    Args:
      kind: `last` value, median of the `recent` 8, exponentially `weighted` mean, `median` of all up to the
        query, median at the same `hour` of the day, or median of what was `trained` on only.
    """

    paper = 'Paxson, "End-to-end routing behavior in the Internet", SIGCOMM 1996 (paths persist)'
    revision = 4
    groups: ClassVar[int] = _HISTORY_GROUPS + 1
    #: 0 in methods that are older than this attribute.
    past_power: float = 0.0

    def __init__(self, kind: str = "last"):
        self.kind = kind
        self.name = f"pair {kind}"

    def learn(self, train: Columns) -> None:
        self.past_power = _PAST_POWER
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        # Of each pair in the training data: median, number of replies, and their spread.
        past = History(replies)
        self._pairs = Ids(pairs_of(replies.src, replies.dst))
        _, first = np.unique(self._pairs.of_rows, return_index=True)
        each = replies.take(first).queries().without_time()
        self._trained = _from_past(past.replies_of_pair(each), each, np.arange(len(each)), "trained")

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        number = self._pairs.find(pairs_of(queries.src, queries.dst))
        point, count, spread = (np.append(values, 0)[number] for values in self._trained)
        if self.kind != "trained":
            # The context usually includes the training data; without one, the trained median is used.
            recent = context.replies_of_pair(queries)
            index = np.flatnonzero(recent.count > 0)
            point[index], count[index], spread[index] = _from_past(recent, queries, index, self.kind)
        group = np.searchsorted(_COUNT_EDGES, count, side="right") * (len(_SPREAD_EDGES) + 1)
        group += np.searchsorted(_SPREAD_EDGES, spread)
        unknown = count == 0
        point = np.where(unknown, self._medians.fallback(queries), point)
        return point, np.where(unknown, _HISTORY_GROUPS, group)

    def background_share(
        self, queries: Queries, context: History, novelty: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Share of the marginal in each answer, reduced if the pair's results are improbable under it."""
        share = super().background_share(queries, context, novelty, values)
        if not self.past_power:
            return share
        results = own_past.newest(queries, context)
        zeros = np.zeros(len(share))
        own = RttDistributions(values, LEVELS, zeros)
        wide = RttDistributions(
            self.background.values, self.background.levels, zeros, np.zeros(len(share), np.int64)
        )
        past = np.stack([own_past.log_likelihood(each, results) for each in (wide, own)], axis=1)
        moved = own_past.tempered(
            np.stack([share, 1 - share], axis=1), past, ("", self.name), self.past_power
        )
        out: np.ndarray = np.minimum(share, np.maximum(moved[:, 0], SHARES[0]))
        return out

    def newness(self, queries: Queries, context: History) -> np.ndarray:
        """Novelty class of each query; a pair with earlier replies is known, whether trained on or not."""
        classes = super().newness(queries, context)
        return np.where(context.replies_of_pair(queries).count > 0, Novelty.KNOWN_PAIR, classes)

    def failure(self, queries: Queries, context: History) -> np.ndarray:
        return self.failures.by_pair(queries, context)


def _from_past(past: Ranges, queries: Queries, index: np.ndarray, kind: str) -> tuple[np.ndarray, ...]:
    """Point estimate, number of values and spread of the past of some queries."""
    out: tuple[np.ndarray, ...] = pair_kernels.from_past(
        past.columns.rtt,
        past.columns.time,
        past.low[index],
        past.high[index],
        queries.time[index],
        _KINDS[kind],
    )
    return out
