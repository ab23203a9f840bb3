"""The sequential test for a change in the distribution of each pair.

Each result gives three e-values, one per direction: the RTT rose, it fell, replies are lost. An e-value is a
bet against the expected distribution: given any past, its expectation is at most 1 while that distribution is
right. The statistic of a direction is a CUSUM of their logarithms,

    S ← max(S, 0) + log e,        alarm when S ≥ log c.

Then alarms are at least c results apart on average while nothing changes (Shin, Ramdas and Rinaldo,
"E-detectors", 2022). With n results per day in three directions, c = 3 n / (false alarms per day) keeps the
stated rate, over all pairs together. It assumes nothing about the distributions except that they are right.

Two corrections make them right. An answer is used for many results, and is slightly wrong for all of them, so
a result is compared not with the answer itself but with the pair's own last results under that answer,
including their share of outliers (`Reference`). And pooled over all pairs, the resulting ranks should be
uniform, and are made so by their distribution over the last results (`Calibration`).
"""

import math
from dataclasses import dataclass, field

import numpy as np

UP, DOWN, LOSS = range(3)
DIRECTIONS = ("rose", "fell", "lost")

#: The bet on small tail probabilities p is a mean of κ p^(κ - 1), each of which integrates to 1.
_POWERS = (0.05, 0.2, 0.5)

#: Smallest tail probability; smaller ones count as this, because the tails of an answer are not known better.
#: The bet on a small tail is then worth log 34 at most, and its e-value has expectation 0.70, a margin for
#: distributions that are slightly wrong. The bets on outliers and on losses may be worth more, and log c may
#: be as low as log 10, so that no single result decides is left to LEAST_RESULTS.
FLOOR = 1e-3

#: Shares of the expected replies that are lost, for the bets on loss, and smallest P(no reply) for them.
_GONE = (0.3, 0.9)
_LEAST_FAILURE = 0.015

#: Smallest number of earlier results of a pair for a test.
LEAST_PAST = 8

#: Smallest number of results from the beginning of a change to its alarm, whatever they are worth.
LEAST_RESULTS = 3

#: Largest evidence per result that a change has ended, and the sum that ends its alarm: about six ordinary
#: results.
_CALM_STEP, CALM = 1.5, 4.0


#: Largest absolute score: beyond it, all results count alike.
_FURTHEST = 12.0

#: Weights of an answer, as a number of results that agree with it: for the middle, the spread, and losses.
_MIDDLE_WEIGHT, _SPREAD_WEIGHT, _LOSS_WEIGHT = 1.0, 2.0, 8.0

#: Distance of an outlier from the pair's middle, in standard deviations of the pair, and standard errors that
#: are added to the share of outliers.
OUTLIER = 6.0
_GRANTED = 1.0


def normal_score(rtt: np.ndarray | float, low: float, middle: float, high: float) -> np.ndarray:
    """Return scores of results under an answer: 0 at its median, -1.64 at 5 % and 1.64 at 95 %.

    Scores are linear on both sides, so that results far outside of an answer's range differ from those
    slightly outside; with quantiles in the tails they would not.
    """
    off = np.asarray(rtt, np.float64) - middle
    below, above = max(middle - low, 1e-3 * middle, 1e-3), max(high - middle, 1e-3 * middle, 1e-3)
    scores: np.ndarray = np.clip(1.645 * off / np.where(off < 0, below, above), -_FURTHEST, _FURTHEST)
    return scores


