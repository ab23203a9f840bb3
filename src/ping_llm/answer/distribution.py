"""Distributions of the RTT: piecewise-linear distribution functions, one (`RttDistribution`) or many.

A distribution is P(no reply) and, given a reply, a curve through points (ms, share of the replies below).
The probability between two points is spread evenly, so density, quantiles, bin probabilities and CRPS
follow exactly from the points. Answers of the network, of the simple methods and of their mixture all have
this form. Item i of an `RttDistributions` is an `RttDistribution` over the same arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ping_llm.measurements.schema import NO_REPLY

#: Upper bound on the bits of a result, so that a single probability of zero does not make a mean infinite.
WORST_BITS = 64.0

#: Least distance of neighbouring points, ms. A repeated value becomes a steep piece just above it (in its own
#: millisecond bin) instead of a jump.
_GAP_MS = 1e-7


def bits_of(probability: np.ndarray | float) -> np.ndarray:
    """-log2, at most WORST_BITS."""
    return -np.log2(np.clip(probability, 2.0**-WORST_BITS, 1.0))


@dataclass(frozen=True)
class RttDistribution:
    """P(no reply), and the distribution of the RTT given a reply.

    Attributes:
      edges: float64 [n + 1], ms, ascending.
      levels: float64 [n + 1], from 0 to 1: P(RTT < edges[i] | reply).
      failure: probability of no reply.
      guess: point estimate; None is the median.
      unresolved: probability in intervals that were not split down to a millisecond (0 for two-byte
        encodings). It bounds the error of every millisecond bin.
    """

    edges: np.ndarray
    levels: np.ndarray
    failure: float
    guess: float | None = None
    unresolved: float = 0.0

    @classmethod
    def of_mass(
        cls, edges: np.ndarray, mass: np.ndarray, failure: float, unresolved: float = 0.0
    ) -> "RttDistribution":
        """Make a distribution from the probability of each interval [edges[i], edges[i + 1])."""
        levels = np.concatenate([[0.0], np.cumsum(mass)])
        return cls(edges, levels / levels[-1], failure, unresolved=unresolved)

    @property
    def mass(self) -> np.ndarray:
        """float64 [n]: the probability of each interval, given a reply."""
        return np.diff(self.levels)

    @property
    def point(self) -> float:
        """The point estimate."""
        return self.median if self.guess is None else self.guess

    def cdf(self, rtt: float | np.ndarray) -> np.ndarray:
        """P(RTT < rtt | reply)."""
        out: np.ndarray = np.interp(rtt, self.edges, self.levels)
        return out

    def quantile(self, levels: float | np.ndarray | Sequence[float]) -> np.ndarray:
        """The RTTs below which these shares of the replies lie."""
        levels = np.asarray(levels, np.float64)
        # The first interval whose end reaches the level: it always has mass.
        at = np.clip(np.searchsorted(self.levels, levels, side="left"), 1, len(self.levels) - 1) - 1
        low, high = self.levels[at], self.levels[at + 1]
        share = np.where(high > low, (levels - low) / np.where(high > low, high - low, 1.0), 1.0)
        out: np.ndarray = self.edges[at] + np.clip(share, 0.0, 1.0) * (self.edges[at + 1] - self.edges[at])
        return out

    def density(self, rtt: float | np.ndarray) -> np.ndarray:
        """Probability per ms at these RTTs, given a reply."""
        rtt = np.asarray(rtt, np.float64)
        at = np.searchsorted(self.edges, rtt, side="right") - 1
        inside = (at >= 0) & (at < len(self.edges) - 1)
        at = np.clip(at, 0, len(self.edges) - 2)
        rise = self.levels[at + 1] - self.levels[at]
        return np.where(inside, rise / (self.edges[at + 1] - self.edges[at]), 0.0)

    def between(self, low: float | np.ndarray, high: float | np.ndarray) -> np.ndarray:
        """P(low <= RTT < high | reply)."""
        out: np.ndarray = self.cdf(high) - self.cdf(low)
        return out

    @property
    def mean(self) -> float:
        return float(np.diff(self.levels) @ (self.edges[:-1] + self.edges[1:]) / 2)

    @property
    def median(self) -> float:
        return float(self.quantile(0.5))

    def typical(self, share: float) -> float:
        """The RTT in the middle of the narrowest interval that holds this share of the replies."""
        return float(typical(self.quantile(_TYPICAL_LEVELS)[None], share)[0])

    def bits(self, rtt: float) -> float:
        """-log2 of the probability of a result: its millisecond bin [k, k + 1), or failure (-1)."""
        if rtt == NO_REPLY:
            probability = self.failure
        else:
            low = np.floor(rtt)
            probability = (1 - self.failure) * float(self.between(low, low + 1))
        return float(bits_of(probability))

    def tail(self, rtt: float) -> float:
        """Two-sided tail probability of a result: twice the share of replies beyond it on its side, or
        P(no reply) for a failure. A result outside the central 99 % has less than 0.01.
        """
        if rtt == NO_REPLY:
            return self.failure
        below = float(self.cdf(rtt))
        return min(1.0, 2 * min(below, 1 - below))

    def sample(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Draw `count` RTTs; -1 is no reply."""
        failed = generator.random(count) < self.failure
        return np.where(failed, NO_REPLY, self.quantile(generator.random(count)))


