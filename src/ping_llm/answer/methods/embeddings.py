"""Embeddings: a small network with a learned vector per end and prefix, which also reads known results.

Factorisation uses products of vectors; this network uses any function of them, and its answer is a
distribution over bins of log RTT. It is trained on measurements of single pairs, posed as the four kinds of
questions that will come: a new pair, a new source, a new destination, both new. For a new end, vectors of
prefixes that no other end would have trained are left out, and only a few of its other results are shown. The
sharpness of the answers, by novelty of the question, is chosen on inner splits.

He et al., "Neural collaborative filtering", WWW 2017, with attention over the known entries of the row and
the column, as in neural processes (Kim et al., "Attentive neural processes", ICLR 2019).
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from ping_llm.answer.distribution import RttDistributions, bits_of, mixed
from ping_llm.answer.methods import embedding_network as network
from ping_llm.answer.methods.base import (
    BACKGROUND,
    ENOUGH,
    FLOOR_MS,
    LEVELS,
    FailureRates,
    Method,
    best_share,
    marginal,
    medians,
    probability_by,
)
from ping_llm.answer.methods.embedding_network import BINS, Batch, Weights
from ping_llm.answer.methods.known_pairs import (
    SHOWN,
    Ends,
    Entries,
    drawn,
    filled,
    looked_back,
    of_most_ends,
    padded,
    spaced,
)
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.schema import MAX_RTT_MS
from ping_llm.splits.novelty import Novelty

#: Training questions per pair, and limits of the number of steps; 1,500 steps take 20 s on one idle core.
PASSES = 60
FEWEST_STEPS, STEPS = 150, 1500
BATCH = 256

#: Shares of the kinds of training questions: a new pair, a new source, a new destination, both new.
_KINDS = (0.35, 0.3, 0.25, 0.1)
#: Numbers of known results of a new source, and of a new destination; drawn at random.
_OF_NEW_SOURCE = (0, 1, 2, 3, 5, 8, SHOWN)
_OF_NEW_DESTINATION = (0, 0, 1, 2, 5, 10)

#: Standard deviation, in bins, of the normal distribution around a result that is its training target.
_BLUR_BINS = 1.0
#: Candidate exponents of the probabilities; exponents below 1 make them flatter.
_SHARPNESS = (1.2, 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2)
#: Largest number of questions per novelty class that choose the exponent.
_CHOOSING = 3000
#: Number of newest results of a new source that are searched.
_LOOK_BACK = 256


class _Pairs(NamedTuple):
    source: np.ndarray
    destination: np.ndarray
    median: np.ndarray
    #: The measurements of pair i are order[start[i]:start[i + 1]].
    start: np.ndarray
    order: np.ndarray


class Embeddings(Method):
    name = "embeddings"
    paper = (
        'He et al., "Neural collaborative filtering", 2017; Kim et al., "Attentive neural processes", 2019'
    )
    #: Not stored: computed again from the weights when needed.
    NOT_KEPT = ("_projected",)
    _projected: tuple[np.ndarray, np.ndarray] | None = None

    def __init__(self, steps: int = STEPS, seed: int = 0):
        self._steps, self._seed = steps, seed
        self._weights: Weights | None = None

    def fit(self, train: Columns) -> Self:
        from ping_llm.splits.holdout import inner_split  # imported late: it loads DuckDB

        self._background = marginal(train)
        self._sharpness = np.full(Novelty.COUNT, 0.8)
        self._share = np.full(Novelty.COUNT, BACKGROUND)
        learn_on, asked, context = inner_split(train)
        if learn_on is not train:
            self._learn(learn_on)
            self._sharpen(asked, context, Novelty.of(learn_on).classes(asked.src, asked.dst))
        self._learn(train)
        self._failures, self._novelty = FailureRates(train), Novelty.of(train)
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        failure = self._failures.by_pair(queries, context)
        if self._weights is None or not len(queries):
            row = np.zeros(len(queries), np.int64)
            return RttDistributions(self._background.values, self._background.levels, failure, row)
        kind = self._novelty.classes(queries.src, queries.dst)
        values = self._values(self._logits(queries, context) * self._sharpness[kind][:, None])
        out = mixed(values, LEVELS, self._background, self._share[kind], failure)
        # The share of the marginal is for unexpected results; the point estimate stays the network's own.
        middle = np.searchsorted(LEVELS, 0.5)
        return RttDistributions(out.values, out.levels, failure, point=values[:, middle])

    def check(self) -> None:
        """Refuse stored values that do not belong together."""
        if self._weights is None:
            return
        network.check(self._weights, self._sources.table_rows, self._destinations.table_rows)
        sizes = (
            len(self._rows.start),
            len(self._columns.start),
            len(self._columns.mean),
            len(self._rows.mean),
        )
        if sizes != (
            len(self._sources) + 1,
            len(self._destinations) + 1,
            len(self._sources),
            len(self._destinations),
        ):
            raise ValueError("the known pairs are not those of the ends")

    def _learn(self, train: Columns) -> None:
        replies = of_most_ends(train.take(train.replied))
        self._weights, self._projected = None, None
        if len(replies) < 2:
            return
        self._sources, self._destinations = Ends(replies.src), Ends(replies.dst)
        logs = np.log(replies.rtt + FLOOR_MS)
        self._mean, self._scale = float(logs.mean()), float(logs.std() or 1.0)
        value = (logs - self._mean) / self._scale
        self._edges = np.linspace(value.min() - 1e-6, value.max() + 1e-6, BINS + 1)
        pairs = self._pairs(self._sources.find(replies.src), self._destinations.find(replies.dst), value)
        sides = (len(self._sources), len(self._destinations))
        self._rows = Entries(pairs.source, pairs.destination, pairs.median, *sides)
        self._columns = Entries(pairs.destination, pairs.source, pairs.median, *sides[::-1])
        random = np.random.default_rng(self._seed)
        # Tables are padded, so that splits of about the same size share the compiled step.
        weights = network.train(
            network.initial(filled(self._sources.table_rows), filled(self._destinations.table_rows), random),
            padded(self._sources.of_each),
            padded(self._destinations.of_each),
            self._batches(pairs, value, random),
            int(np.clip(PASSES * len(pairs.source) // BATCH, min(FEWEST_STEPS, self._steps), self._steps)),
        )
        for name, ends in (("sources", self._sources), ("destinations", self._destinations)):
            weights[name] = weights[name][: ends.table_rows]
        self._weights = weights

    @staticmethod
    def _pairs(source: np.ndarray, destination: np.ndarray, value: np.ndarray) -> _Pairs:
        number = source * (int(destination.max()) + 1) + destination
        _, first, of_rows, count = np.unique(
            number, return_index=True, return_inverse=True, return_counts=True
        )
        return _Pairs(
            source[first], destination[first], medians(of_rows, value, len(first)),
            np.concatenate([[0], np.cumsum(count)]), np.argsort(of_rows, kind="stable"),
        )  # fmt: skip

    def _batches(
        self, pairs: _Pairs, value: np.ndarray, random: np.random.Generator
    ) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield batches of measurements as questions of all kinds, with their target bins, without end."""
        count = np.diff(pairs.start)
        # Pairs are drawn by the root of their number of measurements: a compromise between equal chances per
        # measurement, which the busiest pairs would dominate, and per pair.
        chance = np.cumsum(np.sqrt(count))
        chance /= chance[-1]
        others = [ends.shares_of_others() for ends in (self._sources, self._destinations)]
        unknown = [ends.starts[:-1].astype(np.int32) for ends in (self._sources, self._destinations)]
        centres, width = 0.5 * (self._edges[1:] + self._edges[:-1]), self._edges[1] - self._edges[0]
        while True:
            pair = np.minimum(np.searchsorted(chance, random.random(BATCH)), len(count) - 1)
            chosen = pairs.order[pairs.start[pair] + (random.random(BATCH) * count[pair]).astype(np.int64)]
            source, destination = pairs.source[pair], pairs.destination[pair]
            kind = random.choice(len(_KINDS), BATCH, p=_KINDS)
            new = (kind == 1) | (kind == 3), (kind == 2) | (kind == 3)
            rows = []
            for side, (ends, end) in enumerate(((self._sources, source), (self._destinations, destination))):
                # A prefix stays known with the probability that another of its ends would have trained it.
                taught = random.random(BATCH)[:, None] < others[side][end]
                rows.append(np.where(taught | ~new[side][:, None], ends.of_each[end], unknown[side]))
            shown_row = np.where(new[0], random.choice(_OF_NEW_SOURCE, BATCH), SHOWN)
            shown_column = np.where(new[1], random.choice(_OF_NEW_DESTINATION, BATCH), SHOWN)
            batch = Batch(
                rows[0],
                rows[1],
                *self._rows.at(source, drawn(self._rows, source, random), shown_row, destination),
                *self._columns.at(
                    destination, drawn(self._columns, destination, random), shown_column, source
                ),
            )
            off = (centres - value[chosen][:, None]) / (_BLUR_BINS * width)
            right = np.exp(-0.5 * off**2)
            yield batch, (right / right.sum(axis=1, keepdims=True)).astype(np.float32)

    def _logits(self, queries: Queries, context: History) -> np.ndarray:
        source, destination = self._sources.find(queries.src), self._destinations.find(queries.dst)
        sides = []
        for entries, end, other in (
            (self._rows, source, destination), (self._columns, destination, source),
        ):  # fmt: skip
            at = np.maximum(end, 0)
            shown = np.where(end >= 0, SHOWN, 0)
            sides.append(entries.at(at, spaced(entries, at), shown, other))
        self._look_back(queries, context, source, destination, *sides[0])
        batch = Batch(
            self._sources.rows(queries.src), self._destinations.rows(queries.dst), *sides[0], *sides[1]
        )
        assert self._weights is not None
        if self._projected is None:
            self._projected = (
                network.projected(self._weights, "row", self._destinations.of_each, network.dense),
                network.projected(self._weights, "column", self._sources.of_each, network.dense),
            )
        return network.answer(self._weights, batch, *self._projected).astype(np.float64)

    def _look_back(
        self,
        queries: Queries,
        context: History,
        source: np.ndarray,
        destination: np.ndarray,
        end: np.ndarray,
        value: np.ndarray,
        known: np.ndarray,
    ) -> None:
        """Fill in the newest results of sources that were not trained on, one per other destination."""
        new = np.flatnonzero(source < 0)
        if not len(new):
            return
        past = context.of_source(queries)
        recent, node, places = looked_back(past, new, self._destinations, destination[new], _LOOK_BACK, SHOWN)
        if not len(recent):
            return
        at = np.maximum(places, 0)
        logs = np.log(np.maximum(recent.rtt, 0.0) + FLOOR_MS)[at]
        end[new], known[new] = np.maximum(node[at], 0), places >= 0
        value[new] = self._rows.described(end[new], (logs - self._mean) / self._scale)

    def _values(self, logits: np.ndarray) -> np.ndarray:
        """RTTs in ms at LEVELS."""
        mass = np.exp(logits - logits.max(axis=1, keepdims=True))
        below = np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)], axis=1)
        below /= below[:, -1:]
        scaled = np.stack([np.interp(LEVELS, each, self._edges) for each in below])
        return np.clip(np.exp(scaled * self._scale + self._mean) - FLOOR_MS, 0.0, MAX_RTT_MS)

    def _sharpen(self, asked: Columns, context: History, kind: np.ndarray) -> None:
        """Choose exponent and share of the marginal by bits, for each novelty class."""
        if self._weights is None:
            return
        random = np.random.default_rng(self._seed)
        replied = np.flatnonzero(asked.replied)
        for number in range(Novelty.COUNT):
            rows = replied[kind[replied] == number]
            if len(rows) < ENOUGH:
                continue
            rows = np.sort(random.permutation(rows)[:_CHOOSING])
            some = asked.take(rows)
            logits = self._logits(some.queries(), context.for_some(rows))
            wide = probability_by(self._background, some.rtt)
            costs = {}
            for sharpness in _SHARPNESS:
                made = RttDistributions(self._values(logits * sharpness), LEVELS, np.zeros(len(rows)))
                own = made.bin_probability(some.rtt)
                share = best_share(own, wide)
                costs[sharpness, share] = float(bits_of((1 - share) * own + share * wide).mean())
            best = min(costs, key=lambda choice: costs[choice])
            self._sharpness[number], self._share[number] = best
            if number == Novelty.NEW_DESTINATION:  # also for new ends, unless those have enough questions
                self._sharpness[Novelty.NEW_ENDS], self._share[Novelty.NEW_ENDS] = best
