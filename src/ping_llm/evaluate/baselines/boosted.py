"""Gradient-boosted quantiles on what a careful analyst would tabulate: address bytes, time, and statistics
of the pair, the source and the destination.

One model a quantile (Friedman's boosting under the pinball loss), as scikit-learn has it. It is trained as it
is asked: statistics come from an earlier part of the training data, and rows lose the pair's, the source's
or the destination's, so that it learns to do without.
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
from ping_llm.evaluate.splits import inner_split
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
            chosen = np.sort(random.choice(chosen, self._rows, replace=False))
        limit = context.limit[chosen] if isinstance(context.limit, np.ndarray) else context.limit
        asked, context = asked.take(chosen), context.limited(limit)
        self._learn_statistics(learn_on)
        features = self._features(asked.queries(), context)
        target = np.log(asked.rtt + FLOOR_MS)
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
        features = self._features(queries, context)
        with threadpool_limits(limits=1):
            logs = np.stack([model.predict(features) for model in self._models], axis=1)
        logs = np.sort(logs, axis=1)
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

    def _features(self, queries: Queries, context: History) -> np.ndarray:
        """float64 [n, features]; NaN is "unknown", which the trees take as a value of its own."""
        columns = []
        for packed in (queries.src, queries.dst):
            ipv4 = addresses.is_ipv4(packed)
            start = np.where(ipv4, 12, 0)
            octets = np.take_along_axis(packed, start[:, None] + np.arange(4), axis=1).astype(np.float64)
            columns += [ipv4, *octets.T, octets[:, 0] * 65536 + octets[:, 1] * 256 + octets[:, 2]]
        hour = queries.time / 3_600_000_000
        columns += [hour % 24, (hour // 24) % 7]
        medians = self._medians
        for ids, values, counts, packed in (
            (medians.sources, medians.by_source, self._counts[0], queries.src),
            (medians.destinations, medians.by_destination, self._counts[1], queries.dst),
        ):
            number = ids.find(packed)
            columns += [np.log(np.append(values, np.nan)[number] + FLOOR_MS), np.log1p(counts[number])]
        for past in (context.replies_of_pair(queries), self._past.replies_of_pair(queries)):
            for kind in (pair_kernels.LAST, pair_kernels.RECENT_MEDIAN):
                point, count, spread = pair_kernels.from_past(
                    past.columns.rtt, past.columns.time, past.low, past.high, queries.time, kind
                )
                columns.append(np.where(count > 0, np.log(point + FLOOR_MS), np.nan))
            columns += [np.log1p(count), np.where(count > 1, spread, np.nan)]
        columns += self._source_level(queries, context)
        return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)

    def _source_level(self, queries: Queries, context: History) -> list[np.ndarray]:
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
        return [np.where(found > 0, mean, np.nan), found]
