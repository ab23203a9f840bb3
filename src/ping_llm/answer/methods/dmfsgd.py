"""DMFSGD: the matrix of log RTTs as a product of two thin matrices, found by stochastic gradient descent.

There is no geometry, so neither symmetry nor the triangle inequality is assumed. As in the paper, every node
has a row of each factor. As is usual since, each row has a bias too, and the logarithm makes errors relative.
"""

from itertools import product
from typing import ClassVar, Self

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS, Medians, PointMethod
from ping_llm.compiled import kernel
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids
from ping_llm.splits.novelty import Novelty

#: Candidate ranks and penalties, chosen by the error on inner splits of the training data, never on a test.
#: The paper finds ranks around 10 enough for 200 to 2,500 nodes; sparser data need a lower rank and a larger
#: penalty.
RANKS = (3, 6, 10)
PENALTIES = (0.02, 0.05, 0.1, 0.2)
RATE = 0.05
STEPS = 6_000_000
#: Divisor of the steps while choosing (a quarter per candidate and split), and seeds of the four inner
#: splits: one split holds out too few pairs to tell candidates apart. On MENOG's training data the mean
#: errors are 0.353 for (10, 0.02), 0.366 for (6, 0.02) and 0.423 for the best of rank 3.
_TRIAL = 4
_SPLITS = (1, 2, 3, 4)
#: Least number of measurements for choosing: with fewer, inner splits cannot tell candidates apart, and the
#: first candidate is used.
_ENOUGH_TO_CHOOSE = 1000
_COMPARED = (Novelty.KNOWN_PAIR, Novelty.NEW_PAIR, Novelty.NEW_SOURCE)

#: Largest number of newest measurements that a new source's factors are computed from.
FOLD_IN_MEASUREMENTS = 64
_PLACED_EDGES = np.array([2, 5, 10, 30])


