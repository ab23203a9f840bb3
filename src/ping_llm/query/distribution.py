"""The distribution of one RTT, exact on the grid of its encoding.

A code stands for an interval of RTTs, within which the probability is spread evenly. So the distribution
function is piecewise linear, and density, distribution function, quantiles and bin probabilities follow
from the same two arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ping_llm.schema import NO_REPLY

#: A probability of zero would cost infinitely many bits and hide all others: no result costs more than this.
WORST_BITS = 64.0


@dataclass(frozen=True)
class RttDistribution:
    """P(failure), and the distribution of the RTT given a reply.

    Attributes:
      edges: float64 [n + 1], ms, ascending.
      mass: float64 [n], sums to 1: interval i is [edges[i], edges[i + 1]).
      failure: probability of no reply.
      unresolved: mass in intervals that were not split down to a millisecond (0 for two-byte encodings). No
        answer about millisecond bins can be wrong by more.
    """

    edges: np.ndarray
    mass: np.ndarray
    failure: float
    unresolved: float = 0.0

    @cached_property
    def cumulative(self) -> np.ndarray:
        """float64 [n + 1]: P(RTT < edges[i])."""
        cumulative = np.concatenate([[0.0], np.cumsum(self.mass)])
        return cumulative / cumulative[-1]

    def cdf(self, rtt: float | np.ndarray) -> np.ndarray:
        """P(RTT < rtt | reply)."""
        return np.interp(rtt, self.edges, self.cumulative)

    def quantile(self, levels: float | np.ndarray | Sequence[float]) -> np.ndarray:
        """The RTTs below which these shares of the replies lie."""
        levels = np.asarray(levels, np.float64)
        # The first interval at whose end the level is reached: never one without mass.
        at = np.clip(np.searchsorted(self.cumulative, levels, side="left") - 1, 0, len(self.mass) - 1)
        low, high = self.cumulative[at], self.cumulative[at + 1]
        share = np.clip((levels - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        return self.edges[at] + share * (self.edges[at + 1] - self.edges[at])

    def density(self, rtt: float | np.ndarray) -> np.ndarray:
        """Probability per ms at these RTTs, given a reply."""
        rtt = np.asarray(rtt, np.float64)
        at = np.searchsorted(self.edges, rtt, side="right") - 1
        inside = (at >= 0) & (at < len(self.mass))
        at = np.clip(at, 0, len(self.mass) - 1)
        return np.where(inside, self.mass[at] / (self.edges[at + 1] - self.edges[at]), 0.0)

    def between(self, low: float | np.ndarray, high: float | np.ndarray) -> np.ndarray:
        """P(low <= RTT < high | reply)."""
        return self.cdf(high) - self.cdf(low)

    @property
    def mean(self) -> float:
        return float(self.mass @ (self.edges[:-1] + self.edges[1:]) / 2)

    def central_mean(self, left_out: float = 0.01) -> float:
        """The mean without the lowest and the highest half of `left_out`.

        RTTs of up to an hour are possible, so a little doubt far out moves the mean by hundreds of ms.
        """
        low, high = left_out / 2, 1 - left_out / 2
        inner = (self.cumulative > low) & (self.cumulative < high)
        levels = np.concatenate([[low], self.cumulative[inner], [high]])
        # The quantile function is linear between these levels.
        return float(np.trapezoid(self.quantile(levels), levels) / (high - low))

    @property
    def median(self) -> float:
        return float(self.quantile(0.5))

    def typical(self, share: float) -> float:
        """The RTT in the middle of the narrowest interval that holds this share of the replies.

        Narrow in log RTT. The median has the least mean error; this is more often close, because it stays
        in one of several likely places where the median falls in between. In steps of 0.5 %.
        """
        levels = np.arange(1, 200) / 200
        at = self.quantile(levels)
        held = round(share * 200)
        first = int(np.argmin(np.log1p(at[held:]) - np.log1p(at[:-held])))
        return float(at[first + held // 2])

    def bits(self, rtt: float) -> float:
        """-log2 of the probability of a result: its millisecond bin [k, k + 1), or failure (-1)."""
        if rtt == NO_REPLY:
            probability = self.failure
        else:
            low = np.floor(rtt)
            probability = (1 - self.failure) * float(self.between(low, low + 1))
        return float(-np.log2(np.clip(probability, 2.0**-WORST_BITS, 1.0)))

    def sample(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """RTTs, -1 where there was no reply."""
        failed = generator.random(count) < self.failure
        return np.where(failed, NO_REPLY, self.quantile(generator.random(count)))


def mix(parts: Sequence[RttDistribution], weights: Sequence[float] | None = None) -> RttDistribution:
    """The mixture of distributions, exact: failures and replies are weighted together."""
    shares = np.full(len(parts), 1.0) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()
    failure = float(sum(share * part.failure for share, part in zip(shares, parts, strict=True)))
    replies = [share * (1 - part.failure) for share, part in zip(shares, parts, strict=True)]
    total = sum(replies) or 1.0
    first = parts[0].edges
    if all(len(part.edges) == len(first) and (part.edges == first).all() for part in parts):
        edges = first
        mass = sum(reply / total * part.mass for reply, part in zip(replies, parts, strict=True))
    else:
        edges = np.unique(np.concatenate([part.edges for part in parts]))
        mass = sum(
            reply / total * np.diff(part.cdf(edges)) for reply, part in zip(replies, parts, strict=True)
        )
    unresolved = float(
        sum(reply / total * part.unresolved for reply, part in zip(replies, parts, strict=True))
    )
    return RttDistribution(edges, np.asarray(mass), failure, unresolved)
