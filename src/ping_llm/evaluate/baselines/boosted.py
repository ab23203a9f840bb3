"""Gradient-boosted quantiles on what a careful analyst would tabulate: address bytes, time, and statistics
of the pair, the source and the destination.

One model a quantile (Friedman's boosting under the pinball loss), as scikit-learn has it. It is trained as it
is asked: on the inner split, where pairs, sources and destinations are new as they will be. What it learns is
how far off the analyst's first guess is, in log RTT.

Trees remember pairs by their addresses, so quantiles are too narrow on pairs that they were not trained on.
Hence they are trained on half of the pairs (new sources, new destinations) and asked about the other half,
both ways round. By how new a question is, that gives the best number of trees, how far quantiles have to be
moved (Romano, Patterson, Candès, "Conformalized quantile regression", NeurIPS 2019) and the share of the
marginal.
On new pairs of MENOG that brought 8.58 bits down to 7.65.
"""

from typing import Any, Self

import numpy as np

from ping_llm import addresses
from ping_llm.evaluate.baselines import pair_kernels
from ping_llm.evaluate.baselines.base import BACKGROUND, Baseline, marginal
from ping_llm.evaluate.baselines.failure_rates import FailureRates
from ping_llm.evaluate.baselines.point import ENOUGH, FLOOR_MS, Medians, best_share
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids, pairs_of
from ping_llm.evaluate.predictive import Knots, mixed
from ping_llm.evaluate.splits import Novelty, inner_split
from ping_llm.schema import MAX_RTT_MS

QUANTILES = (0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98)

#: Enough rows that more no longer help, few enough for seconds a quantile.
TRAINING_ROWS = 20_000
TREES = 100
LEAVES = 31

#: Shares of the trees to choose from, by how new a question is.
STAGES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

_LEVELS = np.concatenate([[0], QUANTILES, [1]])

#: A source that was not trained on is known by its newest measurements, this many at most.
_LOOK_BACK = 30


