"""The simulator's truth as one more method: nothing can be better, so it is the floor of every score."""

from typing import Self

import numpy as np

from ping_llm.evaluate import metrics
from ping_llm.evaluate.baselines.base import Baseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.predictive import Predictive
from ping_llm.simulate.truth import Truth
from ping_llm.simulate.world import World

#: CRPS by this many quantiles is within 0.1 % of the integral.
_LEVELS = (np.arange(500) + 0.5) / 500


class TruthMethod(Baseline):
    name = "truth"
    paper = "the simulated world's own distribution"

    def __init__(self, world: World):
        self._world = world

    def fit(self, train: Columns) -> Self:
        return self

    def predict(self, queries: Queries, context: History) -> Predictive:
        return _TruePredictive(self._world.truth(queries.src, queries.dst, queries.time))


class _TruePredictive(Predictive):
    def __init__(self, truth: Truth):
        self._truth = truth
        self.failure = truth.failure_probability

    def cdf(self, rtt: np.ndarray) -> np.ndarray:
        return self._truth.cdf(rtt)

    def quantile(self, levels: np.ndarray | list[float]) -> np.ndarray:
        return self._truth.quantile(np.asarray(levels, np.float64)[None])

    def crps(self, rtt: np.ndarray) -> np.ndarray:
        return metrics.crps_from_quantiles(self.quantile(_LEVELS), _LEVELS, np.asarray(rtt))

    def bits(self, rtt: np.ndarray) -> np.ndarray:
        return self._truth.bits(rtt)
