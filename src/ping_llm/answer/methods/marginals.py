"""Marginal distributions: of all training results, of the query's source, and of its destination.

`global` is a smoothed histogram over 1-ms bins of all results. Every other method should be better.

`by source` and `by destination` use the training results of one end, with the marginal of all results as a
Dirichlet prior while they are few. For a source that was not trained on, they are its measurements before the
query. The results of an end come from a few pairs, and those of another pair differ from them. So a share of
the marginal of all is mixed in. By novelty of the question, it is the share that costs the fewest bits on an
inner split of the training data.
"""

from typing import Self

import numpy as np

from ping_llm.answer.distribution import RttDistributions, mixed
from ping_llm.answer.methods.base import (
    BACKGROUND,
    ENOUGH,
    LEVELS,
    FailureRates,
    Method,
    best_share,
    marginal,
)
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids
from ping_llm.measurements.schema import MAX_RTT_MS
from ping_llm.splits.novelty import Novelty

#: End of the 1-ms bins. Above, bins grow by a hundredth: no data set is large enough for narrower ones.
_FINE_MS = 1024

#: Share of the smooth marginal in `global` with many results; with fewer it is larger.
_SMOOTHING = 0.1


class Global(Method):
    name = "global"

    def fit(self, train: Columns) -> Self:
        rtt = train.rtt[train.replied]
        ratio = np.log(MAX_RTT_MS / _FINE_MS)
        coarse = _FINE_MS * np.exp(np.linspace(0, ratio, int(ratio / np.log(1.01)))[1:])
        edges = np.concatenate([np.arange(_FINE_MS + 1.0), np.ceil(coarse)])
        smooth = marginal(train)
        smooth = RttDistributions(
            smooth.values, smooth.levels, np.zeros(len(edges)), np.zeros(len(edges), np.int64)
        )
        level = smooth.cdf(edges)
        level[0], level[-1] = 0.0, 1.0
        if len(rtt):
            exact = np.searchsorted(np.sort(rtt), edges, side="left") / len(rtt)
            exact[-1] = 1.0
            # With few results a histogram is mostly holes: its weight grows with results per bin.
            trust = (1 - _SMOOTHING) * len(rtt) / (len(rtt) + 300.0)
            level = trust * exact + (1 - trust) * level
        self._edges, self._levels = edges, level
        self._failure = FailureRates(train).overall
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        n = len(queries)
        return RttDistributions(
            self._edges[None], self._levels, np.full(n, self._failure), np.zeros(n, np.int64)
        )


#: Strength of the marginal of all as a prior, in results of the end.
_PRIOR_RESULTS = 3.0

#: Largest number of newest replies that describe a new source.
_LOOK_BACK = 64


#: Largest number of measurements that the shares of the marginal are chosen on.
_CHOSEN_ON = 20_000


