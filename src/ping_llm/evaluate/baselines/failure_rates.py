"""P(no reply) by destination, source and pair, each shrunk to the wider group's rate (empirical Bayes)."""

import numpy as np

from ping_llm.evaluate.baselines import pair_kernels
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids, pairs_of

#: A group's rate is shrunk as if it had seen this many results of the wider group.
PRIOR_RESULTS = 10.0

#: The same for a pair's newest results against its rate in training.
RECENT_PRIOR_RESULTS = 2.0


class FailureRates:
    """Rates learned from training data."""

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

    def by_ends(self, queries: Queries) -> np.ndarray:
        """Both ends' odds, multiplied, relative to the overall odds."""
        odds = _odds(self.by_source(queries)) * _odds(self.by_destination(queries)) / _odds(self.overall)
        return odds / (1 + odds)

    def by_pair(self, queries: Queries, context: History) -> np.ndarray:
        """The pair's rate in training, moved by its newest results before the query."""
        number = self._pair.find(pairs_of(queries.src, queries.dst))
        trained = _shrunk(self._pair_counts, number, self.by_ends(queries))
        past = context.results_of_pair(queries)
        failed, weight = pair_kernels.recent_failures(past.columns.rtt, past.low, past.high)
        return (failed + RECENT_PRIOR_RESULTS * trained) / (weight + RECENT_PRIOR_RESULTS)


def _counts(ids: Ids, failed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.bincount(ids.of_rows, failed, len(ids)), np.bincount(ids.of_rows, minlength=len(ids))


def _shrunk(counts: tuple[np.ndarray, np.ndarray], number: np.ndarray, wider) -> np.ndarray:
    failures, total = (np.append(c, 0.0)[number] for c in counts)  # a new group, -1, reads the appended zero
    return (failures + PRIOR_RESULTS * wider) / (total + PRIOR_RESULTS)


def _odds(probability):
    return probability / (1 - probability)
