"""The pair's own past: its last value, medians of its last 8 and of all, a weighted mean, and by hour.

The honest opponent wherever a pair has been measured before: most paths persist for hours to days, so
the last RTT is hard to beat. How far it will be off is learned by how many values the past holds and how
much they vary. A pair without a past is answered with its destination's median, else its source's, else
the overall one.
"""

from typing import ClassVar

import numpy as np

from ping_llm.evaluate.baselines import pair_kernels
from ping_llm.evaluate.baselines.point import Medians, PointBaseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History

# Groups of equally good predictions: a past of 1, 2–3, 4–7, 8+ values × spread of the recent ones.
_COUNT_EDGES = np.array([2, 4, 8])
_SPREAD_EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.3])
_HISTORY_GROUPS = (len(_COUNT_EDGES) + 1) * (len(_SPREAD_EDGES) + 1)

_KINDS = {
    "last": pair_kernels.LAST,
    "recent": pair_kernels.RECENT_MEDIAN,
    "weighted": pair_kernels.WEIGHTED,
    "median": pair_kernels.MEDIAN,
    "hour": pair_kernels.HOUR,
    "trained": pair_kernels.MEDIAN,
}


class PairHistory(PointBaseline):
    """One way to look at the past.

    Args:
      kind: `last` value, median of the `recent` 8, exponentially `weighted` mean, `median` of all up to the
        query, median at the same `hour` of the day, or median of what was `trained` on only.
    """

    paper = 'Paxson, "End-to-end routing behavior in the Internet", SIGCOMM 1996 (paths persist)'
    groups: ClassVar[int] = _HISTORY_GROUPS + 1

    def __init__(self, kind: str = "last"):
        self.kind = kind
        self.name = f"pair {kind}"

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._past = History(replies)
        self._medians = Medians(replies)

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        trained, recent = self._past.replies_of_pair(queries), context.replies_of_pair(queries)
        if self.kind == "trained":
            use_training = np.ones(len(queries), bool)
        else:
            # The context usually holds the training data as well; where it holds less, these know more.
            use_training = trained.count > recent.count
        point, spread = np.zeros(len(queries)), np.zeros(len(queries))
        count = np.zeros(len(queries), np.int64)
        for past, chosen in ((trained, use_training), (recent, ~use_training)):
            index = np.flatnonzero(chosen)
            point[index], count[index], spread[index] = pair_kernels.from_past(
                past.columns.rtt,
                past.columns.time,
                past.low[index],
                past.high[index],
                queries.time[index],
                _KINDS[self.kind],
            )
        group = np.searchsorted(_COUNT_EDGES, count, side="right") * (len(_SPREAD_EDGES) + 1)
        group += np.searchsorted(_SPREAD_EDGES, spread)
        unknown = count == 0
        point = np.where(unknown, self._medians.fallback(queries), point)
        return point, np.where(unknown, _HISTORY_GROUPS, group)

    def failure(self, queries: Queries, context: History) -> np.ndarray:
        return self.failures.by_pair(queries, context)
