"""How sure a run may be of what it has not seen, learned from a part that was held out of its training.

A baseline gets its spread from an inner split of the training data. A run was trained on all of that, and is
surer there than it should be: its spread comes from measurements that were kept from it. Each kind of
question (see `asking.kinds`) has two numbers, those that cost the fewest bits:

- `spread`: the distribution is blurred, by a normal of this deviation in log RTT;
- `share`: so much of the training marginal is mixed in, as with every baseline.

What a run gives to RTTs above twice the largest that was trained on goes to the rest: that is doubt without a
reason, and weighs: 0.16 % cost 0.8 ms of 21.6 ms CRPS on new pairs of MENOG.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ping_llm.errors import PingError
from ping_llm.evaluate.baselines.base import marginal
from ping_llm.evaluate.baselines.failure_rates import FailureRates
from ping_llm.evaluate.baselines.point import ENOUGH, FLOOR_MS
from ping_llm.evaluate.bins import bits_of
from ping_llm.evaluate.columns import Columns
from ping_llm.evaluate.predictive import Knots, mixed
from ping_llm.evaluate.splits import Novelty
from ping_llm.files import write_json

FILE = "calibration.json"
FORMAT = 2

#: Of the kinds of question, in their order.
NAMES = ("known pair", "new pair", "new source", "new destination", "new ends", "strange source")

_SPREADS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
_SHARES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)

#: The blur is a mean over this many shifts of equal probability.
_SHIFTS = np.array([NormalDist().inv_cdf((k + 0.5) / 64) for k in range(64)])


@dataclass(frozen=True)
class Spread:
    """For one kind of question; `questions` is on how many it was fitted."""

    spread: float = 0.0
    share: float = 0.0
    questions: int = 0


@dataclass(frozen=True)
class Background:
    """What the training data say of all RTTs."""

    replies: Knots  # one row
    failure: float
    most_ms: float  # a run may give nothing to RTTs above

    @classmethod
    def of(cls, train: Columns) -> "Background":
        replied = train.replied
        largest = float(train.rtt[replied].max()) if replied.any() else 1000.0
        return cls(marginal(train), FailureRates(train).overall, 2 * largest)


@dataclass(frozen=True)
class Calibration:
    """One `Spread` for each kind of question."""

    kinds: tuple[Spread, ...] = (Spread(),) * len(NAMES)

    @classmethod
    def fit(
        cls,
        grid: np.ndarray,
        levels: np.ndarray,
        failure: np.ndarray,
        asked: Columns,
        kinds: np.ndarray,
        train: Columns,
    ) -> "Calibration":
        """From a run's raw answers to questions about `asked`, none of which it has seen.

        Args:
          grid: float64 [k], ms.
          levels: float64 [n, k], P(RTT < grid).
          failure: float64 [n], P(no reply).
          asked: the measurements, with their results.
          kinds: int64 [n], how each was asked about.
          train: what the run was trained on.
        """
        background = Background.of(train)
        levels = _capped(grid, levels, background.most_ms)
        fitted = [_fitted(grid, levels, failure, asked, background, kinds == k) for k in range(len(NAMES))]
        # No test asks about both ends new: of those a run may not be surer than of one.
        if not fitted[Novelty.NEW_ENDS].questions:
            either = (fitted[Novelty.NEW_SOURCE], fitted[Novelty.NEW_DESTINATION])
            fitted[Novelty.NEW_ENDS] = Spread(max(k.spread for k in either), max(k.share for k in either))
        return cls(tuple(fitted))

    def apply(
        self,
        grid: np.ndarray,
        levels: np.ndarray,
        failure: np.ndarray,
        kinds: np.ndarray,
        background: Background,
        point: np.ndarray,
    ) -> Knots:
        """Calibrated answers; their one number stays the run's own (`point`)."""
        levels = _capped(grid, levels, background.most_ms)
        share = np.array([kind.share for kind in self.kinds])[kinds]
        for number, kind in enumerate(self.kinds):
            if kind.spread > 0:
                for row in np.flatnonzero(kinds == number):
                    levels[row] = _blurred(grid, levels[row], kind.spread, grid)
        levels[:, 0], levels[:, -1] = 0.0, 1.0
        failure = (1 - share) * failure + share * background.failure
        out = mixed(np.broadcast_to(grid, levels.shape), levels, background.replies, share, failure)
        return Knots(out.values, out.levels, failure, point=point)

    def as_dict(self) -> dict:
        return {name: asdict(kind) for name, kind in zip(NAMES, self.kinds, strict=True)}

    def save(self, run: Path) -> None:
        write_json(run / FILE, {"format": FORMAT, "kinds": self.as_dict()})

    @classmethod
    def load(cls, run: Path) -> "Calibration | None":
        """That of a run; None if it has none."""
        path = run / FILE
        if not path.exists():
            return None
        try:
            stored = json.loads(path.read_text())
            if stored["format"] != FORMAT:
                raise PingError(f"{path}: format {stored['format']}, this version reads {FORMAT}")
            kinds = tuple(Spread(**stored["kinds"][name]) for name in NAMES)
            if not all(k.spread >= 0 and 0 <= k.share <= 1 for k in kinds):
                raise ValueError("a spread is at least 0, a share lies between 0 and 1")
        except (ValueError, KeyError, TypeError) as error:
            raise PingError(
                f"{path} is not a calibration ({error}); `evaluate --calibrate` writes one"
            ) from None
        return cls(kinds)


def _capped(grid: np.ndarray, levels: np.ndarray, most_ms: float) -> np.ndarray:
    last = min(int(np.searchsorted(grid, most_ms)), len(grid) - 1)
    return np.minimum(levels / np.maximum(levels[:, last : last + 1], 1e-9), 1.0)


def _blurred(grid: np.ndarray, levels: np.ndarray, spread: float, at: np.ndarray) -> np.ndarray:
    """P(RTT < at) after the blur, for one distribution."""
    shifted = (at[:, None] + FLOOR_MS) * np.exp(-spread * _SHIFTS) - FLOOR_MS
    return np.interp(shifted, grid, levels, left=0.0).mean(axis=1)


def _fitted(
    grid: np.ndarray,
    levels: np.ndarray,
    failure: np.ndarray,
    asked: Columns,
    background: Background,
    chosen: np.ndarray,
) -> Spread:
    if chosen.sum() < ENOUGH:  # its answers stay as they are
        return Spread()
    levels, failure, asked = levels[chosen], failure[chosen], asked.take(chosen)
    failed = ~asked.replied
    low = np.floor(np.maximum(asked.rtt, 0.0))
    wide = Knots(
        background.replies.values, background.replies.levels, np.zeros(len(low)), np.zeros(len(low), np.int64)
    )
    of_marginal = np.where(
        failed, background.failure, (1 - background.failure) * wide.bin_probability(asked.rtt)
    )
    best = (np.inf, Spread())
    for spread in _SPREADS:
        ends = [
            _blurred(grid, row, spread, np.array([at, at + 1])) for row, at in zip(levels, low, strict=True)
        ]
        own = np.where(failed, failure, (1 - failure) * np.diff(ends, axis=1)[:, 0])
        for share in _SHARES:
            bits = float(bits_of((1 - share) * own + share * of_marginal).mean())
            best = min(best, (bits, Spread(spread, share, len(low))), key=lambda pair: pair[0])
    return best[1]
