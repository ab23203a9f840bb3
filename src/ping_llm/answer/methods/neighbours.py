"""Nearest neighbours: sources with similar RTTs to shared destinations have similar RTTs to others.

Collaborative filtering with sources as users and destinations as items. A known pair is answered from other
sources too: this method uses the results of neighbours, not the pair's own history.
"""

from typing import ClassVar

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS, Medians, PointMethod, medians
from ping_llm.compiled import kernel
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History


@kernel
def keep_nearest(distances: np.ndarray, values: np.ndarray, found: int, distance: float, value: float) -> int:
    """Insert a value into a short list that is sorted by distance, if it is among the nearest that fit.

    Returns the new length of the list.
    """
    if found < len(distances):
        found += 1
    elif distance >= distances[found - 1]:
        return found
    place = found - 1
    while place > 0 and distances[place - 1] > distance:
        distances[place], values[place] = distances[place - 1], values[place - 1]
        place -= 1
    distances[place], values[place] = distance, value
    return found


@kernel
def predict(
    # profiles of the queries' sources: rows profile_at[i]:profile_at[i + 1]
    profile_at: np.ndarray, profile_dst: np.ndarray, profile_log: np.ndarray,
    wanted: np.ndarray,  # destination of the query, -1 if new
    source_at: np.ndarray, source_dst: np.ndarray, source_log: np.ndarray,  # profiles by source
    asked_at: np.ndarray, asked_src: np.ndarray, asked_log: np.ndarray,  # profiles by destination
    itself: np.ndarray,  # number of the query's source among the known ones, -1 if new
    destinations: int, neighbours: int, least_shared: int, softness: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Weighted mean log RTT from the nearest sources to the wanted destination, and their number.

    The distance of two sources is the mean absolute difference of log RTT to the destinations they share.
    """
    n = len(wanted)
    point, used = np.zeros(n), np.zeros(n, np.int64)
    dense = np.full(destinations, np.nan)
    best_distance, best_value = np.empty(neighbours), np.empty(neighbours)
    for i in range(n):
        if wanted[i] < 0:
            continue
        for p in range(profile_at[i], profile_at[i + 1]):
            dense[profile_dst[p]] = profile_log[p]
        held = dense[wanted[i]]
        dense[wanted[i]] = np.nan  # the queried destination must not count as shared
        found = 0
        for c in range(asked_at[wanted[i]], asked_at[wanted[i] + 1]):
            other = asked_src[c]
            if other == itself[i]:
                continue
            total, shared = 0.0, 0
            for p in range(source_at[other], source_at[other + 1]):
                mine = dense[source_dst[p]]
                if not np.isnan(mine):
                    total += abs(mine - source_log[p])
                    shared += 1
            if shared < least_shared:
                continue
            # Few shared destinations are weak evidence: shrink the distance to 0.5, as for unrelated sources.
            distance = (total + 0.5) / (shared + 1.0)
            found = keep_nearest(best_distance, best_value, found, distance, asked_log[c])
        weight_sum, value_sum = 0.0, 0.0
        for j in range(found):
            weight = np.exp(-(best_distance[j] - best_distance[0]) / softness) / (best_distance[j] + 0.01)
            weight_sum += weight
            value_sum += weight * best_value[j]
        if found:
            point[i], used[i] = value_sum / weight_sum, found
        dense[wanted[i]] = held
        for p in range(profile_at[i], profile_at[i + 1]):
            dense[profile_dst[p]] = np.nan
    return point, used


NEIGHBOURS = 10
LEAST_SHARED = 1
#: Distance beyond the nearest neighbour, in log RTT, at which the weight of a neighbour falls by 1/e.
SOFTNESS = 0.2

#: Largest number of newest measurements in the profile of a new source.
LOOK_BACK = 64

_USED_EDGES = np.array([1, 2, 4, 8])


class Neighbours(PointMethod):
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

    def check(self) -> None:
        """Refuse stored profiles that point outside the arrays."""
        ends = (len(self._sources), len(self._destinations))
        for (start, other, log), own, others in (
            (self._by_source, *ends),
            (self._by_destination, *ends[::-1]),
        ):
            if (
                len(start) != own + 1
                or start[0] != 0
                or start[-1] != len(other)
                or (np.diff(start) < 0).any()
            ):
                raise ValueError("the neighbours' profiles do not fit their ends")
            if len(other) != len(log) or not ((other >= 0) & (other < others)).all():
                raise ValueError("the neighbours' profiles do not fit their ends")

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        source, wanted = self._sources.find(queries.src), self._destinations.find(queries.dst)
        starts, dst, log = self._profiles(queries, context, source)
        point, used = predict(
            starts, dst, log, wanted, *self._by_source, *self._by_destination, source,
            len(self._destinations), NEIGHBOURS, LEAST_SHARED, SOFTNESS,
        )  # fmt: skip
        predicted = np.where(used > 0, np.exp(point) - FLOOR_MS, self._medians.fallback(queries))
        return predicted, np.searchsorted(_USED_EDGES, used, side="right")

    def _profiles(
        self, queries: Queries, context: History, source: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Profile (destination, log RTT) of each query's source, from training or from its history."""
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
