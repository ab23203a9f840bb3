"""Scores of predictions against what happened. NumPy only; every function takes plain arrays.

RTT scores are over the measurements that got a reply; failure scores are over all.
"""

import numpy as np

#: Coverage is reported of the central intervals that should hold this share of the results.
INTERVALS = (0.5, 0.8, 0.9)

#: Relative errors are reported at these percentiles.
RELATIVE_PERCENTILES = (50, 75, 90, 95)

#: Relative error of an RTT near zero says nothing: the denominator is at least 0.1 ms.
SMALLEST_RTT_MS = 0.1


def absolute_error(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    return np.abs(predicted - actual)


def median_absolute_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    return float(np.median(absolute_error(predicted, actual)))


def mean_absolute_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    return float(np.mean(absolute_error(predicted, actual)))


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
    """Mean -log2 of the probability given to what happened."""
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
    """|mean probability - frequency| over groups of equal probability mass, weighted by their size."""
    order = np.argsort(probability, kind="stable")
    groups = np.array_split(order, bins)
    gaps = [len(g) * abs(probability[g].mean() - happened[g].mean()) for g in groups if len(g)]
    return float(sum(gaps) / max(len(probability), 1))
