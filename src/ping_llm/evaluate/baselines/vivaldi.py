"""Vivaldi with height: nodes in a Euclidean space, each behind an access link of some length.

The predicted RTT is the distance between two nodes plus both heights. Nodes are pushed and pulled by each
measurement as by a spring, by steps that adapt to how sure both ends are.
"""

from typing import ClassVar

import numpy as np

from ping_llm.evaluate.baselines import coordinate_kernels as kernels
from ping_llm.evaluate.baselines.point import Medians, PointBaseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids

#: The paper's gains c_e = c_c, and its choice of two dimensions and a height; three are as good or better.
GAIN = 0.25
DIMENSIONS = 3
SMALLEST_HEIGHT_MS = 0.1

#: Steps in training: passes over the data until about this many have been made, the last with smaller gains.
STEPS = 3_000_000

#: A new source is placed by at most this many of its newest measurements, gone through this often.
FOLD_IN_MEASUREMENTS = 64
FOLD_IN_PASSES = 20

# Groups: both ends known, or a source placed by 1, 2–4, 5–9, 10–29, 30+ measurements, or no coordinates.
_PLACED_EDGES = np.array([2, 5, 10, 30])


class Vivaldi(PointBaseline):
    name = "vivaldi"
    paper = 'Dabek, Cox, Kaashoek, Morris, "Vivaldi: a decentralized network coordinate system", SIGCOMM 2004'
    groups: ClassVar[int] = len(_PLACED_EDGES) + 3

    def __init__(self, dimensions: int = DIMENSIONS, steps: int = STEPS, seed: int = 0):
        self._dimensions, self._steps, self._seed = dimensions, steps, seed

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        # A host that is a source here and a destination there is one node.
        self.nodes = Ids(np.concatenate([replies.src, replies.dst]))
        src, dst = np.split(self.nodes.of_rows, 2)
        random = np.random.default_rng(self._seed)
        self.at = random.normal(0, 1, (len(self.nodes), self._dimensions))
        self.height = np.full(len(self.nodes), SMALLEST_HEIGHT_MS)
        self.error = np.ones(len(self.nodes))
        passes = int(np.clip(self._steps // max(len(replies), 1), 3, 300))
        for number in range(passes):
            # The paper's constant gain for two thirds of the passes, then down to a tenth to settle.
            late = max(0.0, number / passes - 2 / 3) * 3
            kernels.vivaldi_train(
                self.at, self.height, self.error, src, dst, replies.rtt,
                random.permutation(len(replies)), GAIN * (1 - 0.9 * late), SMALLEST_HEIGHT_MS,
            )  # fmt: skip

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        source, destination = self.nodes.find(queries.src), self.nodes.find(queries.dst)
        at, height = self.at[source], self.height[source]
        group = np.zeros(len(queries), np.int64)
        new = np.flatnonzero((source < 0) & (destination >= 0))
        if len(new):
            at[new], height[new], count = self._fold_in(queries, context, new)
            group[new] = np.where(
                count > 0, 1 + np.searchsorted(_PLACED_EDGES, count, side="right"), self.groups - 1
            )
        group[destination < 0] = self.groups - 1
        offset = np.sqrt(((at - self.at[destination]) ** 2).sum(axis=1))
        predicted = offset + height + self.height[destination]
        unknown = group == self.groups - 1
        return np.where(unknown, self._medians.fallback(queries), predicted), group

    def _fold_in(self, queries: Queries, context: History, new: np.ndarray):
        past = context.of_source(queries)
        node = self.nodes.find(past.columns.dst)
        low, high = np.maximum(past.low, past.high - FOLD_IN_MEASUREMENTS)[new], past.high[new]
        usable = np.concatenate([[0], np.cumsum((node >= 0) & past.columns.replied)])
        placed, placed_height = kernels.vivaldi_fold_in(
            self.at, self.height, self.error, node, past.columns.rtt, low, high,
            np.median(self.at, axis=0), float(np.median(self.height)),
            GAIN, SMALLEST_HEIGHT_MS, FOLD_IN_PASSES,
        )  # fmt: skip
        return placed, placed_height, usable[high] - usable[low]
