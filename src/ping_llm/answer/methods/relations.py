"""Relations: a small network, trained on other data, that reads the results most related to a question.

It has learned from other studies how to use results of other sources to the destination, of the source to
other destinations, of ends near by address, and of the pair itself. It has no parameters for addresses, so it
needs no fitting: `fit` indexes the measurements.

The approach is that of TabPFN for tables (Hollmann et al., "Accurate predictions on small data with a tabular
foundation model", Nature 2025), and of inductive matrix completion for graphs (Zhang and Chen, "Inductive
matrix completion based on graph neural networks", ICLR 2020).
"""

from functools import cache
from typing import Self

import numpy as np

from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import GRID
from ping_llm.answer.methods import relation_network as network
from ping_llm.answer.methods.base import FLOOR_MS, FailureRates, Method, marginal
from ping_llm.answer.methods.known_pairs import looked_back
from ping_llm.answer.methods.relation_features import PairMatrix, features, of_matrix
from ping_llm.answer.methods.relation_kernels import AskedPairs, Features, Shown
from ping_llm.answer.methods.relation_network import Weights
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.model.packaged import RELATIONS, packaged

#: Name of the method.
RELATED = "relations"

#: Share of the marginal in every answer, which bounds the cost of an unexpected result.
_BACKGROUND = 0.005
#: Limits for a source that is not known: newest results that are searched, and destinations that are shown.
_LOOK_BACK, _MOST = 512, 64

_LOGS = np.log(GRID + FLOOR_MS)


class Relations(Method):
    name = RELATED
    paper = "a network of this package, trained on other data (docs/base.md)"

    def __init__(self, weights: Weights | None = None):
        self._weights = packaged_weights() if weights is None else weights

    def fit(self, train: Columns) -> Self:
        self._matrix = PairMatrix(train.take(train.replied))
        self._failures = FailureRates(train)
        self._background = marginal(train).on(GRID)[0]
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        levels = network.curves(self._weights, self.features(queries, context), _LOGS)
        levels += _BACKGROUND * (self._background - levels)
        levels[:, 0], levels[:, -1] = 0.0, 1.0
        failure = self._failures.by_pair(queries, context)
        return RttDistributions(np.broadcast_to(GRID, levels.shape), levels, failure)

    def features(self, queries: Queries, context: History) -> Features:
        """Return the input of the network for each query."""
        matrix = self._matrix
        source, destination = matrix.sources.find(queries.src), matrix.destinations.find(queries.dst)
        asked = AskedPairs(
            source, destination, matrix.sources.rows(queries.src), matrix.destinations.rows(queries.dst)
        )
        row, column = of_matrix(matrix.rows, source), of_matrix(matrix.columns, destination)
        past = context.replies_of_pair(queries)
        return features(
            matrix, asked, self._look_back(queries, context, source, row), column, past, queries.time
        )

    def check(self) -> None:
        """Refuse stored values that do not fit together."""
        network.check(self._weights)
        if self._background.shape != GRID.shape:
            raise ValueError("the marginal is not on the grid")

    def _look_back(self, queries: Queries, context: History, source: np.ndarray, known: Shown) -> Shown:
        """Add the newest results of sources that are not known to the rows, one per destination."""
        new = np.flatnonzero(source < 0)
        past = context.of_source(queries)
        nobody = np.full(len(new), -1, np.int64)
        recent, node, places = looked_back(past, new, self._matrix.destinations, nobody, _LOOK_BACK, _MOST)
        of_each = (places >= 0).sum(axis=1)
        ends = np.cumsum(of_each)
        chosen = places[places >= 0]
        out_low, out_high, own = known.low.copy(), known.high.copy(), known.own.copy()
        out_low[new], out_high[new], own[new] = ends - of_each, ends, True
        value = np.log(np.maximum(recent.rtt[chosen], 0.0) + FLOOR_MS)
        return Shown(out_low, out_high, own, node[chosen], value, known.hidden)


@cache
def packaged_weights() -> Weights:
    """Load the weights in the package."""
    from safetensors.numpy import load_file

    return load_file(packaged() / RELATIONS)