class Dmfsgd(PointMethod):
    paper = 'Liao, Du, Geurts, Leduc, "DMFSGD: a decentralized matrix factorization algorithm", ToN 2013'
    revision = 3
    groups: ClassVar[int] = len(_PLACED_EDGES) + 3

    def __init__(
        self, rank: int | None = None, penalty: float | None = None, steps: int = STEPS, seed: int = 0
    ):
        self.name = "dmfsgd" if rank is None else f"dmfsgd rank {rank}"
        self._ranks = RANKS if rank is None else (rank,)
        self._penalties = PENALTIES if penalty is None else (penalty,)
        self.rank, self.penalty = self._ranks[0], self._penalties[0]
        self._steps, self._seed = steps, seed
        self._noise: float | None = None
        self._prior: tuple[np.ndarray, np.ndarray, float]

    def fit(self, train: Columns) -> Self:
        if len(train) >= _ENOUGH_TO_CHOOSE:
            self.choose(train)
        return super().fit(train)

    def choose(self, train: Columns) -> dict[tuple[int, float], float]:
        """Choose rank and penalty on inner splits; returns the error of each candidate, in log RTT.

        The error is the mean over known pairs, new pairs and new sources, with equal weights.
        """
        from ping_llm.splits.holdout import inner_split  # imported late: it loads DuckDB

        candidates = list(product(self._ranks, self._penalties))
        errors: dict[tuple[int, float], list[float]] = {candidate: [] for candidate in candidates}
        noises: dict[tuple[int, float], list[float]] = {candidate: [] for candidate in candidates}
        whole, self._steps = self._steps, self._steps // _TRIAL
        for seed in _SPLITS:
            learn_on, asked, context = inner_split(train, seed)
            if not learn_on.replied.any():
                continue
            replied = asked.replied
            asked, context = asked.take(replied), context.for_some(replied)
            kind = Novelty.of(learn_on).classes(asked.src, asked.dst)
            actual = np.log(asked.rtt + FLOOR_MS)
            for candidate in candidates:
                (self.rank, self.penalty), self._noise = candidate, None
                self.learn(learn_on)
                new_pairs = kind == Novelty.NEW_PAIR
                if new_pairs.any():
                    noises[candidate].append(self._squared_error(asked.take(new_pairs)))
                    self._prior = (*self._prior[:2], noises[candidate][-1])
                off = np.abs(np.log(self.points(asked.queries(), context)[0] + FLOOR_MS) - actual)
                errors[candidate] += [float(off[kind == k].mean()) for k in _COMPARED if (kind == k).any()]
        self._steps = whole
        means = {candidate: float(np.mean(values or [0.0])) for candidate, values in errors.items()}
        self.rank, self.penalty = best = min(means, key=lambda candidate: means[candidate])
        # The noise of a new source's measurement is the squared error on new pairs. Residuals of pairs in the
        # training data are far smaller.
        self._noise = float(np.mean(noises[best])) if noises[best] else None
        return means

    def _squared_error(self, known: Columns) -> float:
        """Mean squared error on measurements between known ends, in scaled logs."""
        source, destination = self._sources.find(known.src), self._destinations.find(known.dst)
        value = (np.log(known.rtt + FLOOR_MS) - self._mean) / self._scale
        both = (source >= 0) & (destination >= 0)
        off = value[both] - self._scaled(source[both], destination[both])
        return max(float(np.mean(off**2)), 1e-3) if both.any() else 1.0

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        self._sources, self._destinations = Ids(replies.src), Ids(replies.dst)
        value = np.log(replies.rtt + FLOOR_MS)
        self._mean, self._scale = float(value.mean()), float(value.std() or 1.0)
        value = (value - self._mean) / self._scale
        random = np.random.default_rng(self._seed)
        self._left = random.normal(0, 0.3, (len(self._sources), self.rank))
        self._right = random.normal(0, 0.3, (len(self._destinations), self.rank))
        self._left_bias, self._right_bias = np.zeros(len(self._sources)), np.zeros(len(self._destinations))
        passes = int(np.clip(self._steps // max(len(replies), 1), 3, 300))
        for number in range(passes):
            dmf_train(
                self._left, self._right, self._left_bias, self._right_bias,
                self._sources.of_rows, self._destinations.of_rows, value,
                random.permutation(len(replies)), RATE * (1 - 0.9 * number / passes), self.penalty,
            )  # fmt: skip

        # Prior of a source before its first measurement: mean and covariance of the known sources.
        own = np.column_stack([self._left, self._left_bias])
        spread = np.cov(own.T) if len(own) > 1 else np.eye(self.rank + 1)
        left_over = value - self._scaled(self._sources.of_rows, self._destinations.of_rows)
        noise = self._noise if self._noise is not None else max(float(np.mean(left_over**2)), 1e-3)
        precision = np.linalg.inv(np.atleast_2d(spread) + 1e-3 * np.eye(self.rank + 1))
        self._prior = (own.mean(axis=0), precision, noise)
        self._range = (float(value.min()), float(value.max()))

    def _scaled(self, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        product = (self._left[source] * self._right[destination]).sum(axis=1)
        out: np.ndarray = self._left_bias[source] + self._right_bias[destination] + product
        return out

    def check(self) -> None:
        """Refuse stored factors whose shapes do not match the ends."""
        shapes = [part.shape for part in (self._left, self._right, self._left_bias, self._right_bias)]
        ends = (len(self._sources), len(self._destinations))
        wanted = [(ends[0], self.rank), (ends[1], self.rank), (ends[0],), (ends[1],)]
        square = (self.rank + 1, self.rank + 1)
        if shapes != wanted or (self._prior[0].shape, self._prior[1].shape) != (square[:1], square):
            raise ValueError("the factors are not those of the ends")

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
            solved = dmf_fold_in(
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
        # Clipped to the range of the training data, because a product of two factors is not bounded.
        value = np.clip(value, *self._range)
        predicted = np.exp(value * self._scale + self._mean) - FLOOR_MS
        unknown = group == self.groups - 1
        return np.where(unknown, self._medians.fallback(queries), np.maximum(predicted, 0)), group


@kernel
def dmf_train(
    left: np.ndarray,
    right: np.ndarray,
    left_bias: np.ndarray,
    right_bias: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    value: np.ndarray,
    order: np.ndarray,
    rate: float,
    penalty: float,
) -> None:
    """One pass of stochastic gradient descent on (value - left·right - biases)² + penalty · |factors|²."""
    rank = left.shape[1]
    for i in order:
        s, d = src[i], dst[i]
        predicted = left_bias[s] + right_bias[d]
        for r in range(rank):
            predicted += left[s, r] * right[d, r]
        error = value[i] - predicted
        left_bias[s] += rate * (error - penalty * left_bias[s])
        right_bias[d] += rate * (error - penalty * right_bias[d])
        for r in range(rank):
            u, v = left[s, r], right[d, r]
            left[s, r] += rate * (error * v - penalty * u)
            right[d, r] += rate * (error * u - penalty * v)


@kernel
def dmf_fold_in(
    right: np.ndarray,
    right_bias: np.ndarray,
    node: np.ndarray,
    value: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    mean: np.ndarray,
    precision: np.ndarray,
    noise: float,
) -> np.ndarray:
    """Compute each query's new source (its factors, then its bias) by Bayesian regression on its measurements
    node[low:high], with mean and precision of the known sources as prior."""
    n, rank = len(low), right.shape[1]
    out = np.empty((n, rank + 1))
    row = np.ones(rank + 1)
    for i in range(n):
        gram = precision.copy()
        moment = precision @ mean
        for j in range(low[i], high[i]):
            if node[j] < 0 or np.isnan(value[j]):
                continue
            row[:rank] = right[node[j]]
            target = (value[j] - right_bias[node[j]]) / noise
            for a in range(rank + 1):
                moment[a] += row[a] * target
                for b in range(rank + 1):
                    gram[a, b] += row[a] * row[b] / noise
        out[i] = np.linalg.solve(gram, moment)
    return out
