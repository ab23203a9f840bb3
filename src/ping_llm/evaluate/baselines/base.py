"""One small interface for every method: learn from measurements, then answer queries with distributions.

Most baselines predict a single number. `PointBaseline` turns it into a distribution in the same way for
all: how far such a prediction is off, as a ratio, is learned on an inner split of the training data.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np

from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids, pairs_of
from ping_llm.evaluate.predictive import Knots, Predictive, mixed
from ping_llm.schema import MAX_RTT_MS

#: Levels of the tables of residuals: fine in the middle, finer in the tails.
LEVELS = np.unique(
    np.concatenate([[0, 0.001, 0.0025, 0.005], np.linspace(0, 1, 65), [0.995, 0.9975, 0.999, 1]])
)

#: Residuals are log((y + FLOOR) / (x + FLOOR)): a tenth of a millisecond is nothing to be off by.
FLOOR_MS = 0.1

#: This share of every answer is the training marginal, so that no surprise costs without bound.
BACKGROUND = 0.02

#: Failure rates of groups are shrunk to the wider group's as if they had seen this many results of it.
FAILURE_PRIOR = 10.0

#: The newest share of the training data on which, by default, residuals are learned.
CALIBRATION_SHARE = 0.2


class Baseline(ABC):
    """A method. After `fit`, `predict` may be called any number of times."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""

    @abstractmethod
    def fit(self, train: Columns) -> Self: ...

    @abstractmethod
    def predict(self, queries: Queries, context: History) -> Predictive:
        """Answer each query, knowing the training data and what `context` allows it to look back on."""


def marginal(train: Columns, levels: np.ndarray = LEVELS) -> Knots:
    """The training replies' distribution in one row, with a thin tail over all that the schema allows."""
    rtt = train.rtt[train.replied]
    if not len(rtt):
        rtt = np.array([1.0, 100.0])
    values = np.quantile(rtt, levels)
    prior = np.expm1(np.linspace(0, np.log1p(MAX_RTT_MS), 33))
    everything = Knots(prior[None], np.linspace(0, 1, 33), np.zeros(1))
    # One part in a thousand for what has never been seen; less when much has been seen.
    weight = np.array([1.0 / (1.0 + min(len(rtt), 1000))])
    return mixed(values[None], levels, everything, weight, np.zeros(1))


class FailureRates:
    """P(no reply) by destination, source and pair, each shrunk to the rate of the wider group."""

    def __init__(self, train: Columns):
        failed = ~train.replied
        self.overall = (failed.sum() + 0.5) / (len(train) + 1.0)
        self._src, self._dst = Ids(train.src), Ids(train.dst)
        self._pair = Ids(pairs_of(train.src, train.dst))
        self._src_counts = _counts(self._src, failed)
        self._dst_counts = _counts(self._dst, failed)
        self._pair_counts = _counts(self._pair, failed)

    def by_source(self, queries: Queries) -> np.ndarray:
        return _shrunk(self._src_counts, self._src.find(queries.src), self.overall)

    def by_destination(self, queries: Queries) -> np.ndarray:
        return _shrunk(self._dst_counts, self._dst.find(queries.dst), self.overall)

    def by_ends(self, queries: Queries) -> np.ndarray:
        """Both ends' odds, multiplied, relative to the overall odds."""
        odds = _odds(self.by_source(queries)) * _odds(self.by_destination(queries)) / _odds(self.overall)
        return odds / (1 + odds)

    def by_pair(self, queries: Queries) -> np.ndarray:
        number = self._pair.find(pairs_of(queries.src, queries.dst))
        return _shrunk(self._pair_counts, number, self.by_ends(queries))


def _counts(ids: Ids, failed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = len(ids)
    return np.bincount(ids.of_rows, failed, size), np.bincount(ids.of_rows, minlength=size)


def _shrunk(counts: tuple[np.ndarray, np.ndarray], number: np.ndarray, wider) -> np.ndarray:
    failures, total = (np.append(c, 0.0)[number] for c in counts)  # number -1 reads the appended zero
    return (failures + FAILURE_PRIOR * wider) / (total + FAILURE_PRIOR)


def _odds(probability):
    return probability / (1 - probability)


class PointBaseline(Baseline):
    """A method that predicts one number and a group in which its predictions are about equally good."""

    #: How many groups `points` may return, numbered from 0: the more, the sharper the spread.
    groups: ClassVar[int] = 1

    @abstractmethod
    def learn(self, train: Columns) -> None:
        """Learn what `points` needs."""

    @abstractmethod
    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """Predicted RTT in ms, [n], and the group of each prediction, int [n]."""

    def failure(self, queries: Queries) -> np.ndarray:
        return self.failures.by_ends(queries)

    def fit(self, train: Columns, inner: tuple[Columns, Columns, History] | None = None) -> Self:
        """Learn.

        Args:
          train: all training data.
          inner: (part to learn from, part to see residuals on, what the latter may look back on), which
            should mirror the split that the method is evaluated on. By default the newest fifth.
        """
        learn_on, calibrate_on, context = inner or _newest(train)
        self.failures = FailureRates(train)
        self.background = marginal(train)
        self.learn(learn_on)
        replies = calibrate_on.take(calibrate_on.replied)
        predicted, group = self.points(replies.queries(), context)
        self._residuals = _residual_tables(predicted, replies.rtt, group, self.groups)
        self.learn(train)
        return self

    def predict(self, queries: Queries, context: History) -> Knots:
        predicted, group = self.points(queries, context)
        values = (predicted[:, None] + FLOOR_MS) * np.exp(self._residuals[group]) - FLOOR_MS
        values = np.clip(values, 0.0, MAX_RTT_MS)
        weight = np.full(len(queries), BACKGROUND)
        return mixed(values, LEVELS, self.background, weight, self.failure(queries))


def _newest(train: Columns) -> tuple[Columns, Columns, History]:
    train = train.sorted_by_time()
    cut = int(len(train) * (1 - CALIBRATION_SHARE))
    return train.take(slice(0, cut)), train.take(slice(cut, None)), History(train)


def _residual_tables(predicted: np.ndarray, actual: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """float64 [groups, levels]: quantiles of the log ratio in each group; small groups lean on all."""
    residual = np.log((actual + FLOOR_MS) / (np.maximum(predicted, 0.0) + FLOOR_MS))
    overall = np.quantile(residual, LEVELS) if len(residual) else np.linspace(-1, 1, len(LEVELS))
    out = np.empty((groups, len(LEVELS)))
    for number in range(groups):
        own = residual[group == number]
        # Under 30 residuals say little about tails: fill up with quantiles of all groups' residuals.
        if len(own) < 30:
            own = np.concatenate([own, np.interp(np.linspace(0, 1, 30 - len(own)), LEVELS, overall)])
        out[number] = np.quantile(own, LEVELS)
    return out