class _ByEnd(Method):
    revision = 2

    def fit(self, train: Columns) -> Self:
        from ping_llm.splits.holdout import inner_split  # imported late: it loads DuckDB

        learn_on, asked, context = inner_split(train)
        chosen = np.flatnonzero(asked.replied)
        if len(chosen) > _CHOSEN_ON:
            chosen = np.sort(np.random.default_rng(0).choice(chosen, _CHOSEN_ON, replace=False))
        asked, context = asked.take(chosen), context.for_some(chosen)
        self._learn(learn_on)
        kind = self._novelty.classes(asked.src, asked.dst)
        own = self._own(asked.queries(), context).bin_probability(asked.rtt)
        row = np.zeros(len(asked), np.int64)
        wide = RttDistributions(self._background.values, self._background.levels, np.zeros(len(asked)), row)
        wide_probability = wide.bin_probability(asked.rtt)
        self._share = np.full(Novelty.COUNT, BACKGROUND)
        for number in range(Novelty.COUNT):
            if (kind == number).sum() >= ENOUGH:
                self._share[number] = best_share(own[kind == number], wide_probability[kind == number])
        self._learn(train)
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        own = self._own(queries, context)
        share = self._share[self._novelty.classes(queries.src, queries.dst)]
        return mixed(own.values[own.row], own.levels[own.row], self._background, share, own.failure)

    def _learn(self, train: Columns) -> None:
        self._novelty = Novelty.of(train)
        replies = train.take(train.replied)
        self._failures = FailureRates(train)
        self._background = marginal(train)
        keys = self._end(replies)
        self._ids = Ids(keys)
        order = np.lexsort((replies.rtt, self._ids.of_rows))
        ranked, count = replies.rtt[order], np.bincount(self._ids.of_rows, minlength=len(self._ids))
        start = np.concatenate([[0], np.cumsum(count)[:-1]])
        at = start[:, None] + LEVELS * np.maximum(count - 1, 0)[:, None]
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(len(ranked) - 1, 0))
        within = high < (start + count)[:, None]
        high = np.where(within, high, low)
        values = ranked[low] + (at - low) * (ranked[high] - ranked[low])
        own = mixed(values, LEVELS, self._background, _weight(count), np.zeros(len(count)))
        # The last row is for an end without any results.
        nothing = mixed(self._background.quantile(LEVELS), LEVELS, self._background, np.ones(1), np.zeros(1))
        self._values = np.concatenate([own.values, nothing.values])
        self._levels = np.concatenate([own.levels, nothing.levels])

    def _own(self, queries: Queries, context: History) -> RttDistributions:
        """Return the distribution of each query's end."""
        raise NotImplementedError

    def _end(self, of: Columns | Queries) -> np.ndarray:
        raise NotImplementedError

    def _rows(self, queries: Queries) -> np.ndarray:
        number = self._ids.find(self._end(queries))
        return np.where(number >= 0, number, len(self._values) - 1)


class BySource(_ByEnd):
    name = "by source"

    def _end(self, of: Columns | Queries) -> np.ndarray:
        return of.src

    def _own(self, queries: Queries, context: History) -> RttDistributions:
        row, failure = self._rows(queries), self._failures.by_source(queries)
        new = np.flatnonzero(row == len(self._values) - 1)
        if not len(new):
            return RttDistributions(self._values, self._levels, failure, row)
        past = context.for_some(new).of_source(queries.take(new))
        values, count = _newest_quantiles(past.columns.rtt, past.low, past.high)
        own = mixed(values, LEVELS, self._background, _weight(count), np.zeros(len(new)))
        row[new] = len(self._values) + np.arange(len(new))
        return RttDistributions(
            np.concatenate([self._values, own.values]),
            np.concatenate([self._levels, own.levels]),
            failure,
            row,
        )


class ByDestination(_ByEnd):
    name = "by destination"

    def _end(self, of: Columns | Queries) -> np.ndarray:
        return of.dst

    def _own(self, queries: Queries, context: History) -> RttDistributions:
        return RttDistributions(
            self._values, self._levels, self._failures.by_destination(queries), self._rows(queries)
        )


def _weight(count: np.ndarray) -> np.ndarray:
    return np.maximum(_PRIOR_RESULTS / (count + _PRIOR_RESULTS), BACKGROUND)


def _newest_quantiles(rtt: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles at LEVELS of the newest replies of rtt[low:high], and the number of replies."""
    offset = np.arange(-_LOOK_BACK, 0)
    at = high[:, None] + offset
    inside = at >= low[:, None]
    values = np.where(inside, rtt[np.maximum(at, 0)], -1.0) if len(rtt) else np.full(at.shape, -1.0)
    values = np.where(values >= 0, values, np.nan)
    count = (~np.isnan(values)).sum(axis=1)
    values = np.sort(values, axis=1)  # NaN last
    position = LEVELS * np.maximum(count - 1, 0)[:, None]
    floor = np.floor(position).astype(np.int64)
    ceiling = np.minimum(floor + 1, np.maximum(count - 1, 0)[:, None])
    rows = np.arange(len(values))[:, None]
    left, right = values[rows, floor], values[rows, ceiling]
    out = np.where(count[:, None] > 0, left + (position - floor) * (right - left), 0.0)
    return np.nan_to_num(out), count