@dataclass(frozen=True)
class Reference:
    """Distribution of a pair's results under its answer.

    The scores of its replies are modelled as normal with unknown middle and spread, for which the answer is
    the prior. Both are estimated from medians, because a few replies of most pairs are outliers. The outliers
    on each side are counted, plus one.

    Attributes:
      middle, scale, freedom: middle, scale and degrees of freedom of the next score.
      failure: probability that the next result is lost.
      low, high: probability that the next reply is an outlier below, and above.
    """

    middle: float
    scale: float
    freedom: float
    failure: float
    low: float
    high: float

    @classmethod
    def of(cls, scores: np.ndarray, lost: int, failure: float) -> "Reference":
        """Make it from scores of a pair's last replies, number of lost ones, and the answer's failure."""
        n = len(scores)
        weight = _MIDDLE_WEIGHT + n
        median = float(np.median(scores)) if n else 0.0
        middle = median * n / weight
        spread = 1.4826 * float(np.median(np.abs(scores - median))) if n else 1.0
        variance = (_SPREAD_WEIGHT + n * spread * spread) / (_SPREAD_WEIGHT + n)
        scale = math.sqrt(variance * (1 + 1 / weight))
        results = lost + n + _LOSS_WEIGHT
        rate = (lost + _LOSS_WEIGHT * failure) / results
        # Plus one standard error, because the rate is used for many results.
        rate = min(rate + math.sqrt(rate * (1 - rate) / results), 1.0)
        z = (scores - middle) / scale
        low, high = (_granted(int(count), n) for count in ((z < -OUTLIER).sum(), (z > OUTLIER).sum()))
        # Medians estimate a spread half as well as squares do.
        return cls(middle, scale, _SPREAD_WEIGHT + n / 2, rate, low, high)

    def tails(self, score: float) -> tuple[float, float]:
        """Return P(the next score is smaller) and P(it is larger), each plus one standard error."""
        error = 1.0 / math.sqrt(2 * (self.freedom - _SPREAD_WEIGHT) + _MIDDLE_WEIGHT)
        t = self.standard(score)
        return _student(t + error, self.freedom), _student(-t + error, self.freedom)

    def standard(self, score: float) -> float:
        """Return the distance of a score from the middle, in standard deviations."""
        return (score - self.middle) / self.scale


def _granted(count: int, of: int) -> float:
    """Return a share plus one count and standard errors, because it is used for many results."""
    return min((1 + count + _GRANTED * math.sqrt(1 + count)) / (of + 1), 1.0)


