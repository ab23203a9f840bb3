"""Gradient-boosted quantiles on what a careful analyst would tabulate: address bytes, time, and statistics
of the pair, the source and the destination.

One model a quantile (Friedman's boosting under the pinball loss), as scikit-learn has it. It is trained as it
is asked: on the inner split, where pairs, sources and destinations are new as they will be. What it learns is
how far off the analyst's first guess is, in log RTT.
"""

from typing import Self

import numpy as np

from ping_llm import addresses
from ping_llm.evaluate.baselines import pair_kernels
from ping_llm.evaluate.baselines.base import BACKGROUND, Baseline, marginal
from ping_llm.evaluate.baselines.failure_rates import FailureRates
from ping_llm.evaluate.baselines.point import FLOOR_MS, Medians
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.predictive import Knots, mixed
from ping_llm.evaluate.splits import Novelty, inner_split
from ping_llm.schema import MAX_RTT_MS

QUANTILES = (0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98)

#: Enough rows that more no longer help, few enough for seconds a quantile.
TRAINING_ROWS = 20_000
TREES = 100
LEAVES = 31

#: A source that was not trained on is known by its newest measurements, this many at most.
_LOOK_BACK = 30


class Boosted(Baseline):
    name = "boosted"
    paper = 'Friedman, "Greedy function approximation", 2001; Ke et al., "LightGBM", 2017 (histograms)'

    def __init__(self, rows: int = TRAINING_ROWS, trees: int = TREES, seed: int = 0):
        self._rows, self._trees, self._seed = rows, trees, seed

    def fit(self, train: Columns) -> Self:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        self._failures, self._background = FailureRates(train), marginal(train)
        learn_on, asked, context = inner_split(train)
        random = np.random.default_rng(self._seed)
        chosen = np.flatnonzero(asked.replied)
        if len(chosen) > self._rows:
            # Four fifths of the inner test are known pairs: the rarer kinds of newness get equal shares.
            kind = Novelty.of(learn_on).classes(asked.src[chosen], asked.dst[chosen])
            share = 1.0 / np.maximum(np.bincount(kind, minlength=5), 1)[kind]
            chosen = np.sort(random.choice(chosen, self._rows, replace=False, p=share / share.sum()))
        limit = context.limit[chosen] if isinstance(context.limit, np.ndarray) else context.limit
        asked, context = asked.take(chosen), context.limited(limit)
        self._learn_statistics(learn_on)
        features, guess = self._features(asked.queries(), context)
        target = np.log(asked.rtt + FLOOR_MS) - guess
        self._models = []
        for level in QUANTILES:
            model = HistGradientBoostingRegressor(
                loss="quantile", quantile=level, max_iter=self._trees, max_leaf_nodes=LEAVES,
                min_samples_leaf=40, learning_rate=0.1, random_state=self._seed,
            )  # fmt: skip
            # OpenMP's threads wait by spinning: on a busy machine two are slower than one, by far.
            with threadpool_limits(limits=1):
                self._models.append(model.fit(features, target))
        self._learn_statistics(train)
        return self

    def predict(self, queries: Queries, context: History) -> Knots:
        from threadpoolctl import threadpool_limits

        if not len(queries):
            return Knots(np.zeros((0, 2)), np.array([0.0, 1.0]), np.zeros(0))
        features, guess = self._features(queries, context)
        with threadpool_limits(limits=1):
            logs = np.stack([model.predict(features) for model in self._models], axis=1)
        logs = np.sort(logs, axis=1) + guess[:, None]
        # Beyond the outermost quantiles the distribution ends as far again as they are from the next.
        low = logs[:, :1] - np.maximum(logs[:, 1:2] - logs[:, :1], 0.02)
        high = logs[:, -1:] + np.maximum(logs[:, -1:] - logs[:, -2:-1], 0.02)
        values = np.clip(np.exp(np.concatenate([low, logs, high], axis=1)) - FLOOR_MS, 0, MAX_RTT_MS)
        levels = np.concatenate([[0], QUANTILES, [1]])
        failure = self._failures.by_pair(queries, context)
        return mixed(values, levels, self._background, np.full(len(queries), BACKGROUND), failure)

    def _learn_statistics(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians, self._past = Medians(replies), History(replies)
        counts = (self._medians.sources, self._medians.destinations)
        self._counts = [np.append(np.bincount(ids.of_rows, minlength=len(ids)), 0) for ids in counts]

    def _features(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """float64 [n, features], where NaN is "unknown", and a first guess of the log RTT, [n]."""
        columns = []
        for packed in (queries.src, queries.dst):
            ipv4 = addresses.is_ipv4(packed)
            start = np.where(ipv4, 12, 0)
            octets = np.take_along_axis(packed, start[:, None] + np.arange(4), axis=1).astype(np.float64)
            columns += [ipv4, *octets.T, octets[:, 0] * 65536 + octets[:, 1] * 256 + octets[:, 2]]
        hour = queries.time / 3_600_000_000
        columns += [hour % 24, (hour // 24) % 7]
        medians, typical = self._medians, []
        for ids, values, counts, packed in (
            (medians.sources, medians.by_source, self._counts[0], queries.src),
            (medians.destinations, medians.by_destination, self._counts[1], queries.dst),
        ):
            number = ids.find(packed)
            typical.append(np.log(np.append(values, np.nan)[number] + FLOOR_MS))
            columns += [typical[-1], np.log1p(counts[number])]
        pair = np.full(len(queries), np.nan)
        for past in (context.replies_of_pair(queries), self._past.replies_of_pair(queries)):
            for kind in (pair_kernels.LAST, pair_kernels.RECENT_MEDIAN):
                point, count, spread = pair_kernels.from_past(
                    past.columns.rtt, past.columns.time, past.low, past.high, queries.time, kind
                )
                columns.append(np.where(count > 0, np.log(point + FLOOR_MS), np.nan))
            pair = np.where(np.isnan(pair), columns[-1], pair)
            columns += [np.log1p(count), np.where(count > 1, spread, np.nan)]
        level, known = self._source_level(queries, context)
        columns += [level, known]
        # The pair's recent median; else the destination's, moved by the source's level; else the source's.
        source, destination = typical
        guess = np.where(np.isnan(pair), destination + np.nan_to_num(level) * known / (known + 2.0), pair)
        guess = np.where(np.isnan(guess), source, guess)
        guess = np.where(np.isnan(guess), np.log(medians.overall + FLOOR_MS), guess)
        columns.append(guess)
        return np.stack([np.asarray(column, np.float64) for column in columns], axis=1), guess

    def _source_level(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """How far the source's newest measurements lie from the medians of their destinations."""
        past = context.of_source(queries)
        number = self._medians.destinations.find(past.columns.dst)
        typical = np.append(self._medians.by_destination, np.nan)[number]
        above = np.log((np.maximum(past.columns.rtt, 0) + FLOOR_MS) / (typical + FLOOR_MS))
        usable = past.columns.replied & ~np.isnan(above)
        total = np.concatenate([[0.0], np.cumsum(np.where(usable, above, 0.0))])
        count = np.concatenate([[0], np.cumsum(usable)])
        low = np.maximum(past.low, past.high - _LOOK_BACK)
        found = count[past.high] - count[low]
        mean = (total[past.high] - total[low]) / np.maximum(found, 1)
        return np.where(found > 0, mean, np.nan), found
