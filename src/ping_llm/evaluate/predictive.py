"""What a method answers: for each query, the probability of failure and a distribution of the RTT.

`Predictive` is the interface that metrics read. `Knots` is the one concrete form that all baselines use:
a piecewise-linear distribution function through points (ms, probability), many rows at a time. Its median,
quantiles, bin probabilities and CRPS are exact and compiled.
"""

from abc import ABC, abstractmethod

import numpy as np

from ping_llm.evaluate import bins, knot_kernels

#: Neighbouring knots are kept at least this far apart, so that a repeated value becomes a steep
#: piece just above it (in its own millisecond bin) and not a jump.
_GAP_MS = 1e-7


class Predictive(ABC):
    """Answers to n queries. `failure` is P(no reply); everything else is given a reply."""

    failure: np.ndarray  # float64 [n]

    @abstractmethod
    def cdf(self, rtt: np.ndarray) -> np.ndarray:
        """P(RTT ≤ rtt) for one value a query, [n]."""

    @abstractmethod
    def quantile(self, levels: np.ndarray | list[float]) -> np.ndarray:
        """[n, m] quantiles at m levels."""

    @abstractmethod
    def crps(self, rtt: np.ndarray) -> np.ndarray:
        """Continuous ranked probability score against one result a query, ms, [n]."""

    def __len__(self) -> int:
        return len(self.failure)

    @property
    def median(self) -> np.ndarray:
        return self.quantile([0.5])[:, 0]

    @property
    def point(self) -> np.ndarray:
        """The one number to be judged by, [n]: the median, unless the method has a better idea."""
        return self.median

    def bin_probability(self, rtt: np.ndarray) -> np.ndarray:
        """P([k, k + 1)) for the millisecond bin k of each result, [n]."""
        low = np.floor(np.maximum(rtt, 0.0))
        return np.maximum(self.cdf(low + 1.0) - self.cdf(low), 0.0)

    def bits(self, rtt: np.ndarray) -> np.ndarray:
        """Bits of each result, failures (NO_REPLY) included: -log2 of the probability of its bin."""
        return bins.result_bits(self.failure, self.bin_probability(rtt), rtt)


class Knots(Predictive):
    """Piecewise-linear distribution functions.

    Args:
      values: [r, k] ms, ascending in each row.
      levels: [r, k] or [k], ascending from 0 to 1.
      failure: [n].
      row: int [n], which of the r rows answers each query; by default the i-th answers the i-th.
      point: [n], the method's one number; by default the median.
    """

    def __init__(
        self,
        values: np.ndarray,
        levels: np.ndarray,
        failure: np.ndarray,
        row: np.ndarray | None = None,
        point: np.ndarray | None = None,
    ):
        values = np.ascontiguousarray(values, np.float64)
        step = np.arange(values.shape[1]) * _GAP_MS
        self.values = np.maximum.accumulate(values - step, axis=1) + step
        self.levels = np.ascontiguousarray(np.broadcast_to(levels, values.shape), np.float64)
        self.failure = np.asarray(failure, np.float64)
        self.row = np.arange(len(values)) if row is None else np.asarray(row, np.int64)
        self._point = point

    @property
    def point(self) -> np.ndarray:
        return self.median if self._point is None else self._point

    def cdf(self, rtt: np.ndarray) -> np.ndarray:
        return knot_kernels.cdf(self.values, self.levels, self.row, np.asarray(rtt, np.float64))

    def quantile(self, levels: np.ndarray | list[float]) -> np.ndarray:
        return knot_kernels.quantile(self.values, self.levels, self.row, np.asarray(levels, np.float64))

    def crps(self, rtt: np.ndarray) -> np.ndarray:
        return knot_kernels.crps(self.values, self.levels, self.row, np.asarray(rtt, np.float64))


def mixed(
    values: np.ndarray, levels: np.ndarray, background: Knots, weight: np.ndarray, failure: np.ndarray
) -> Knots:
    """(1 - weight) of each row's distribution plus weight of the background's only row.

    A method that is sure of the wrong thing would pay without bound; a little of everything bounds it.
    """
    values = np.ascontiguousarray(values, np.float64)
    levels = np.ascontiguousarray(np.broadcast_to(levels, values.shape), np.float64)
    step = np.arange(values.shape[1]) * _GAP_MS
    values = np.maximum.accumulate(values - step, axis=1) + step
    weight = np.ascontiguousarray(np.broadcast_to(weight, len(values)), np.float64)
    merged, mass = knot_kernels.mix(values, levels, background.values[0], background.levels[0], weight)
    return Knots(merged, mass, failure)
