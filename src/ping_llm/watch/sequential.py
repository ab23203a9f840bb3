"""The sequential test of each pair: has its distribution changed?

Each result is turned into three e-values, one per direction: the RTT rose, it fell, replies are lost. An
e-value is a bet against the expected distribution: whatever came before, its expectation is at most 1 while
that distribution is right. The statistic of a direction is a CUSUM of their logarithms,

    S ← max(S, 0) + log e,        alarm when S ≥ log c.

Then alarms are at least c results apart on average while nothing changes (Shin, Ramdas and Rinaldo,
"E-detectors", 2022). With n results per day in three directions, c = 3 n / (false alarms per day) keeps the
stated rate, over all pairs together, without knowing anything of the distributions but that they are right.

How right they are is seen twice. An answer is used for many results, and is a little off for all of them:
so a result is not compared with the answer itself but with the pair's own last results under that answer
(`Reference`), how often these were outliers included. And pooled over all pairs, the ranks that come out
should be uniform, and are made so by their distribution over the last results (`Calibration`).
"""

import math
from dataclasses import dataclass, field

import numpy as np

UP, DOWN, LOSS = range(3)
DIRECTIONS = ("rose", "fell", "lost")

#: The bet on small tail probabilities p is a mean of κ p^(κ - 1), each of which integrates to 1.
_POWERS = (0.05, 0.2, 0.5)

#: A tail probability below this counts as this: the tails of an answer are not known better, and no single
#: result may decide. One result is then worth log 34 at most, so an alarm takes at least three. By that, the
#: expectation of e is 0.70: a margin for distributions that are not quite right.
FLOOR = 1e-3

#: Loss: of the replies that are expected, these shares are gone.
_GONE = (0.3, 0.9)
_LEAST_FAILURE = 0.015

#: Earlier results of a pair without which nothing can be called a change.
LEAST_PAST = 8

#: Results from the beginning of a change to its alarm, at least.
LEAST_RESULTS = 3

#: What an ordinary result takes from an alarm at most, and what ends it: about six ordinary results.
_CALM_STEP, CALM = 1.5, 4.0


#: Scores are within these: further out, all results are alike.
_FURTHEST = 12.0

#: An answer counts as this many results that it is right about: for the middle, the spread, and losses.
_MIDDLE_WEIGHT, _SPREAD_WEIGHT, _LOSS_WEIGHT = 1.0, 2.0, 8.0

#: A reply this many of the pair's own standard deviations from its middle is an outlier; and standard errors
#: that are granted to how often they occur.
OUTLIER = 6.0
_GRANTED = 1.0


def normal_score(rtt: np.ndarray | float, low: float, middle: float, high: float) -> np.ndarray:
    """Where results lie under an answer of which 5 %, the median and 95 % are given: 0, and ±1.64 there.

    Linear on both sides, so that what is far outside of an answer's range is told from what is a little
    outside; quantiles in the tails would tell neither.
    """
    off = np.asarray(rtt, np.float64) - middle
    below, above = max(middle - low, 1e-3 * middle, 1e-3), max(high - middle, 1e-3 * middle, 1e-3)
    scores: np.ndarray = np.clip(1.645 * off / np.where(off < 0, below, above), -_FURTHEST, _FURTHEST)
    return scores


