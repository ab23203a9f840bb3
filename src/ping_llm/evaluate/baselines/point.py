"""From one number to a distribution, in the same way for every method that predicts one number.

How far off such a prediction is, as a ratio, is learned on an inner split that mirrors the outer one
(`splits.inner_split`): the method learns from a part of the training data, is asked about the rest, and
the quantiles of log(actual / predicted) become its spread, by how new the query is and by the method's own
groups. Then it learns again from all. A split-conformal predictive distribution, in other words
(Vovk et al., "Cross-conformal predictive distributions", COPA 2018).
"""

from abc import abstractmethod
from typing import ClassVar, Self

import numpy as np

from ping_llm.evaluate.baselines.base import BACKGROUND, LEVELS, Baseline, marginal, medians
from ping_llm.evaluate.baselines.failure_rates import FailureRates
from ping_llm.evaluate.bins import bits_of
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids
from ping_llm.evaluate.predictive import Knots, mixed
from ping_llm.evaluate.splits import Novelty, inner_split
from ping_llm.schema import MAX_RTT_MS

#: Residuals are log((y + FLOOR) / (x + FLOOR)): a tenth of a millisecond is nothing to be off by.
FLOOR_MS = 0.1

#: Fewer residuals than this say too little about tails: a wider group's are taken.
ENOUGH = 60


#: Shares of the marginal to choose from.
_SHARES = (0.005, 0.01, BACKGROUND, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)


class PointBaseline(Baseline):
    """A method that predicts one number and a group in which its predictions are about equally good."""

    #: How many groups `points` may return, numbered from 0.
    groups: ClassVar[int] = 1

    @abstractmethod
    def learn(self, train: Columns) -> None:
        """Learn what `points` needs."""

    @abstractmethod
    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """Predicted RTT in ms, [n], and the group of each prediction, int [n]."""

    def failure(self, queries: Queries, context: History) -> np.ndarray:
        return self.failures.by_ends(queries)

    def fit(self, train: Columns) -> Self:
        learn_on, asked, context = inner_split(train)
        self.background = marginal(train)
        self.learn(learn_on)
        replied = asked.replied
        if isinstance(context.limit, np.ndarray):
            context = context.limited(context.limit[replied])
        asked = asked.take(replied)
        predicted, group = self.points(asked.queries(), context)
        novelty = Novelty.of(learn_on).classes(asked.src, asked.dst)
        self._residuals = _residual_tables(
            predicted, asked.rtt, group * Novelty.COUNT + novelty, self._tables
        )
        self._weights = self._background_weights(asked, predicted, group, novelty)
        self.learn(train)
        self.failures, self._novelty = FailureRates(train), Novelty.of(train)
        return self

    def predict(self, queries: Queries, context: History) -> Knots:
        predicted, group = self.points(queries, context)
        novelty = self._novelty.classes(queries.src, queries.dst)
        values = _spread(predicted, self._residuals[group * Novelty.COUNT + novelty])
        failure = self.failure(queries, context)
        out = mixed(values, LEVELS, self.background, self._weights[novelty], failure)
        # Bits ask for a share of the marginal and for a shift; the single number is the method's own.
        return Knots(out.values, out.levels, failure, point=np.maximum(predicted, 0.0))

    @property
    def _tables(self) -> int:
        return self.groups * Novelty.COUNT

    def _background_weights(
        self, asked: Columns, predicted: np.ndarray, group: np.ndarray, novelty: np.ndarray
    ) -> np.ndarray:
        """Of each novelty, the share of the marginal in the answer that costs the fewest bits.

        Found across two halves of the inner test, by source: residuals of one, bits of the other.
        """
        first = Ids(asked.src).of_rows % 2 == 0
        own = np.zeros(len(asked))
        for half in (first, ~first):
            table = _residual_tables(
                predicted[half], asked.rtt[half], (group * Novelty.COUNT + novelty)[half], self._tables
            )
            values = _spread(predicted[~half], table[(group * Novelty.COUNT + novelty)[~half]])
            own[~half] = Knots(values, LEVELS, np.zeros(len(values))).bin_probability(asked.rtt[~half])
        row = np.zeros(len(asked), np.int64)
        wide = Knots(self.background.values, self.background.levels, np.zeros(len(asked)), row)
        wide_probability = wide.bin_probability(asked.rtt)
        out = np.full(Novelty.COUNT, BACKGROUND)
        for number in range(Novelty.COUNT):
            if (novelty == number).sum() >= ENOUGH:
                out[number] = best_share(own[novelty == number], wide_probability[novelty == number])
        return out


def best_share(own: np.ndarray, wide: np.ndarray) -> float:
    """The share of the marginal that costs the fewest bits, from the probabilities of what happened."""
    shares = np.array(_SHARES)[:, None]
    return _SHARES[int(np.argmin(bits_of((1 - shares) * own + shares * wide).mean(axis=1)))]


def _spread(predicted: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Values at LEVELS of each prediction with its table of residuals."""
    values = (np.maximum(predicted, 0.0)[:, None] + FLOOR_MS) * np.exp(residuals) - FLOOR_MS
    return np.clip(values, 0.0, MAX_RTT_MS)


def _residual_tables(predicted: np.ndarray, actual: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """float64 [groups, levels]: quantiles of the log ratio, a group's own, else its novelty's, else all."""
    residual = np.log((actual + FLOOR_MS) / (np.maximum(predicted, 0.0) + FLOOR_MS))
    overall = np.quantile(residual, LEVELS) if len(residual) else np.linspace(-1, 1, len(LEVELS))
    wider = []
    for novelty in range(Novelty.COUNT):
        own = residual[group % Novelty.COUNT == novelty]
        wider.append(np.quantile(own, LEVELS) if len(own) >= ENOUGH else overall)
    out = np.empty((groups, len(LEVELS)))
    for number in range(groups):
        own = residual[group == number]
        out[number] = np.quantile(own, LEVELS) if len(own) >= ENOUGH else wider[number % Novelty.COUNT]
    return out


class Medians:
    """Medians by destination, by source and of all: the answer where a method has none."""

    def __init__(self, replies: Columns):
        self.sources, self.destinations = Ids(replies.src), Ids(replies.dst)
        self.overall = float(np.median(replies.rtt)) if len(replies) else 50.0
        self.by_source = medians(self.sources.of_rows, replies.rtt, len(self.sources))
        self.by_destination = medians(self.destinations.of_rows, replies.rtt, len(self.destinations))

    def fallback(self, queries: Queries) -> np.ndarray:
        """The destination's median, else the source's, else the overall one."""
        source = np.append(self.by_source, self.overall)[self.sources.find(queries.src)]
        number = self.destinations.find(queries.dst)
        return np.where(number >= 0, np.append(self.by_destination, 0.0)[number], source)
