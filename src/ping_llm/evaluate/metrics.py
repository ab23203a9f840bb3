"""Metrics of distributions against results, and confidence intervals.

Intervals are bootstrapped over sources, not measurements: measurements of one source are alike, and drawing
them one by one would make intervals several times too narrow. A replicate draws as many sources as there are,
with replacement, each with all of its measurements. A test with one source has no interval.
"""

import numpy as np

#: Percentiles at which relative errors are reported.
RELATIVE_PERCENTILES = (50, 75, 90, 95)

#: Least denominator of relative errors, ms.
SMALLEST_RTT_MS = 0.1


def absolute_error(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    return np.abs(predicted - actual)


def mean_squared_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    return float(np.mean((predicted - actual) ** 2))


def relative_error(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """|predicted - actual| / actual, as in the network-coordinate literature."""
    return np.abs(predicted - actual) / np.maximum(actual, SMALLEST_RTT_MS)


def crps_from_quantiles(quantiles: np.ndarray, levels: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Continuous ranked probability score in ms, as twice the pinball loss averaged over levels.

    Exact in the limit of many levels; `levels` should be the midpoints (i + 1/2) / m.

    Args:
      quantiles: [n, m], ascending along the second axis.
      levels: [m].
      actual: [n].
    """
    below = actual[:, None] < quantiles
    return 2.0 * np.mean((quantiles - actual[:, None]) * (below - levels), axis=1)


def coverage(lower: np.ndarray, upper: np.ndarray, actual: np.ndarray) -> float:
    """Share of results inside [lower, upper]."""
    return float(np.mean((lower <= actual) & (actual <= upper)))


def pit_histogram(pit: np.ndarray, bins: int = 20) -> np.ndarray:
    """Share of the probability integral transforms F(y) in equal bins: flat at 1/bins when calibrated."""
    counts, _ = np.histogram(np.clip(pit, 0.0, 1.0), bins=bins, range=(0.0, 1.0))
    return counts / max(len(pit), 1)


def calibration_curve(pit: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """For each level p, the share of results at or below their predicted p-quantile."""
    return np.searchsorted(np.sort(pit), levels, side="right") / max(len(pit), 1)


def expected_calibration_error(pit: np.ndarray, levels: np.ndarray | None = None) -> float:
    """Mean |observed - nominal| share over the levels 0.05 … 0.95 (Kuleshov et al., 2018)."""
    levels = np.arange(0.05, 0.96, 0.05) if levels is None else levels
    return float(np.mean(np.abs(calibration_curve(pit, levels) - levels)))


def brier(probability: np.ndarray, happened: np.ndarray) -> float:
    return float(np.mean((probability - happened) ** 2))


def log_loss_bits(probability: np.ndarray, happened: np.ndarray) -> float:
    """Mean -log2 of the probability given to the outcome."""
    given = np.where(happened, probability, 1.0 - probability)
    return float(np.mean(-np.log2(np.maximum(given, 1e-12))))


def auc(score: np.ndarray, happened: np.ndarray) -> float:
    """Probability that a random event scores above a random non-event; ties count half. NaN without both."""
    positives = int(happened.sum())
    negatives = len(happened) - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    # Mean rank of each distinct score, counted from 1.
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    rank_sum = ranks[inverse][happened.astype(bool)].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def failure_calibration_error(probability: np.ndarray, happened: np.ndarray, bins: int = 10) -> float:
    """Mean |mean probability - frequency| over groups of equal size, sorted by probability."""
    order = np.argsort(probability, kind="stable")
    groups = np.array_split(order, bins)
    gaps = [len(g) * abs(probability[g].mean() - happened[g].mean()) for g in groups if len(g)]
    return float(sum(gaps) / max(len(probability), 1))


REPLICATES = 200
BOUNDS = (2.5, 97.5)


class Bootstrap:
    """Bootstrap by source. All figures and methods of a test use the same draws, so they can be compared."""

    def __init__(self, sources: np.ndarray, replicates: int = REPLICATES, seed: int = 0):
        self._sources = np.asarray(sources)
        self._count = int(self._sources.max()) + 1 if len(self._sources) else 0
        random = np.random.default_rng(seed)
        #: Count of each source in each replicate, [replicates, sources]; None with fewer than two sources.
        self._draws = None
        if self._count > 1:
            self._draws = random.multinomial(self._count, np.full(self._count, 1 / self._count), replicates)

    def mean(self, values: np.ndarray, chosen: np.ndarray | None = None) -> list[float] | None:
        """Return the bounds of the mean; `values` are those of the chosen measurements."""
        if self._draws is None or not len(values):
            return None
        sources = self._sources if chosen is None else self._sources[chosen]
        total = self._draws @ np.bincount(sources, values, self._count)
        number = self._draws @ np.bincount(sources, minlength=self._count)
        return _bounds(total[number > 0] / number[number > 0])

    def median(self, values: np.ndarray, chosen: np.ndarray | None = None) -> list[float] | None:
        """Return the bounds of the median."""
        if self._draws is None or not len(values):
            return None
        sources = self._sources if chosen is None else self._sources[chosen]
        order = np.argsort(values)
        ranked, sources = values[order], sources[order]
        out = []
        for draw in self._draws:
            below = np.cumsum(draw[sources])
            if below[-1]:
                out.append(ranked[np.searchsorted(below, below[-1] / 2)])
        return _bounds(np.array(out))


def _bounds(replicates: np.ndarray) -> list[float] | None:
    return [float(value) for value in np.percentile(replicates, BOUNDS)] if len(replicates) else None


#: Number of candidates of a choice.
CHOICE_OF = 10


def choice(
    expected: np.ndarray, true: np.ndarray, source: np.ndarray, destination: np.ndarray, size: int = CHOICE_OF
) -> dict[str, float] | None:
    """Score the choice of the destination with the least expected cost.

    The queried destinations of a source, each once and in order, are divided into sets of `size`; an
    incomplete set is dropped.

    Args:
      expected, true: float64 [n], ms; no reply costs the timeout.
      source, destination: int [n].

    Returns:
      number of sets, share of sets whose choice was the fastest, and mean cost above the fastest, ms; None
      without any set.
    """
    right, regret = [], []
    for one in np.unique(source):
        rows = np.flatnonzero(source == one)
        _, first = np.unique(destination[rows], return_index=True)
        rows = rows[np.sort(first)]
        for start in range(0, len(rows) - size + 1, size):
            among = rows[start : start + size]
            lost = float(true[among[np.argmin(expected[among])]] - true[among].min())
            right.append(lost == 0.0)
            regret.append(lost)
    if not right:
        return None
    return {"sets": len(right), "right": float(np.mean(right)), "regret_ms": float(np.mean(regret))}
