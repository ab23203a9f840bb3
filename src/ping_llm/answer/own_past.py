"""A pair's own results decide, for a question about it, which components of a stack are believed.

Weights are chosen by kind of question, so a component that does not see a pair's past keeps its share where
the pair is unlike all others: one that always measured 455 to 465 ms got a 5 % quantile of 15 ms. The newest
results of the pair are evidence about that. The weight of each component that does not look at them is
multiplied by the ratio of the probabilities that it and the best of those that do give to their
surroundings, to a power that held-out questions choose. With power 1 this is Bayes' rule for independent
results; consecutive results are alike, so the power is less (Grünwald and van Ommen, "Inconsistency of
Bayesian inference for misspecified linear models, and a proposal for repairing it", Bayesian Analysis 2017).

The components that look at the past keep their weights among each other: after a change of route the last
result is right, and seven results before it speak against it. On v6-path-inflation that would cost 12 % of
the CRPS.
"""

from collections.abc import Sequence

import numpy as np

from ping_llm.answer.distribution import RttDistributions
from ping_llm.measurements.columns import Queries
from ping_llm.measurements.history import History

#: The components that look at a pair's past, and at little else. The network looks at it too, and may err.
LOOKING = ("pair last", "pair recent", "pair weighted", "pair median", "pair hour")

#: So many of the pair's newest replies are looked at.
NEWEST = 8

#: The surroundings of a result: this share of it to both sides, half a millisecond at least. It asks whether
#: a component expects such results at all, not which one is sharpest. With 0.02 every power costs bits on
#: held-out known pairs of a dense series (2.755 without, 2.801 with 0.25), with 0.2 none does (2.760).
WIDTH = 0.2
_LEAST_MS = 0.5

#: Less than this is not believed of any result: a component may have a gap.
_LEAST = 1e-4

#: Powers to choose from. Without held-out questions about pairs with a past, DEFAULT.
POWERS = (0.125, 0.25, 0.5, 1.0)
DEFAULT = 0.25


def newest(queries: Queries, history: History) -> np.ndarray:
    """float64 [n, NEWEST]: the newest replies of each question's pair, the newest first; NaN: no more."""
    past = history.replies_of_pair(queries)
    at = past.high[:, None] - 1 - np.arange(NEWEST)
    there = at >= past.low[:, None]
    out = np.full(at.shape, np.nan)
    out[there] = past.columns.rtt[at[there]]
    return out


def log_likelihood(answers: RttDistributions, results: np.ndarray) -> np.ndarray:
    """float64 [n]: of each answer, the sum of log P(surroundings of a result | reply); 0 without results.

    Args:
      results: float64 [n, any], `newest`.
    """
    out = np.zeros(len(results))
    for column in results.T:
        there = ~np.isnan(column)
        rtt = np.where(there, column, 0.0)
        half = np.maximum(WIDTH * rtt, _LEAST_MS)
        inside = answers.cdf(rtt + half) - answers.cdf(rtt - half)
        out += np.where(there, np.log(np.maximum(inside, _LEAST)), 0.0)
    return out


def tempered(weights: np.ndarray, past: np.ndarray, names: Sequence[str], power: float) -> np.ndarray:
    """[n, components]: the weights of each question after its pair's results, with a sum of 1.

    Args:
      weights: float64 [n, components].
      past: float64 [n, components], `log_likelihood` of each component; not read where it has no weight.
      names: of the components.
    """
    there = weights > 0
    looks = there & np.isin(names, LOOKING)
    looks = np.where(looks.any(axis=1, keepdims=True), looks, there)
    best = np.where(looks, past, -np.inf).max(axis=1, keepdims=True)
    ratio = np.where(looks & np.isin(names, LOOKING), 0.0, np.minimum(past - best, 0.0))
    moved = weights * np.exp(power * np.where(there, ratio, 0.0))
    out: np.ndarray = moved / moved.sum(axis=1, keepdims=True)
    return out