def shared_edges(parts: Sequence[RttDistribution]) -> tuple[np.ndarray, bool]:
    """Points between which every curve is linear, and whether all curves have exactly these points."""
    first = parts[0].edges
    if all(len(part.edges) == len(first) and (part.edges == first).all() for part in parts):
        return first, True
    return np.unique(np.concatenate([part.edges for part in parts])), False


def mix(parts: Sequence[RttDistribution], weights: Sequence[float] | None = None) -> RttDistribution:
    """Mix distributions exactly, failures and replies together; by default with equal weights."""
    shares = np.full(len(parts), 1.0) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()
    failure = float(sum(share * part.failure for share, part in zip(shares, parts, strict=True)))
    replies = [share * (1 - part.failure) for share, part in zip(shares, parts, strict=True)]
    total = sum(replies) or 1.0
    edges, alike = shared_edges(parts)
    curves = [part.levels if alike else part.cdf(edges) for part in parts]
    levels = sum(reply / total * curve for reply, curve in zip(replies, curves, strict=True))
    unresolved = float(
        sum(reply / total * part.unresolved for reply, part in zip(replies, parts, strict=True))
    )
    return RttDistribution(edges, np.asarray(levels), failure, unresolved=unresolved)


#: Levels of the quantiles that `typical` searches: steps of 0.5 %.
_TYPICAL_LEVELS = np.arange(1, 200) / 200


