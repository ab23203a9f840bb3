"""The training marginal: what one knows who knows nothing about source, destination or time.

Order 0: a histogram over 1-ms bins, smoothed. Every other method has to beat it.
"""

from typing import Self

import numpy as np

from ping_llm.evaluate.baselines.base import Baseline, marginal
from ping_llm.evaluate.baselines.failure_rates import FailureRates
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.predictive import Knots
from ping_llm.schema import MAX_RTT_MS

#: 1-ms bins up to here, then bins that grow by a hundredth: nobody has the data for more.
_FINE_MS = 1024

#: Half of the weight that the exact histogram does not get goes to the smooth marginal of its neighbours.
_SMOOTHING = 0.1


class Global(Baseline):
    name = "global"

    def fit(self, train: Columns) -> Self:
        rtt = train.rtt[train.replied]
        ratio = np.log(MAX_RTT_MS / _FINE_MS)
        coarse = _FINE_MS * np.exp(np.linspace(0, ratio, int(ratio / np.log(1.01)))[1:])
        edges = np.concatenate([np.arange(_FINE_MS + 1.0), np.ceil(coarse)])
        smooth = marginal(train)
        smooth = Knots(smooth.values, smooth.levels, np.zeros(len(edges)), np.zeros(len(edges), np.int64))
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

    def predict(self, queries: Queries, context: History) -> Knots:
        n = len(queries)
        return Knots(self._edges[None], self._levels, np.full(n, self._failure), np.zeros(n, np.int64))
