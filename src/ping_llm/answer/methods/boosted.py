"""Gradient-boosted quantiles on hand-made features: address bytes, time, and statistics of pair, source and
destination.

One model per quantile (Friedman's boosting under the pinball loss) is fitted by scikit-learn on the inner
split, where pairs, sources and destinations are new as they will be in use. It predicts the error of a first
guess, in log RTT. The fitted trees are stored as plain arrays (`Trees`), so a run can be queried without
scikit-learn.

Trees memorise pairs by their addresses, so quantiles are too narrow on pairs that they were not trained on.
Therefore they are trained on half of the pairs (new sources, new destinations) and tested on the other half,
and vice versa. By novelty of the question, this gives the best number of trees, the correction of the
quantiles (Romano, Patterson, Candès, "Conformalized quantile regression", NeurIPS 2019) and the share of the
marginal. On new pairs of MENOG it reduced 8.58 bits to 7.65.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ping_llm.answer.distribution import RttDistributions, mixed
from ping_llm.answer.methods import pair_kernels
from ping_llm.answer.methods.base import (
    BACKGROUND,
    ENOUGH,
    FLOOR_MS,
    FailureRates,
    Medians,
    Method,
    best_share,
    marginal,
    probability_by,
)
from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.measurements import addresses
from ping_llm.measurements.columns import NO_TIME, Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.schema import HOUR_US, MAX_RTT_MS
from ping_llm.splits.novelty import Novelty


class Trees:
    """Several sums of trees over the same features.

    Attributes:
      base: float64 [models], initial value of each sum.
      first: int64 [models, trees], the root node of each tree.
      feature, left, right: int32 [nodes]; feature is -1 for a leaf. Children come after their parent.
      threshold, value: float64 [nodes]; a feature of at most `threshold` goes left.
      missing_left: bool [nodes], whether NaN goes left.
    """

    def __init__(
        self,
        base: np.ndarray,
        first: np.ndarray,
        feature: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        threshold: np.ndarray,
        value: np.ndarray,
        missing_left: np.ndarray,
    ) -> None:
        self.base, self.first = base, first
        self.feature, self.left, self.right = feature, left, right
        self.threshold, self.value, self.missing_left = threshold, value, missing_left

    @classmethod
    def of(cls, models: Sequence[Any]) -> "Trees":
        """Make trees from fitted HistGradientBoostingRegressors with equal numbers of trees."""
        nodes, first, at = [], [], 0
        for model in models:
            roots = []
            for (predictor,) in model._predictors:
                roots.append(at)
                part = predictor.nodes.copy()
                part["left"] += at
                part["right"] += at
                nodes.append(part)
                at += len(part)
            first.append(roots)
        every = np.concatenate(nodes)
        is_leaf = every["is_leaf"].astype(bool)
        return cls(
            np.array([float(np.ravel(model._baseline_prediction)[0]) for model in models]),
            np.array(first, np.int64),
            np.where(is_leaf, -1, every["feature_idx"]).astype(np.int32),
            every["left"].astype(np.int32),
            every["right"].astype(np.int32),
            every["num_threshold"].astype(np.float64),
            every["value"].astype(np.float64),
            every["missing_go_to_left"].astype(bool),
        )

    def staged(self, features: np.ndarray, stages: Sequence[int]) -> np.ndarray:
        """Sums of the first trees of each model, float64 [stages, n, models].

        Args:
          stages: numbers of trees to sum, ascending.
        """
        features = np.ascontiguousarray(features, np.float64)
        if features.shape[1] <= self.feature.max(initial=-1):
            raise ValueError("the trees need more features than are given")
        out: np.ndarray = _staged(
            features, np.asarray(stages, np.int64), self.base, self.first, self.feature, self.left,
            self.right, self.threshold, self.value, self.missing_left,
        )  # fmt: skip
        return out

    def check(self) -> None:
        """Reject stored values that point outside the arrays or form cycles."""
        count = len(self.feature)
        same = (self.left, self.right, self.threshold, self.value, self.missing_left)
        inner = self.feature >= 0
        own = np.arange(count)
        if not (
            self.first.ndim == 2
            and len(self.base) == len(self.first)
            and all(len(part) == count for part in same)
            and ((self.first >= 0) & (self.first < count)).all()
            and all(((c[inner] > own[inner]) & (c[inner] < count)).all() for c in (self.left, self.right))
        ):
            raise ValueError("the nodes of the trees are not consistent")


@kernel
def _staged(
    features: np.ndarray,
    stages: np.ndarray,
    base: np.ndarray,
    first: np.ndarray,
    feature: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    threshold: np.ndarray,
    value: np.ndarray,
    missing_left: np.ndarray,
) -> np.ndarray:
    models, trees = first.shape
    out = np.empty((len(stages), len(features), models))
    for i in range(len(features)):
        for m in range(models):
            total, stage = base[m], 0
            for t in range(trees):
                node = first[m, t]
                while feature[node] >= 0:
                    x = features[i, feature[node]]
                    if np.isnan(x):
                        node = left[node] if missing_left[node] else right[node]
                    elif x <= threshold[node]:
                        node = left[node]
                    else:
                        node = right[node]
                total += value[node]
                while stage < len(stages) and stages[stage] == t + 1:
                    out[stage, i, m] = total
                    stage += 1
            while stage < len(stages):
                out[stage, i, m] = total
                stage += 1
    return out


QUANTILES = (0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98)

#: Largest number of rows to train on: more do not help, and these take seconds per quantile.
TRAINING_ROWS = 20_000
TREES = 100
LEAVES = 31

#: Candidate shares of the trees; one is chosen per novelty class.
STAGES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

_LEVELS = np.concatenate([[0], QUANTILES, [1]])

#: Largest number of newest measurements that describe a source that was not trained on.
_LOOK_BACK = 30


class Boosted(Method):
    name = "boosted"
    paper = 'Friedman, "Greedy function approximation", 2001; Ke et al., "LightGBM", 2017 (histograms)'
    revision = 4

    def __init__(self, rows: int = TRAINING_ROWS, trees: int = TREES, seed: int = 0):
        self._rows, self._trees, self._seed = rows, trees, seed

    def fit(self, train: Columns) -> Self:
        self._failures, self._background = FailureRates(train), marginal(train)
        self._novelty = Novelty.of(train)
        from ping_llm.splits.holdout import inner_split  # imported late: it loads DuckDB

        learn_on, asked, context = inner_split(train)
        novelty = Novelty.of(learn_on)
        chosen = self._chosen(asked, novelty.classes(asked.src, asked.dst))
        if not len(chosen) or not learn_on.replied.any():
            raise PingError("boosted trees cannot be fitted: too few measurements have a reply")
        asked, context = asked.take(chosen), context.for_some(chosen)
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
        self._models: Trees = self._boost(features, target)
        self._learn_statistics(train)
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        if not len(queries):
            return RttDistributions(np.zeros((0, 2)), np.array([0.0, 1.0]), np.zeros(0))
        features, guess = self._features(queries, context)
        # A pair with earlier replies is a known pair, whether it was trained on or not.
        kind = np.where(
            context.replies_of_pair(queries).count > 0,
            Novelty.KNOWN_PAIR,
            self._novelty.classes(queries.src, queries.dst),
        )
        logs = self._staged(self._models, features)[self._stage[kind], np.arange(len(queries))]
        values = _values(logs + self._moved[kind], guess)
        failure = self._failures.by_pair(queries, context)
        return mixed(values, _LEVELS, self._background, self._share[kind], failure)

    @property
    def _stages(self) -> list[int]:
        return [max(1, round(self._trees * share)) for share in STAGES]

    def _chosen(self, asked: Columns, kind: np.ndarray) -> np.ndarray:
        """Choose the replies to learn from; if there are too many, all novelty classes get equal shares."""
        chosen = np.flatnonzero(asked.replied)
        if len(chosen) <= self._rows:
            return chosen
        # Four fifths of the inner test are known pairs.
        share = 1.0 / np.maximum(np.bincount(kind[chosen], minlength=Novelty.COUNT), 1)[kind[chosen]]
        random = np.random.default_rng(self._seed)
        return np.sort(random.choice(chosen, self._rows, replace=False, p=share / share.sum()))

    def _boost(self, features: np.ndarray, target: np.ndarray) -> Trees:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        # A feature that is NaN in all rows has no bins, and scikit-learn would fail.
        features = np.where(np.isnan(features).all(axis=0), 0.0, features)
        models = []
        for level in QUANTILES:
            model = HistGradientBoostingRegressor(
                loss="quantile", quantile=level, max_iter=self._trees, max_leaf_nodes=LEAVES,
                min_samples_leaf=40, learning_rate=0.1, early_stopping=False, random_state=self._seed,
            )  # fmt: skip
            # OpenMP's threads wait by spinning: on a busy machine two are much slower than one.
            with threadpool_limits(limits=1):
                models.append(model.fit(features, target))
        return Trees.of(models)

    def _staged(self, trees: Trees, features: np.ndarray) -> np.ndarray:
        """Predictions of the first trees at each stage, float64 [stages, n, quantiles], ascending."""
        return np.sort(trees.staged(features, self._stages), axis=2)

    def _adjust(
        self, unseen: np.ndarray, target: np.ndarray, guess: np.ndarray, kind: np.ndarray, rtt: np.ndarray
    ) -> None:
        """Choose, by novelty, the number of trees, the corrections of the quantiles and the marginal's share.

        Args:
          unseen: float64 [stages, n, quantiles], predictions of trees that were not trained on the questions.
        """
        levels = np.array(QUANTILES)
        off = target[:, None] - unseen
        pinball = np.where(off > 0, levels * off, (levels - 1) * off).mean(axis=2)
        wide = probability_by(self._background, rtt)
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
            own = RttDistributions(values, _LEVELS, np.zeros(len(rows))).bin_probability(rtt[rows])
            self._share[number] = best_share(own, wide[rows])

    def _learn_statistics(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._medians = Medians(replies)
        counts = (self._medians.sources, self._medians.destinations)
        self._counts = [np.append(np.bincount(ids.of_rows, minlength=len(ids)), 0) for ids in counts]

    def _features(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """Features, float64 [n, features] (NaN: unknown), and a first guess of the log RTT, [n]."""
        columns = []
        for packed in (queries.src, queries.dst):
            ipv4 = addresses.is_ipv4(packed)
            start = np.where(ipv4, 12, 0)
            octets = np.take_along_axis(packed, start[:, None] + np.arange(4), axis=1).astype(np.float64)
            columns += [ipv4, *octets.T, octets[:, 0] * 65536 + octets[:, 1] * 256 + octets[:, 2]]
        hour = np.where(queries.time == NO_TIME, np.nan, queries.time / HOUR_US)
        columns += [hour % 24, (hour // 24) % 7]
        medians, typical = self._medians, []
        for ids, values, counts, packed in (
            (medians.sources, medians.by_source, self._counts[0], queries.src),
            (medians.destinations, medians.by_destination, self._counts[1], queries.dst),
        ):
            number = ids.find(packed)
            typical.append(np.log(np.append(values, np.nan)[number] + FLOOR_MS))
            columns += [typical[-1], np.log1p(counts[number])]
        past = context.replies_of_pair(queries)
        for kind in (pair_kernels.LAST, pair_kernels.RECENT_MEDIAN):
            point, count, spread = pair_kernels.from_past(
                past.columns.rtt, past.columns.time, past.low, past.high, queries.time, kind
            )
            columns.append(np.where(count > 0, np.log(point + FLOOR_MS), np.nan))
        pair = columns[-1]
        columns += [np.log1p(count), np.where(count > 1, spread, np.nan)]
        level, known = self._source_level(queries, context)
        columns += [level, known]
        # The pair's recent median; else the destination's median, shifted by the source's level; else the
        # source's median.
        source, destination = typical
        guess = np.where(np.isnan(pair), destination + np.nan_to_num(level) * known / (known + 2.0), pair)
        guess = np.where(np.isnan(guess), source, guess)
        guess = np.where(np.isnan(guess), np.log(medians.overall + FLOOR_MS), guess)
        columns.append(guess)
        return np.stack([np.asarray(column, np.float64) for column in columns], axis=1), guess

    def _source_level(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        """Mean log ratio of the source's newest RTTs to their destinations' medians, and their number."""
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
    """Mask of one half of the questions, without dividing a pair, a new source or a new destination."""
    src, dst = Ids(asked.src).of_rows, Ids(asked.dst).of_rows
    pair = Ids(pairs_of(asked.src, asked.dst)).of_rows
    by_source = (kind == Novelty.NEW_SOURCE) | (kind == Novelty.NEW_ENDS)
    number = np.where(by_source, src, np.where(kind == Novelty.NEW_DESTINATION, dst, pair))
    out: np.ndarray = number % 2 == 0
    return out


def _values(logs: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """RTTs in ms at _LEVELS. The ends lie as far beyond the outermost quantiles as these from the next."""
    logs = np.sort(logs, axis=1) + guess[:, None]
    low = logs[:, :1] - np.maximum(logs[:, 1:2] - logs[:, :1], 0.02)
    high = logs[:, -1:] + np.maximum(logs[:, -1:] - logs[:, -2:-1], 0.02)
    return np.clip(np.exp(np.concatenate([low, logs, high], axis=1)) - FLOOR_MS, 0, MAX_RTT_MS)