def _student(t: float, freedom: float) -> float:
    """Return Student's distribution function, by Wallace's normal approximation (1959)."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return 0.5 * math.erfc(-math.copysign(z, t) / math.sqrt(2))


def tail_bet(tail: float, outlier: bool = False, rate: float = 1.0) -> float:
    """Return log e of a one-sided tail probability and of being an outlier, where `rate` is P(outlier).

    Half of the bet is on small tails, half on outliers. Pooled over pairs, small tails are not rare, because
    some pairs have many outliers; without the second half, outliers of other pairs would count little.
    """
    # The p of an outlier is at least the pair's rate of outliers: some pairs have two levels.
    p = max(tail, rate if outlier else 0.0, FLOOR)
    small = sum(power * p ** (power - 1.0) for power in _POWERS) / len(_POWERS)
    return math.log(0.5 * small + 0.5 * (1.0 / rate if outlier else 0.0)) if rate < 0.5 else math.log(small)


def loss_bet(failed: bool, failure: float) -> float:
    """Return log e of a reply or of no reply, where `failure` was P(no reply)."""
    rate = min(max(failure, _LEAST_FAILURE), 0.999)
    left = sum(1.0 - share for share in _GONE) / len(_GONE)  # share of the replies that would still arrive
    if failed:
        return math.log((1.0 - (1.0 - rate) * left) / rate)
    # The bet is that replies are lost: a reply is less probable by the factor `left`.
    return math.log(left)


def bets(
    tails: tuple[float, float] | None,
    failure: float,
    standard: float = 0.0,
    rates: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float, float]:
    """Return log e of a result in each direction.

    Args:
      tails: calibrated probabilities of a smaller and of a larger reply; None: no reply.
      failure: calibrated probability of no reply.
      standard: distance of the reply from the pair's middle, in standard deviations.
      rates: probabilities that a reply is an outlier below, and above.
    """
    lost = loss_bet(tails is None, failure)
    if tails is None:
        return 0.0, 0.0, lost
    up = tail_bet(tails[1], standard > OUTLIER, rates[1])
    return up, tail_bet(tails[0], standard < -OUTLIER, rates[0]), lost


def calmer(calm: float, bet: float) -> float:
    """Return the evidence that a change has ended, after another result; at CALM its alarm ends."""
    return max(0.0, calm + min(-bet, _CALM_STEP))


#: Edges of the bins in which tail probabilities are counted.
EDGES = np.array([0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])

#: Limits of the groups of pairs, by number of earlier results of the pair that the answer could use.
_AMOUNTS = np.array([16])
GROUPS = len(_AMOUNTS) + 1

#: Weight of the initial counts, as a number of results that were as expected.
_PRIOR = 2000.0
#: Number of counted results after which all counts are halved.
_HALF = 50_000

_FAILURES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])
_FAILURE_PRIOR = 50.0
_UNIT = 1_000_000


def group_of(amount: int) -> int:
    return int(np.searchsorted(_AMOUNTS, amount, side="right"))


@dataclass
class Calibration:
    """Counts of tail probabilities and failures, and the calibration that follows from them.

    Small probabilities that occur too often are raised to their frequency; none is lowered, because pairs
    differ. `learn` counts, and `settle` makes the counts take effect at fixed numbers of results, so that the
    output does not depend on how the stream was cut into batches.
    """

    ranks: np.ndarray = field(default_factory=lambda: np.tile(np.diff(EDGES) * _PRIOR, (2 * GROUPS, 1)))
    expected: np.ndarray = field(default_factory=lambda: np.zeros(len(_FAILURES) + 1, np.int64))
    failed: np.ndarray = field(default_factory=lambda: np.zeros(len(_FAILURES) + 1, np.int64))
    counted: int = 0

    def __post_init__(self) -> None:
        self.settle()

    def learn(self, group: int, tails: tuple[float, float] | None, failure: float) -> None:
        place = int(np.searchsorted(_FAILURES, failure))
        # Whole numbers: their sum does not depend on the order of the results.
        self.expected[place] += round(failure * _UNIT)
        if tails is None:
            self.failed[place] += _UNIT
        else:
            for side, tail in enumerate(tails):
                bin_ = min(int(np.searchsorted(EDGES, tail, side="right")) - 1, len(EDGES) - 2)
                self.ranks[2 * group + side, bin_] += 1
        self.counted += 1

    def settle(self) -> None:
        if self.counted >= _HALF:
            self.ranks *= 0.5
            self.expected //= 2
            self.failed //= 2
            self.counted = 0
        sums = np.concatenate([np.zeros((2 * GROUPS, 1)), np.cumsum(self.ranks, axis=1)], axis=1)
        self._levels = np.maximum(sums / sums[:, -1:], EDGES)
        odds = (self.failed / _UNIT + _FAILURE_PRIOR) / (self.expected / _UNIT + _FAILURE_PRIOR)
        self._odds = np.maximum(odds, 1.0)

    def tails(self, group: int, tails: tuple[float, float]) -> tuple[float, float]:
        below, above = (
            float(np.interp(tail, EDGES, self._levels[2 * group + side])) for side, tail in enumerate(tails)
        )
        return below, above

    def failure(self, failure: float) -> float:
        """Return the calibrated probability of no reply."""
        return min(failure * float(self._odds[int(np.searchsorted(_FAILURES, failure))]), 0.999)

    def save(self) -> dict[str, np.ndarray]:
        names = ("ranks", "expected", "failed", "_levels", "_odds")
        return {f"calibration_{name}": getattr(self, name).copy() for name in names} | {
            "calibration_counted": np.array(self.counted)
        }

    @classmethod
    def restored(cls, saved: dict[str, np.ndarray]) -> "Calibration":
        own = {name.removeprefix("calibration_"): value for name, value in saved.items()}
        out = cls(own["ranks"].copy(), own["expected"].copy(), own["failed"].copy(), int(own["counted"]))
        # As saved: the counts since the last `settle` have no effect yet.
        out._levels, out._odds = own["_levels"].copy(), own["_odds"].copy()
        return out