class Boosted(Baseline):
    name = "boosted"
    paper = 'Friedman, "Greedy function approximation", 2001; Ke et al., "LightGBM", 2017 (histograms)'
    revision = 2

    def __init__(self, rows: int = TRAINING_ROWS, trees: int = TREES, seed: int = 0):
        self._rows, self._trees, self._seed = rows, trees, seed

    def fit(self, train: Columns) -> Self:
        self._failures, self._background = FailureRates(train), marginal(train)
        self._novelty = Novelty.of(train)
        learn_on, asked, context = inner_split(train)
        novelty = Novelty.of(learn_on)
        chosen = self._chosen(asked, novelty.classes(asked.src, asked.dst))
        limit = context.limit[chosen] if isinstance(context.limit, np.ndarray) else context.limit
        asked, context = asked.take(chosen), context.limited(limit)
        kind = novelty.classes(asked.src, asked.dst)
        self._learn_statistics(learn_on)
        features, guess = self._features(asked.queries(), context)
        target = np.log(asked.rtt + FLOOR_MS) - guess
        first_half = _halves(asked, kind)
        unseen = np.empty((len(self._stages), len(asked), len(QUANTILES)))
        for half in (first_half, ~first_half):
            if half.any() and not half.all():
                unseen[:, ~half] = self._staged(self._boost(features[half], target[half]), features[~half])
            else:
                unseen[:, ~half] = 0.0
        self._adjust(unseen, target, guess, kind, asked.rtt)
        self._models = self._boost(features, target)
        self._learn_statistics(train)
        return self

    def predict(self, queries: Queries, context: History) -> Knots:
        if not len(queries):
            return Knots(np.zeros((0, 2)), np.array([0.0, 1.0]), np.zeros(0))
        features, guess = self._features(queries, context)
        kind = self._novelty.classes(queries.src, queries.dst)
        logs = self._staged(self._models, features)[self._stage[kind], np.arange(len(queries))]
        values = _values(logs + self._moved[kind], guess)
        failure = self._failures.by_pair(queries, context)
        return mixed(values, _LEVELS, self._background, self._share[kind], failure)

    @property
    def _stages(self) -> list[int]:
        return [max(1, round(self._trees * share)) for share in STAGES]

    def _chosen(self, asked: Columns, kind: np.ndarray) -> np.ndarray:
        """Replies to learn from; where there are too many, all kinds of newness get equal shares."""
        chosen = np.flatnonzero(asked.replied)
        if len(chosen) <= self._rows:
            return chosen
        # Four fifths of the inner test are known pairs.
        share = 1.0 / np.maximum(np.bincount(kind[chosen], minlength=Novelty.COUNT), 1)[kind[chosen]]
        random = np.random.default_rng(self._seed)
        return np.sort(random.choice(chosen, self._rows, replace=False, p=share / share.sum()))

    def _boost(self, features: np.ndarray, target: np.ndarray) -> list[Any]:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        models = []
        for level in QUANTILES:
            model = HistGradientBoostingRegressor(
                loss="quantile", quantile=level, max_iter=self._trees, max_leaf_nodes=LEAVES,
                min_samples_leaf=40, learning_rate=0.1, early_stopping=False, random_state=self._seed,
            )  # fmt: skip
            # OpenMP's threads wait by spinning: on a busy machine two are slower than one, by far.
            with threadpool_limits(limits=1):
                models.append(model.fit(features, target))
        return models

    def _staged(self, models: list[Any], features: np.ndarray) -> np.ndarray:
        """float64 [stages, n, quantiles]: what the first so many trees say, ascending."""
        from threadpoolctl import threadpool_limits

        out = np.empty((len(self._stages), len(features), len(QUANTILES)))
        with threadpool_limits(limits=1):
            for column, model in enumerate(models):
                for number, answer in enumerate(model.staged_predict(features), start=1):
                    if number in self._stages:
                        out[self._stages.index(number), :, column] = answer
        return np.sort(out, axis=2)

    def _adjust(
        self, unseen: np.ndarray, target: np.ndarray, guess: np.ndarray, kind: np.ndarray, rtt: np.ndarray
    ) -> None:
        """Of each newness: the number of trees, the quantiles' moves and the marginal's share."""
        levels = np.array(QUANTILES)
        off = target[:, None] - unseen
        pinball = np.where(off > 0, levels * off, (levels - 1) * off).mean(axis=2)
        wide = Knots(
            self._background.values, self._background.levels, np.zeros(len(rtt)), np.zeros(len(rtt), np.int64)
        ).bin_probability(rtt)
        self._stage = np.full(Novelty.COUNT, len(self._stages) - 1)
        self._moved = np.zeros((Novelty.COUNT, len(QUANTILES)))
        self._share = np.full(Novelty.COUNT, BACKGROUND)
        for number in range(Novelty.COUNT):
            rows = np.flatnonzero(kind == number)
            if len(rows) < ENOUGH:
                rows = np.flatnonzero(kind != Novelty.KNOWN_PAIR)
            if len(rows) < ENOUGH:
                continue
            stage = self._stage[number] = int(np.argmin(pinball[:, rows].mean(axis=1)))
            for column, level in enumerate(QUANTILES):
                self._moved[number, column] = np.quantile(off[stage, rows, column], level)
            values = _values(unseen[stage, rows] + self._moved[number], guess[rows])
            own = Knots(values, _LEVELS, np.zeros(len(rows))).bin_probability(rtt[rows])
            self._share[number] = best_share(own, wide[rows])

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


def _halves(asked: Columns, kind: np.ndarray) -> np.ndarray:
    """True for one half of the pairs; new sources and new destinations are not divided."""
    src, dst = Ids(asked.src).of_rows, Ids(asked.dst).of_rows
    pair = Ids(pairs_of(asked.src, asked.dst)).of_rows
    by_source = (kind == Novelty.NEW_SOURCE) | (kind == Novelty.NEW_ENDS)
    number = np.where(by_source, src, np.where(kind == Novelty.NEW_DESTINATION, dst, pair))
    return number % 2 == 0


def _values(logs: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """ms at _LEVELS; beyond the outermost quantiles as far again as they are from the next."""
    logs = np.sort(logs, axis=1) + guess[:, None]
    low = logs[:, :1] - np.maximum(logs[:, 1:2] - logs[:, :1], 0.02)
    high = logs[:, -1:] + np.maximum(logs[:, -1:] - logs[:, -2:-1], 0.02)
    return np.clip(np.exp(np.concatenate([low, logs, high], axis=1)) - FLOOR_MS, 0, MAX_RTT_MS)
