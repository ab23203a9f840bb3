"""Vivaldi with height: nodes in a Euclidean space, each behind an access link of some length.

The predicted RTT is the distance between two nodes plus both heights. Each measurement moves nodes as a
spring would, in steps that adapt to the estimated errors of both ends.
"""

from typing import ClassVar

import numpy as np

from ping_llm.answer.methods.base import Medians, PointMethod
from ping_llm.compiled import kernel
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids

#: The paper's gains c_e = c_c, and the number of dimensions beside the height. The paper chooses two; three
#: are as good or better.
GAIN = 0.25
DIMENSIONS = 3
SMALLEST_HEIGHT_MS = 0.1

#: Approximate number of training steps, in whole passes over the data; the last passes have smaller gains.
STEPS = 3_000_000

#: Largest number of newest measurements that a new source is placed by, and number of passes over them.
FOLD_IN_MEASUREMENTS = 64
FOLD_IN_PASSES = 20

# Groups: both ends known, or a source placed by 1, 2–4, 5–9, 10–29, 30+ measurements, or no coordinates.
_PLACED_EDGES = np.array([2, 5, 10, 30])


class Vivaldi(PointMethod):
    name = "vivaldi"
    paper = 'Dabek, Cox, Kaashoek, Morris, "Vivaldi: a decentralized network coordinate system", SIGCOMM 2004'
    groups: ClassVar[int] = len(_PLACED_EDGES) + 3

    def __init__(self, dimensions: int = DIMENSIONS, steps: int = STEPS, seed: int = 0):
        self._dimensions, self._steps, self._seed = dimensions, steps, seed

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        # A host that is both a source and a destination is one node.
        self.nodes = Ids(np.concatenate([replies.src, replies.dst]))
        src, dst = np.split(self.nodes.of_rows, 2)
        random = np.random.default_rng(self._seed)
        self.at = random.normal(0, 1, (len(self.nodes), self._dimensions))
        self.height = np.full(len(self.nodes), SMALLEST_HEIGHT_MS)
        self.error = np.ones(len(self.nodes))
        passes = int(np.clip(self._steps // max(len(replies), 1), 3, 300))
        for number in range(passes):
            # The paper's constant gain for two thirds of the passes, then falling to a tenth, to converge.
            late = max(0.0, number / passes - 2 / 3) * 3
            vivaldi_train(
                self.at, self.height, self.error, src, dst, replies.rtt,
                random.permutation(len(replies)), GAIN * (1 - 0.9 * late), SMALLEST_HEIGHT_MS,
            )  # fmt: skip

    def check(self) -> None:
        """Refuse stored coordinates whose shapes do not match the nodes."""
        if self.at.shape != (len(self.nodes), self._dimensions) or not (
            self.height.shape == self.error.shape == (len(self.nodes),)
        ):
            raise ValueError("the coordinates are not those of the nodes")

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

    def _fold_in(
        self, queries: Queries, context: History, new: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        past = context.of_source(queries)
        node = self.nodes.find(past.columns.dst)
        low, high = np.maximum(past.low, past.high - FOLD_IN_MEASUREMENTS)[new], past.high[new]
        usable = np.concatenate([[0], np.cumsum((node >= 0) & past.columns.replied)])
        placed, placed_height = vivaldi_fold_in(
            self.at, self.height, self.error, node, past.columns.rtt, low, high,
            np.median(self.at, axis=0), float(np.median(self.height)),
            GAIN, SMALLEST_HEIGHT_MS, FOLD_IN_PASSES,
        )  # fmt: skip
        return placed, placed_height, usable[high] - usable[low]


@kernel
def distance(a: np.ndarray, b: np.ndarray, height_a: float, height_b: float) -> float:
    total = 0.0
    for d in range(len(a)):
        total += (a[d] - b[d]) ** 2
    out: float = np.sqrt(total) + height_a + height_b
    return out


@kernel
def vivaldi_move(
    at: np.ndarray,
    other: np.ndarray,
    height: float,
    other_height: float,
    error: float,
    other_error: float,
    rtt: float,
    gain: float,
    smallest_height: float,
) -> tuple[float, float]:
    """Move a node one adaptive step towards the distance `rtt` from `other`; returns its height and error."""
    predicted = distance(at, other, height, other_height)
    weight = error / max(error + other_error, 1e-9)
    sample = abs(predicted - rtt) / max(rtt, 0.1)
    new_error = sample * gain * weight + error * (1.0 - gain * weight)
    force = gain * weight * (rtt - predicted)
    # With heights, the vector from the other node has the length of the whole path. So coordinates take their
    # share of the predicted RTT from the force, and the height takes the rest.
    if predicted > 1e-6:
        for d in range(len(at)):
            at[d] += force * (at[d] - other[d]) / predicted
        height += force * (height + other_height) / predicted
    return max(height, smallest_height), min(new_error, 2.0)


@kernel
def vivaldi_train(
    at: np.ndarray,
    height: np.ndarray,
    error: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    rtt: np.ndarray,
    order: np.ndarray,
    gain: float,
    smallest_height: float,
) -> None:
    """Make one pass over the measurements in the given order, moving both ends of each."""
    for i in order:
        s, d = src[i], dst[i]
        before, before_height, before_error = at[s].copy(), height[s], error[s]
        height[s], error[s] = vivaldi_move(
            at[s], at[d], height[s], height[d], error[s], error[d], rtt[i], gain, smallest_height
        )
        height[d], error[d] = vivaldi_move(
            at[d], before, height[d], before_height, error[d], before_error, rtt[i], gain, smallest_height
        )


@kernel
def vivaldi_fold_in(
    at: np.ndarray,
    height: np.ndarray,
    error: np.ndarray,
    node: np.ndarray,
    rtt: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
    start_height: float,
    gain: float,
    smallest_height: float,
    passes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Place one new node per query by its measurements node[low:high]; all other nodes stay fixed."""
    n, dims = len(low), at.shape[1]
    placed, placed_height = np.empty((n, dims)), np.empty(n)
    for i in range(n):
        position, own_height, own_error = start.copy(), start_height, 1.0
        for _ in range(passes):
            for j in range(low[i], high[i]):
                if node[j] >= 0 and rtt[j] >= 0:
                    other = node[j]
                    own_height, own_error = vivaldi_move(
                        position, at[other], own_height, height[other], own_error, error[other],
                        rtt[j], gain, smallest_height,
                    )  # fmt: skip
        placed[i], placed_height[i] = position, own_height
    return placed, placed_height