def typical(quantiles: np.ndarray, share: float) -> np.ndarray:
    """Middle of each row's narrowest interval (in log RTT) that holds this share, [n].

    The median has the least mean absolute error. This estimate is close to the result more often: of a
    distribution with several modes it lies in one of them, while the median may fall between them.

    Args:
      quantiles: [n, 199] at 0.5 %, 1 % …
    """
    held = round(share * 200)
    width = np.log1p(quantiles[:, held:]) - np.log1p(quantiles[:, :-held])
    first = np.argmin(width, axis=1)
    return quantiles[np.arange(len(quantiles)), first + held // 2]


class Predictive(ABC):
    """Answers to n queries. `failure` is P(no reply); all other values are conditional on a reply."""

    failure: np.ndarray  # float64 [n]

    @abstractmethod
    def cdf(self, rtt: np.ndarray) -> np.ndarray:
        """P(RTT ≤ rtt) for one value per query, [n]."""

    @abstractmethod
    def quantile(self, levels: np.ndarray | list[float]) -> np.ndarray:
        """Quantiles at m levels, [n, m]."""

    @abstractmethod
    def crps(self, rtt: np.ndarray) -> np.ndarray:
        """Continuous ranked probability score against one result per query, ms, [n]."""

    def __len__(self) -> int:
        return len(self.failure)

    @property
    def median(self) -> np.ndarray:
        return self.quantile([0.5])[:, 0]

    @property
    def point(self) -> np.ndarray:
        """The point estimate, [n]: the median, unless the method has another."""
        return self.median

    def bin_probability(self, rtt: np.ndarray) -> np.ndarray:
        """Probability of the millisecond bin [k, k + 1) of each result, [n]."""
        low = np.floor(np.maximum(rtt, 0.0))
        out: np.ndarray = np.maximum(self.cdf(low + 1.0) - self.cdf(low), 0.0)
        return out

    def probability(self, rtt: np.ndarray) -> np.ndarray:
        """Probability of each result, [n]: its millisecond bin, or no reply (NO_REPLY)."""
        return np.where(rtt == NO_REPLY, self.failure, (1.0 - self.failure) * self.bin_probability(rtt))

    def bits(self, rtt: np.ndarray) -> np.ndarray:
        """Bits of each result, failures (NO_REPLY) included: -log2 of the probability of its bin."""
        return bits_of(self.probability(rtt))


class RttDistributions(Predictive):
    """Many piecewise-linear distribution functions.

    Args:
      values: [r, k] ms, ascending in each row.
      levels: [r, k] or [k], ascending from 0 to 1.
      failure: [n].
      row: int [n], the row that answers each query; by default row i answers query i.
      point: [n], the point estimate; by default the median.
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

    def check(self) -> None:
        """Reject stored values that the kernels cannot handle."""
        if self.values.ndim != 2 or self.values.shape != self.levels.shape or self.values.shape[1] < 2:
            raise ValueError("values and levels of a distribution must have the same shape")
        if len(self.row) and not (self.row.min() >= 0 and self.row.max() < len(self.values)):
            raise ValueError("a distribution's row does not exist")

    def __getitem__(self, index: int) -> RttDistribution:
        row = self.row[index]
        guess = None if self._point is None else float(self._point[index])
        return RttDistribution(self.values[row], self.levels[row], float(self.failure[index]), guess)

    def take(self, rows: np.ndarray) -> "RttDistributions":
        """Return the distributions with these indices, in this order."""
        point = None if self._point is None else self._point[rows]
        return RttDistributions(self.values, self.levels, self.failure[rows], self.row[rows], point)

    @property
    def point(self) -> np.ndarray:
        return self.median if self._point is None else self._point

    def cdf(self, rtt: np.ndarray) -> np.ndarray:
        out: np.ndarray = _kernels().cdf(self.values, self.levels, self.row, np.asarray(rtt, np.float64))
        return out

    def on(self, grid: np.ndarray) -> np.ndarray:
        """P(RTT ≤ grid | reply), [n, len(grid)]."""
        out: np.ndarray = _kernels().on_grid(self.values, self.levels, self.row, grid)
        return out

    def quantile(self, levels: np.ndarray | list[float]) -> np.ndarray:
        out: np.ndarray = _kernels().quantile(
            self.values, self.levels, self.row, np.asarray(levels, np.float64)
        )
        return out

    def typical(self, share: float) -> np.ndarray:
        """Middle of the narrowest interval that holds this share of the replies, [n]."""
        return typical(self.quantile(_TYPICAL_LEVELS), share)

    def crps(self, rtt: np.ndarray) -> np.ndarray:
        out: np.ndarray = _kernels().crps(self.values, self.levels, self.row, np.asarray(rtt, np.float64))
        return out


def mixed(
    values: np.ndarray,
    levels: np.ndarray,
    background: RttDistributions,
    weight: np.ndarray,
    failure: np.ndarray,
) -> RttDistributions:
    """Mix each row's distribution with share (1 - weight) and the background's only row with share weight.

    The background bounds the cost of a confident wrong prediction.
    """
    values = np.ascontiguousarray(values, np.float64)
    levels = np.ascontiguousarray(np.broadcast_to(levels, values.shape), np.float64)
    step = np.arange(values.shape[1]) * _GAP_MS
    values = np.maximum.accumulate(values - step, axis=1) + step
    weight = np.ascontiguousarray(np.broadcast_to(weight, len(values)), np.float64)
    merged, mass = _kernels().mix(values, levels, background.values[0], background.levels[0], weight)
    return RttDistributions(merged, mass, failure)


def _kernels() -> ModuleType:
    from ping_llm.answer import distribution_kernels  # imported late: Numba takes half a second

    return distribution_kernels