@dataclass(frozen=True)
class Reference:
    """Where a pair's results lie under its answer.

    The scores of its replies are taken as normal with unknown middle and spread, for which the answer is the
    prior; both are estimated from medians, since a few replies of most pairs are outliers. How often they are
    outliers on either side is counted, with one more granted.

    Attributes:
      middle, scale: of the next score; `freedom`: degrees of freedom.
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
        """From the scores of a pair's last replies, how many more were lost, and the answer's failure."""
        n = len(scores)
        weight = _MIDDLE_WEIGHT + n
        median = float(np.median(scores)) if n else 0.0
        middle = median * n / weight
        spread = 1.4826 * float(np.median(np.abs(scores - median))) if n else 1.0
        variance = (_SPREAD_WEIGHT + n * spread * spread) / (_SPREAD_WEIGHT + n)
        scale = math.sqrt(variance * (1 + 1 / weight))
        results = lost + n + _LOSS_WEIGHT
        rate = (lost + _LOSS_WEIGHT * failure) / results
        # A standard error above: the rate is used for many results.
        rate = min(rate + math.sqrt(rate * (1 - rate) / results), 1.0)
        z = (scores - middle) / scale
        low, high = (_granted(int(count), n) for count in ((z < -OUTLIER).sum(), (z > OUTLIER).sum()))
        # Medians tell a spread half as well as squares do.
        return cls(middle, scale, _SPREAD_WEIGHT + n / 2, rate, low, high)

    def tails(self, score: float) -> tuple[float, float]:
        """P(the next score is smaller) and P(it is larger), each with a standard error granted."""
        error = 1.0 / math.sqrt(2 * (self.freedom - _SPREAD_WEIGHT) + _MIDDLE_WEIGHT)
        t = self.standard(score)
        return _student(t + error, self.freedom), _student(-t + error, self.freedom)

    def standard(self, score: float) -> float:
        """A score in standard deviations from the middle."""
        return (score - self.middle) / self.scale


def _granted(count: int, of: int) -> float:
    """A share with one more granted, and standard errors of it: it is used for many results."""
    return min((1 + count + _GRANTED * math.sqrt(1 + count)) / (of + 1), 1.0)


def _student(t: float, freedom: float) -> float:
    """Student's distribution function, by Wallace's normal approximation (1959)."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return 0.5 * math.erfc(-math.copysign(z, t) / math.sqrt(2))


def tail_bet(tail: float, outlier: bool = False, rate: float = 1.0) -> float:
    """log e of a one-sided tail probability, and of whether it was an outlier, which `rate` are.

    Half of the bet is on small tails, half on outliers: pooled over pairs, small tails are not rare, since
    some pairs have many outliers, and those of other pairs would not count for much.
    """
    # An outlier of a pair that has many says no more than how many they are: some pairs have two levels.
    p = max(tail, rate if outlier else 0.0, FLOOR)
    small = sum(power * p ** (power - 1.0) for power in _POWERS) / len(_POWERS)
    return math.log(0.5 * small + 0.5 * (1.0 / rate if outlier else 0.0)) if rate < 0.5 else math.log(small)


def loss_bet(failed: bool, failure: float) -> float:
    """log e of a reply, or of none where `failure` was its probability."""
    rate = min(max(failure, _LEAST_FAILURE), 0.999)
    left = sum(1.0 - share for share in _GONE) / len(_GONE)  # share of the replies that would still come
    if failed:
        return math.log((1.0 - (1.0 - rate) * left) / rate)
    # The bet is on replies that are lost: a reply is less probable by `left`.
    return math.log(left)


def bets(
    tails: tuple[float, float] | None,
    failure: float,
    standard: float = 0.0,
    rates: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float, float]:
    """log e of a result in each direction.

    Args:
      tails: calibrated probabilities of a smaller and of a larger reply; None: no reply.
      failure: calibrated probability of no reply.
      standard: the reply in standard deviations from the pair's middle.
      rates: probabilities that a reply is an outlier below, and above.
    """
    lost = loss_bet(tails is None, failure)
    if tails is None:
        return 0.0, 0.0, lost
    up = tail_bet(tails[1], standard > OUTLIER, rates[1])
    return up, tail_bet(tails[0], standard < -OUTLIER, rates[0]), lost


def calmer(calm: float, bet: float) -> float:
    """How far an alarm has calmed down after another result; it ends at CALM."""
    return max(0.0, calm + min(-bet, _CALM_STEP))


#: Tail probabilities are counted between these.
EDGES = np.array([0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])

#: Groups of pairs by how many results the answer could look back on.
_AMOUNTS = np.array([16])
GROUPS = len(_AMOUNTS) + 1

#: The beginning counts as this many results that were as expected.
_PRIOR = 2000.0
#: Every time that this many results were counted, older ones are forgotten by half.
_HALF = 50_000

_FAILURES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])
_FAILURE_PRIOR = 50.0
_UNIT = 1_000_000


def group_of(amount: int) -> int:
    return int(np.searchsorted(_AMOUNTS, amount, side="right"))


@dataclass
class Calibration:
    """Counts of tail probabilities and failures, and what follows from them.

    Small probabilities that occur too often are raised to how often they occur; none is lowered, since pairs
    differ. `learn` counts, `settle` makes the counts take effect: at fixed numbers of results, so that what
    comes out does not depend on how the stream was cut into batches.
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
        """The calibrated probability of no reply."""
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
        # As it was: the counts since the last `settle` have no effect yet.
        out._levels, out._odds = own["_levels"].copy(), own["_odds"].copy()
        return out
