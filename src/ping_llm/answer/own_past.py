"""Adjustment of a stack's weights for one question by the newest results of its pair.

Weights are chosen by kind of question. So a component that does not see the pair's past keeps its weight even
where the pair is unlike all others: a pair that always measured 455 to 465 ms got a 5 % quantile of 15 ms.
The newest results of the pair are evidence about that. For each component that does not look at them, the
weight is multiplied by a likelihood ratio: the probability that it gives to the surroundings of these
results, divided by that of the best component that does look at them. The ratio is raised to a power that is
chosen on held-out questions. With power 1 this is Bayes' rule for independent results. Consecutive results
are alike, so the power is smaller (Grünwald and van Ommen, "Inconsistency of Bayesian inference for
misspecified linear models, and a proposal for repairing it", Bayesian Analysis 2017).

The components that look at the past keep their weights relative to each other. After a change of route the
last result is right, but the seven results before it disagree with it. Adjusting these components as well
would cost 12 % of the CRPS on v6-path-inflation.
"""

from collections.abc import Sequence

import numpy as np

from ping_llm.answer.distribution import RttDistributions
from ping_llm.measurements.columns import Queries
from ping_llm.measurements.history import History

#: Components that look at a pair's past and at little else. The network is not among them: it looks at the
#: past too, but may be wrong.
LOOKING = ("pair last", "pair recent", "pair weighted", "pair median", "pair hour")

#: Number of the pair's newest replies that are used.
NEWEST = 8

#: Surroundings of a result: this share of it on both sides, at least half a millisecond. This tests whether
#: a component expects such results at all, not which component is sharpest. With 0.02 every power costs bits
#: on held-out known pairs of a dense series (2.755 without, 2.801 with 0.25), with 0.2 none does (2.760).
WIDTH = 0.2
_LEAST_MS = 0.5

#: Least probability of a result's surroundings, because a component's distribution may have a gap.
_LEAST = 1e-4

#: Candidate powers. DEFAULT is used without held-out questions about pairs with a past.
POWERS = (0.125, 0.25, 0.5, 1.0)
DEFAULT = 0.25


def newest(queries: Queries, history: History) -> np.ndarray:
    """Newest replies of each question's pair, newest first, float64 [n, NEWEST]; NaN after the last."""
    past = history.replies_of_pair(queries)
    at = past.high[:, None] - 1 - np.arange(NEWEST)
    there = at >= past.low[:, None]
    out = np.full(at.shape, np.nan)
    out[there] = past.columns.rtt[at[there]]
    return out


def log_likelihood(answers: RttDistributions, results: np.ndarray) -> np.ndarray:
    """Sum of log P(surroundings of a result | reply) for each answer, float64 [n]; 0 without results.

    Args:
      results: float64 [n, any], as returned by `newest`.
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
    """Weights of each question adjusted by its pair's results, with a sum of 1, [n, components].

    Args:
      weights: float64 [n, components].
      past: float64 [n, components], `log_likelihood` of each component; not read where its weight is 0.
      names: names of the components.
    """
    there = weights > 0
    looks = there & np.isin(names, LOOKING)
    looks = np.where(looks.any(axis=1, keepdims=True), looks, there)
    best = np.where(looks, past, -np.inf).max(axis=1, keepdims=True)
    ratio = np.where(looks & np.isin(names, LOOKING), 0.0, np.minimum(past - best, 0.0))
    moved = weights * np.exp(power * np.where(there, ratio, 0.0))
    out: np.ndarray = moved / moved.sum(axis=1, keepdims=True)
    return out
