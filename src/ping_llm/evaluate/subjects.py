"""Methods beside the simple ones in an evaluation: a run's network, and the truth of a simulation.

No method can be better than the simulator's true distribution, so it is the lower bound of every score.
"""

from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np

from ping_llm.answer import network
from ping_llm.answer.distribution import Predictive, RttDistributions
from ping_llm.answer.methods.base import Answering, Method
from ping_llm.answer.model import Model
from ping_llm.evaluate import metrics
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.simulate.latency import Truth
from ping_llm.simulate.world import World
from ping_llm.splits.novelty import Novelty


class NetworkMethod(Method):
    """The network alone, not calibrated. Its training data are as in the run's stack, else those of `fit`."""

    name = "network"

    def __init__(self, model: Model):
        self.model, self._asking = model, network.asking_of(model)
        self._trained: Novelty | None = None if model.stack is None else model.stack.network_trained

    def fit(self, train: Columns) -> Self:
        self._trained = self._trained or Novelty.of(train)
        return self

    def sized(self, size: int) -> "NetworkMethod":
        """Return a copy with another largest number of context measurements."""
        other = copy(self)
        other._asking = replace(self._asking, size=size)
        return other

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        return network.curves(self.model, queries, context, self._trained, self._asking).distributions()


#: Levels for the CRPS: with this many quantiles it is within 0.1 % of the integral.
_LEVELS = (np.arange(500) + 0.5) / 500


class TruthMethod(Answering):
    name = "truth"
    paper = "the simulated world's own distribution"

    def __init__(self, world: World):
        self._world = world

    def fit(self, train: Columns) -> Self:
        return self

    def predict(self, queries: Queries, context: History) -> Predictive:
        return _TruePredictive(self._world.truth(queries.src, queries.dst, queries.time, queries.size))


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
