"""Nearest neighbours by shared destinations: sources that see others as I do will see this one as I shall.

Collaborative filtering with sources as users and destinations as items. A known pair is answered from other
sources too: this is what a neighbour knows, not what the pair's history does.
"""

from typing import ClassVar

import numpy as np

from ping_llm.evaluate.baselines import neighbour_kernels
from ping_llm.evaluate.baselines.base import medians
from ping_llm.evaluate.baselines.point import FLOOR_MS, Medians, PointBaseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History

NEIGHBOURS = 10
LEAST_SHARED = 1
#: Neighbours this much farther (in log RTT) than the nearest count 1/e as much.
SOFTNESS = 0.2

#: A new source's profile is its newest measurements, this many at most.
LOOK_BACK = 64

_USED_EDGES = np.array([1, 2, 4, 8])


class Neighbours(PointBaseline):
    name = "neighbours"
    paper = 'Resnick et al., "GroupLens: an open architecture for collaborative filtering", CSCW 1994'
    groups: ClassVar[int] = len(_USED_EDGES) + 1

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        self._sources, self._destinations = self._medians.sources, self._medians.destinations
        src, dst = self._sources.of_rows, self._destinations.of_rows
        cells, cell = np.unique(src * len(self._destinations) + dst, return_inverse=True)
        log = np.log(medians(cell, replies.rtt, len(cells)) + FLOOR_MS)
        cell_src, cell_dst = np.divmod(cells, max(len(self._destinations), 1))
        self._by_source = (_starts(cell_src, len(self._sources)), cell_dst, log)
        order = np.lexsort((cell_src, cell_dst))
        self._by_destination = (
            _starts(cell_dst[order], len(self._destinations)), cell_src[order], log[order],
        )  # fmt: skip

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        source, wanted = self._sources.find(queries.src), self._destinations.find(queries.dst)
        starts, dst, log = self._profiles(queries, context, source)
        point, used = neighbour_kernels.predict(
            starts, dst, log, wanted, *self._by_source, *self._by_destination, source,
            len(self._destinations), NEIGHBOURS, LEAST_SHARED, SOFTNESS,
        )  # fmt: skip
        predicted = np.where(used > 0, np.exp(point) - FLOOR_MS, self._medians.fallback(queries))
        return predicted, np.searchsorted(_USED_EDGES, used, side="right")

    def _profiles(self, queries: Queries, context: History, source: np.ndarray):
        """Each query's own (destination, log RTT): trained if its source was, else what it looks back on."""
        at, dst, log = self._by_source
        past = context.of_source(queries)
        past_dst = self._destinations.find(past.columns.dst)
        past_log = np.log(np.maximum(past.columns.rtt, 0.0) + FLOOR_MS)
        past_dst = np.where(past.columns.replied, past_dst, -1)
        known = source >= 0
        low = np.where(known, at[np.maximum(source, 0)], np.maximum(past.low, past.high - LOOK_BACK))
        high = np.where(known, at[np.maximum(source, 0) + 1], past.high)
        length = high - low
        starts = np.concatenate([[0], np.cumsum(length)])
        row = np.repeat(np.arange(len(queries)), length)
        index = np.arange(starts[-1]) - starts[row] + low[row]
        all_dst, all_log = np.concatenate([dst, past_dst]), np.concatenate([log, past_log])
        index = np.where(known[row], index, index + len(dst))
        keep = all_dst[index] >= 0
        return _starts(row[keep], len(queries)), all_dst[index][keep], all_log[index][keep]


def _starts(sorted_numbers: np.ndarray, size: int) -> np.ndarray:
    return np.searchsorted(sorted_numbers, np.arange(size + 1))
