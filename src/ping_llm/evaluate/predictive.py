"""What a method answers: for each query, the probability of failure and a distribution of the RTT.

`Predictive` is the interface that metrics read. `Knots` is the one concrete form that all baselines use:
a piecewise-linear distribution function through points (ms, probability), many rows at a time. Its median,
quantiles, bin probabilities and CRPS are exact and compiled.
"""

from abc import ABC, abstractmethod

import numpy as np
from numba import njit

from ping_llm.evaluate import bins

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
    """

    def __init__(
        self, values: np.ndarray, levels: np.ndarray, failure: np.ndarray, row: np.ndarray | None = None
    ):
        values = np.ascontiguousarray(values, np.float64)
        step = np.arange(values.shape[1]) * _GAP_MS
        self.values = np.maximum.accumulate(values - step, axis=1) + step
        self.levels = np.ascontiguousarray(np.broadcast_to(levels, values.shape), np.float64)
        self.failure = np.asarray(failure, np.float64)
        self.row = np.arange(len(values)) if row is None else np.asarray(row, np.int64)

    def cdf(self, rtt: np.ndarray) -> np.ndarray:
        return _cdf(self.values, self.levels, self.row, np.asarray(rtt, np.float64))

    def quantile(self, levels: np.ndarray | list[float]) -> np.ndarray:
        return _quantile(self.values, self.levels, self.row, np.asarray(levels, np.float64))

    def crps(self, rtt: np.ndarray) -> np.ndarray:
        return _crps(self.values, self.levels, self.row, np.asarray(rtt, np.float64))

    def take(self, index: np.ndarray) -> "Knots":
        out = object.__new__(Knots)
        out.values, out.levels = self.values, self.levels
        out.failure, out.row = self.failure[index], self.row[index]
        return out


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
    merged, mass = _mix(values, levels, background.values[0], background.levels[0], weight)
    return Knots(merged, mass, failure)


@njit(cache=True, nogil=True)
def _below(x, f, y):
    """F(y) of one piecewise-linear row."""
    k = len(x)
    if y <= x[0]:
        return f[0] if y == x[0] else 0.0
    if y >= x[k - 1]:
        return 1.0
    j = np.searchsorted(x, y, side="right")
    return f[j - 1] + (f[j] - f[j - 1]) * (y - x[j - 1]) / (x[j] - x[j - 1])


@njit(cache=True, nogil=True)
def _cdf(values, levels, row, y):
    out = np.empty(len(row))
    for i in range(len(row)):
        out[i] = _below(values[row[i]], levels[row[i]], y[i])
    return out


@njit(cache=True, nogil=True)
def _quantile(values, levels, row, wanted):
    out = np.empty((len(row), len(wanted)))
    for i in range(len(row)):
        x, f = values[row[i]], levels[row[i]]
        for m in range(len(wanted)):
            j = min(max(np.searchsorted(f, wanted[m]), 1), len(f) - 1)
            rise = f[j] - f[j - 1]
            share = (wanted[m] - f[j - 1]) / rise if rise > 0 else 1.0
            out[i, m] = x[j - 1] + min(max(share, 0.0), 1.0) * (x[j] - x[j - 1])
    return out


@njit(cache=True, nogil=True)
def _crps(values, levels, row, y):
    """∫ (F(x) - [x ≥ y])² dx, piece by piece: the square of a line from a to b integrates to
    width · (a² + ab + b²) / 3."""
    out = np.empty(len(row))
    for i in range(len(row)):
        x, f = values[row[i]], levels[row[i]]
        total = max(x[0] - y[i], 0.0) + max(y[i] - x[-1], 0.0)
        for j in range(1, len(x)):
            x0, x1, a, b = x[j - 1], x[j], f[j - 1], f[j]
            if y[i] <= x0:
                a, b = 1.0 - a, 1.0 - b
                total += (x1 - x0) * (a * a + a * b + b * b) / 3.0
            elif y[i] >= x1:
                total += (x1 - x0) * (a * a + a * b + b * b) / 3.0
            else:
                c = a + (b - a) * (y[i] - x0) / (x1 - x0)
                total += (y[i] - x0) * (a * a + a * c + c * c) / 3.0
                c, b = 1.0 - c, 1.0 - b
                total += (x1 - y[i]) * (c * c + c * b + b * b) / 3.0
        out[i] = total
    return out


@njit(cache=True, nogil=True)
def _mix(values, levels, other_values, other_levels, weight):
    n, k = values.shape
    k2 = len(other_values)
    merged = np.empty((n, k + k2))
    mass = np.empty((n, k + k2))
    for i in range(n):
        x, f, w = values[i], levels[i], weight[i]
        a = b = 0
        for j in range(k + k2):
            if b >= k2 or (a < k and x[a] <= other_values[b]):
                y = x[a]
                mass[i, j] = (1 - w) * f[a] + w * _below(other_values, other_levels, y)
                a += 1
            else:
                y = other_values[b]
                mass[i, j] = (1 - w) * _below(x, f, y) + w * other_levels[b]
                b += 1
            merged[i, j] = y
    return merged, mass
