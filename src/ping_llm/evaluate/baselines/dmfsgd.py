"""DMFSGD: the matrix of log RTTs as a product of two thin ones, found by stochastic gradient descent.

No geometry, so neither symmetry nor the triangle inequality is assumed. As in the paper, every node keeps
a row of each factor; as is usual since, each has a bias too, and the logarithm makes errors relative.
"""

from typing import ClassVar

import numpy as np

from ping_llm.evaluate.baselines import coordinate_kernels as kernels
from ping_llm.evaluate.baselines.point import FLOOR_MS, Medians, PointBaseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids

#: The paper finds ranks around 10 enough for 200 to 2,500 nodes. With a fifth of the MENOG pairs held out,
#: ranks 10, 6 and 3 have median errors of 23.4, 23.5 and 25.3 ms (at a penalty of 0.1).
RANK = 10
RATE = 0.05
PENALTY = 0.05
STEPS = 6_000_000

#: A new source is placed by at most this many of its newest measurements.
FOLD_IN_MEASUREMENTS = 64
_PLACED_EDGES = np.array([2, 5, 10, 30])


class Dmfsgd(PointBaseline):
    paper = 'Liao, Du, Geurts, Leduc, "DMFSGD: a decentralized matrix factorization algorithm", ToN 2013'
    groups: ClassVar[int] = len(_PLACED_EDGES) + 3

    def __init__(self, rank: int = RANK, steps: int = STEPS, seed: int = 0):
        self.name = "dmfsgd" if rank == RANK else f"dmfsgd rank {rank}"
        self._rank, self._steps, self._seed = rank, steps, seed

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        self._sources, self._destinations = Ids(replies.src), Ids(replies.dst)
        value = np.log(replies.rtt + FLOOR_MS)
        self._mean, self._scale = float(value.mean()), float(value.std() or 1.0)
        value = (value - self._mean) / self._scale
        random = np.random.default_rng(self._seed)
        self._left = random.normal(0, 0.3, (len(self._sources), self._rank))
        self._right = random.normal(0, 0.3, (len(self._destinations), self._rank))
        self._left_bias, self._right_bias = np.zeros(len(self._sources)), np.zeros(len(self._destinations))
        passes = int(np.clip(self._steps // max(len(replies), 1), 3, 300))
        for number in range(passes):
            kernels.dmf_train(
                self._left, self._right, self._left_bias, self._right_bias,
                self._sources.of_rows, self._destinations.of_rows, value,
                random.permutation(len(replies)), RATE * (1 - 0.9 * number / passes), PENALTY,
            )  # fmt: skip

        # What is known of a source before its first measurement: the known ones' mean and spread.
        own = np.column_stack([self._left, self._left_bias])
        spread = np.cov(own.T) if len(own) > 1 else np.eye(self._rank + 1)
        left_over = value - self._scaled(self._sources.of_rows, self._destinations.of_rows)
        noise = max(float(np.mean(left_over**2)), 1e-3)
        precision = np.linalg.inv(np.atleast_2d(spread) + 1e-3 * np.eye(self._rank + 1))
        self._prior = (own.mean(axis=0), precision, noise)
        self._range = (float(value.min()), float(value.max()))

    def _scaled(self, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        product = (self._left[source] * self._right[destination]).sum(axis=1)
        return self._left_bias[source] + self._right_bias[destination] + product

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        source, destination = self._sources.find(queries.src), self._destinations.find(queries.dst)
        left, bias = self._left[source], self._left_bias[source]
        group = np.zeros(len(queries), np.int64)
        new = np.flatnonzero((source < 0) & (destination >= 0))
        if len(new):
            past = context.of_source(queries)
            node = self._destinations.find(past.columns.dst)
            low, high = np.maximum(past.low, past.high - FOLD_IN_MEASUREMENTS)[new], past.high[new]
            replied = past.columns.replied
            value = np.where(replied, np.log(np.where(replied, past.columns.rtt, 1.0) + FLOOR_MS), np.nan)
            solved = kernels.dmf_fold_in(
                self._right, self._right_bias, node, (value - self._mean) / self._scale,
                low, high, *self._prior,
            )  # fmt: skip
            left[new], bias[new] = solved[:, :-1], solved[:, -1]
            usable = np.concatenate([[0], np.cumsum((node >= 0) & replied)])
            count = usable[high] - usable[low]
            group[new] = np.where(
                count > 0, 1 + np.searchsorted(_PLACED_EDGES, count, side="right"), self.groups - 1
            )
        group[destination < 0] = self.groups - 1
        value = bias + self._right_bias[destination] + (left * self._right[destination]).sum(axis=1)
        # Never outside what has been seen: a product of two unlucky factors can be anything.
        value = np.clip(value, *self._range)
        predicted = np.exp(value * self._scale + self._mean) - FLOOR_MS
        unknown = group == self.groups - 1
        return np.where(unknown, self._medians.fallback(queries), np.maximum(predicted, 0)), group
