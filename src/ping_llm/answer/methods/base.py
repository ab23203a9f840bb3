"""Common parts of the simple methods: interface, failure rates, and distributions from point predictions.

A method is fitted to measurements, then answers queries with distributions. P(no reply) is estimated by
destination, source and pair, each shrunk to the rate of the wider group (empirical Bayes).

A method that predicts one number learns its relative error on an inner split that mirrors the outer one
(`splits.inner_split`): it is fitted to a part of the training data and queried about the rest. The quantiles
of log(actual / predicted), by novelty of the query and by the method's own groups, become its spread. Then
it is fitted to all of the training data. This is a split-conformal predictive distribution (Vovk et al.,
"Cross-conformal predictive distributions", COPA 2018).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from ping_llm.answer.distribution import Predictive, RttDistributions, bits_of, mixed
from ping_llm.answer.methods import pair_kernels
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.schema import MAX_RTT_MS
from ping_llm.splits.novelty import Novelty

#: Levels at which distributions are tabulated: 1/64 apart in the middle, finer in the tails.
LEVELS = np.unique(
    np.concatenate([[0, 0.001, 0.0025, 0.005], np.linspace(0, 1, 65), [0.995, 0.9975, 0.999, 1]])
)

#: Share of the training marginal in every answer, which bounds the cost of an unexpected result.
BACKGROUND = 0.02


class Answering(ABC):
    """A method that can be evaluated: after `fit`, `predict` may be called any number of times."""

    name: str
    #: Publication of the method.
    paper: ClassVar[str] = ""
    #: Increased when its answers change, so that cached answers are not reused.
    revision: ClassVar[int] = 1

    @abstractmethod
    def fit(self, train: Columns) -> Self: ...

    @abstractmethod
    def predict(self, queries: Queries, context: History) -> Predictive:
        """Answer each query from the training data and the earlier measurements in `context`."""


class Method(Answering):
    """A simple method, whose answers can be mixed."""

    @abstractmethod
    def predict(self, queries: Queries, context: History) -> RttDistributions: ...


#: Share of the marginal's tail (its part for RTTs that were not observed) above twice the largest RTT.
_FAR = 0.01


def marginal(train: Columns) -> RttDistributions:
    """Distribution of the training replies, as one row, with a thin tail up to the schema's largest RTT.

    The tail has one part in a thousand (more with fewer than 1,000 replies). It is even in log RTT up to
    twice the largest RTT, and then falls with the square of the RTT. If it were even up to the hour that the
    schema allows, it would add 240 ms to every mean.
    """
    rtt = train.rtt[train.replied]
    if not len(rtt):
        rtt = np.array([1.0, 100.0])
    values = np.quantile(rtt, LEVELS)
    top = min(max(2 * float(rtt.max()), 10.0), MAX_RTT_MS / 4)
    near = np.expm1(np.linspace(0, np.log1p(top), 33))
    far = np.exp(np.linspace(np.log(top), np.log(MAX_RTT_MS), 17))[1:]
    levels = np.concatenate([np.linspace(0, 1 - _FAR, 33), 1 - _FAR * (top / far) ** 2])
    levels[-1] = 1.0
    everything = RttDistributions(np.concatenate([near, far])[None], levels, np.zeros(1))
    weight = np.array([1.0 / (1.0 + min(len(rtt), 1000))])
    return mixed(values[None], LEVELS, everything, weight, np.zeros(1))


def medians(number: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Median of the values of each group 0 … size - 1; no group may be empty."""
    order = np.lexsort((values, number))
    start = np.searchsorted(number[order], np.arange(size))
    end = np.searchsorted(number[order], np.arange(size), side="right")
    ranked = values[order]
    out: np.ndarray = 0.5 * (ranked[start + (end - start - 1) // 2] + ranked[start + (end - start) // 2])
    return out


#: Strength of the shrinkage of a group's rate to the rate of the wider group, in results.
PRIOR_RESULTS = 10.0

#: Strength of the shrinkage of a pair's newest results to its rate in training, in results.
RECENT_PRIOR_RESULTS = 2.0


class FailureRates:
    """Failure rates of sources, destinations and pairs in training data."""

    def __init__(self, train: Columns):
        failed = ~train.replied
        self.overall = float((failed.sum() + 0.5) / (len(train) + 1.0))
        self._src, self._dst = Ids(train.src), Ids(train.dst)
        self._pair = Ids(pairs_of(train.src, train.dst))
        self._src_counts = _counts(self._src, failed)
        self._dst_counts = _counts(self._dst, failed)
        self._pair_counts = _counts(self._pair, failed)

    def by_source(self, queries: Queries) -> np.ndarray:
        return _shrunk(self._src_counts, self._src.find(queries.src), self.overall)

    def by_destination(self, queries: Queries) -> np.ndarray:
        return _shrunk(self._dst_counts, self._dst.find(queries.dst), self.overall)

    def measurements_to(self, queries: Queries) -> np.ndarray:
        """Number of training measurements to each query's destination, int64 [n]."""
        out: np.ndarray = np.append(self._dst_counts[1], 0)[self._dst.find(queries.dst)].astype(np.int64)
        return out

    def by_ends(self, queries: Queries) -> np.ndarray:
        """Failure rate by both ends: the product of their odds relative to the overall odds."""
        ends = _odds(self.by_source(queries)) * _odds(self.by_destination(queries))
        odds: np.ndarray = ends / _odds(self.overall)
        out: np.ndarray = odds / (1 + odds)
        return out

    def by_pair(self, queries: Queries, context: History) -> np.ndarray:
        """Failure rate of the pair in training, updated by its newest results before the query."""
        number = self._pair.find(pairs_of(queries.src, queries.dst))
        trained = _shrunk(self._pair_counts, number, self.by_ends(queries))
        past = context.results_of_pair(queries)
        failed, weight = pair_kernels.recent_failures(past.columns.rtt, past.low, past.high)
        out: np.ndarray = (failed + RECENT_PRIOR_RESULTS * trained) / (weight + RECENT_PRIOR_RESULTS)
        return out


def _counts(ids: Ids, failed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.bincount(ids.of_rows, failed, len(ids)), np.bincount(ids.of_rows, minlength=len(ids))


def _shrunk(
    counts: tuple[np.ndarray, np.ndarray], number: np.ndarray, wider: float | np.ndarray
) -> np.ndarray:
    failures, total = (np.append(c, 0.0)[number] for c in counts)  # -1, a new group, reads the appended zero
    out: np.ndarray = (failures + PRIOR_RESULTS * wider) / (total + PRIOR_RESULTS)
    return out


def _odds[P: (float, np.ndarray)](probability: P) -> P:
    out: P = probability / (1 - probability)
    return out


#: Predicted RTT without any reply in the training data, ms.
UNKNOWN_MS = 50.0

#: Residuals are log((y + FLOOR) / (x + FLOOR)), so that errors below 0.1 ms do not matter.
FLOOR_MS = 0.1

#: Least number of residuals that determine tails; with fewer, those of a wider group are used.
ENOUGH = 60


#: Candidate shares of the marginal.
SHARES = (0.005, 0.01, BACKGROUND, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)


@dataclass(frozen=True)
class Errors:
    """The errors of a point method, learned from questions about held-out measurements.

    Attributes:
      residuals: float64 [groups · Novelty.COUNT, levels], quantiles of the log ratio at LEVELS.
      shares: float64 [Novelty.COUNT], the share of the marginal in its answers.
    """

    residuals: np.ndarray
    shares: np.ndarray


class PointMethod(Method):
    """A method that predicts one number, and a group whose predictions are about equally good."""

    #: Number of groups that `points` may return, numbered from 0.
    groups: ClassVar[int] = 1

    #: Its errors on other small sets of measurements, used where the given ones are too few; or None.
    elsewhere: Errors | None = None
    NOT_KEPT = ("elsewhere",)

    #: Whether the training data have no reply; False in methods that are older than this attribute.
    silent: bool = False

    @abstractmethod
    def learn(self, train: Columns) -> None:
        """Learn from measurements what `points` needs."""

    @abstractmethod
    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """Return the predicted RTTs in ms, [n], and the group of each prediction, int [n]."""

    def failure(self, queries: Queries, context: History) -> np.ndarray:
        return self.failures.by_ends(queries)

    def background_share(
        self, queries: Queries, context: History, novelty: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Share of the marginal in each answer, float64 [n]; `values` are the method's own, at LEVELS."""
        share: np.ndarray = self._weights[novelty]
        return share

    def newness(self, queries: Queries, context: History) -> np.ndarray:
        """Class of `Novelty` of each query for the method, int64 [n]."""
        return self._novelty.classes(queries.src, queries.dst)

    def fit(self, train: Columns) -> Self:
        from ping_llm.splits.holdout import inner_split  # imported late: it loads DuckDB

        learn_on, asked, context = inner_split(train)
        self.background = marginal(train)
        self._learn(learn_on)
        replied = asked.replied
        if learn_on is train and self.elsewhere is not None:
            replied = np.zeros(len(asked), bool)  # nothing could be held out, so no errors are learned
        asked = asked.take(replied)
        predicted, group = self._points(asked.queries(), context.for_some(replied))
        novelty = Novelty.of(learn_on).classes(asked.src, asked.dst)
        wide = probability_by(self.background, asked.rtt)
        errors = self._errors(asked, predicted, group, novelty, wide)
        self._residuals, self._weights = errors.residuals, errors.shares
        self._learn(train)
        self.failures, self._novelty = FailureRates(train), Novelty.of(train)
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        predicted, group = self._points(queries, context)
        novelty = self.newness(queries, context)
        values = _spread(predicted, self._residuals[group * Novelty.COUNT + novelty])
        failure = self.failure(queries, context)
        share = self.background_share(queries, context, novelty, values)
        out = mixed(values, LEVELS, self.background, share, failure)
        # The share of the marginal and the shift minimise bits; the point estimate stays the method's own.
        return RttDistributions(out.values, out.levels, failure, point=np.maximum(predicted, 0.0))

    def _learn(self, train: Columns) -> None:
        self.silent = not train.replied.any()
        if not self.silent:
            self.learn(train)

    def _points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        if self.silent:  # without any reply, no method can predict an RTT
            return np.full(len(queries), UNKNOWN_MS), np.full(len(queries), self.groups - 1)
        return self.points(queries, context)

    def errors_on(self, small: Iterable[tuple[Columns, Columns, History]]) -> Errors:
        """Learn errors on many small sets: (measurements to learn from, questions, their history)."""
        asked, predicted, group, novelty, wide = [], [], [], [], []
        for train, questions, context in small:
            some = questions.take(questions.replied)
            if not len(some):
                continue
            self._learn(train)
            made = self._points(some.queries(), context)
            asked.append(some)
            predicted.append(made[0])
            group.append(made[1])
            novelty.append(Novelty.of(train).classes(some.src, some.dst))
            wide.append(probability_by(marginal(train), some.rtt))
        return self._errors(
            Columns.concatenate(asked),
            *(np.concatenate(each) for each in (predicted, group, novelty, wide)),
        )

    def _errors(
        self,
        asked: Columns,
        predicted: np.ndarray,
        group: np.ndarray,
        novelty: np.ndarray,
        wide: np.ndarray,
    ) -> Errors:
        """Learn residuals, and by novelty the share of the marginal that costs the fewest bits.

        The share is chosen across two halves of the questions, by source: each half is scored with the
        residuals of the other.

        Args:
          wide: float64 [n], the marginal's probability of each result.
        """
        number = group * Novelty.COUNT + novelty
        tables, known = self.groups * Novelty.COUNT, self.elsewhere
        residuals = _residual_tables(predicted, asked.rtt, number, tables, known)
        first = Ids(asked.src).of_rows % 2 == 0
        own = np.zeros(len(asked))
        for half in (first, ~first):
            table = _residual_tables(predicted[half], asked.rtt[half], number[half], tables, known)
            values = _spread(predicted[~half], table[number[~half]])
            answers = RttDistributions(values, LEVELS, np.zeros(len(values)))
            own[~half] = answers.bin_probability(asked.rtt[~half])
        shares = np.full(Novelty.COUNT, BACKGROUND) if known is None else known.shares.copy()
        for each in range(Novelty.COUNT):
            if (novelty == each).sum() >= ENOUGH:
                shares[each] = best_share(own[novelty == each], wide[novelty == each])
        return Errors(residuals, shares)


def probability_by(one: RttDistributions, rtt: np.ndarray) -> np.ndarray:
    """Probability of each result's millisecond bin by the only distribution of `one`, [n]."""
    same = np.zeros(len(rtt), np.int64)
    return RttDistributions(one.values, one.levels, np.zeros(len(rtt)), same).bin_probability(rtt)


def best_share(own: np.ndarray, wide: np.ndarray) -> float:
    """Share of the marginal that costs the fewest bits.

    Args:
      own, wide: probability of each result by the method and by the marginal, [n].
    """
    shares = np.array(SHARES)[:, None]
    return SHARES[int(np.argmin(bits_of((1 - shares) * own + shares * wide).mean(axis=1)))]


def _spread(predicted: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """RTTs at LEVELS for each prediction, by its table of residuals."""
    values = (np.maximum(predicted, 0.0)[:, None] + FLOOR_MS) * np.exp(residuals) - FLOOR_MS
    out: np.ndarray = np.clip(values, 0.0, MAX_RTT_MS)
    return out


def _residual_tables(
    predicted: np.ndarray, actual: np.ndarray, group: np.ndarray, groups: int, elsewhere: Errors | None
) -> np.ndarray:
    """Quantiles of the log ratio by group, float64 [groups, levels].

    With at least ENOUGH residuals they are those of the group, else those of its novelty class, else of all
    residuals. If errors `elsewhere` are given, they replace the latter, and are mixed with the group's own as
    if they were ENOUGH residuals.
    """
    residual = np.log((actual + FLOOR_MS) / (np.maximum(predicted, 0.0) + FLOOR_MS))
    overall = np.quantile(residual, LEVELS) if len(residual) else np.linspace(-1, 1, len(LEVELS))
    wider = []
    for novelty in range(Novelty.COUNT):
        own = residual[group % Novelty.COUNT == novelty]
        wider.append(np.quantile(own, LEVELS) if len(own) >= ENOUGH else None)
    out = np.empty((groups, len(LEVELS)))
    for number in range(groups):
        own = residual[group == number]
        of_novelty = wider[number % Novelty.COUNT]
        if len(own) >= ENOUGH:
            out[number] = np.quantile(own, LEVELS)
        elif of_novelty is not None:
            out[number] = of_novelty
        elif elsewhere is None:
            out[number] = overall
        else:
            out[number] = elsewhere.residuals[number]
            if len(own):
                share = len(own) / (len(own) + ENOUGH)
                out[number] += share * (np.quantile(own, LEVELS) - out[number])
    return out


class Medians:
    """Medians by destination, by source and of all replies, for queries that a method cannot answer."""

    def __init__(self, replies: Columns):
        self.sources, self.destinations = Ids(replies.src), Ids(replies.dst)
        self.overall = float(np.median(replies.rtt)) if len(replies) else UNKNOWN_MS
        self.by_source = medians(self.sources.of_rows, replies.rtt, len(self.sources))
        self.by_destination = medians(self.destinations.of_rows, replies.rtt, len(self.destinations))

    def fallback(self, queries: Queries) -> np.ndarray:
        """Median of the destination, else of the source, else of all replies."""
        source = np.append(self.by_source, self.overall)[self.sources.find(queries.src)]
        number = self.destinations.find(queries.dst)
        out: np.ndarray = np.where(number >= 0, np.append(self.by_destination, 0.0)[number], source)
        return out
