"""The RTT grid on which a stack keeps its curves, and operations on such curves."""

import numpy as np

from ping_llm.compiled import COMPILED, kernel
from ping_llm.measurements.schema import MAX_RTT_MS

#: RTTs of the grid, ms: steps of 0.02 ms up to 2 ms, 0.1 ms up to 100, 0.25 ms up to 400, 1 ms up to 2 s,
#: then 2 %. All whole milliseconds up to 2 s are in it, so that bits are exact there.
GRID = np.concatenate(
    [
        np.arange(0, 100) / 50,
        np.arange(20, 1000) / 10,
        np.arange(400, 1600) / 4,
        np.arange(400.0, 2000.0),
        np.unique(np.ceil(2000 * 1.02 ** np.arange(379))),
    ]
)
GRID = np.append(GRID[GRID < MAX_RTT_MS], MAX_RTT_MS + 1)

#: Added to RTTs before ratios are taken, ms, because errors below a tenth of a millisecond do not matter.
FLOOR_MS = 0.1

#: Number of shifts of equal probability that a blur averages over.
SHIFTS = 32


def capped(levels: np.ndarray, most_ms: float) -> np.ndarray:
    """Curves without the probability above `most_ms`, rescaled to 1; [n, GRID]."""
    last = min(int(np.searchsorted(GRID, most_ms)), len(GRID) - 1)
    out: np.ndarray = np.minimum(levels / np.maximum(levels[:, last : last + 1], 1e-9), 1.0)
    return out


def blurred(levels: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Curves blurred by a normal distribution in log RTT, [n, GRID].

    Args:
      spread: standard deviation of the blur of each curve, [n]; 0 leaves a curve unchanged.
    """
    make = _blurred if COMPILED else _blurred_plainly
    out: np.ndarray = make(GRID, np.ascontiguousarray(levels), np.asarray(spread, np.float64), shifts())
    return out


def shifts() -> np.ndarray:
    """Middles of SHIFTS parts of equal probability of a standard normal distribution."""
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf((k + 0.5) / SHIFTS) for k in range(SHIFTS)])


def _blurred_plainly(
    grid: np.ndarray, levels: np.ndarray, spread: np.ndarray, shifts: np.ndarray
) -> np.ndarray:
    """Blur with NumPy on small devices without a compiler: 3 ms per curve; `_blurred` in Python takes 210."""
    out = np.array(levels, np.float64)
    for i in np.flatnonzero(spread > 0).tolist():
        moved = (grid + FLOOR_MS) * np.exp(-spread[i] * shifts)[:, None] - FLOOR_MS
        out[i] = np.interp(moved, grid, levels[i], left=0.0).mean(axis=0)
    return out


@kernel
def _blurred(grid: np.ndarray, levels: np.ndarray, spread: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    n, size = levels.shape
    out = np.empty((n, size))
    for i in range(n):
        if spread[i] <= 0:
            out[i] = levels[i]
            continue
        out[i] = 0.0
        for k in range(len(shifts)):
            factor = np.exp(-spread[i] * shifts[k])
            j = 1  # grid[j - 1] <= y < grid[j]; both ascend, so one pass is enough
            for g in range(size):
                y = (grid[g] + FLOOR_MS) * factor - FLOOR_MS
                if y <= grid[0]:
                    continue
                while j < size and grid[j] <= y:
                    j += 1
                if j >= size:
                    out[i, g] += levels[i, size - 1]
                else:
                    share = (y - grid[j - 1]) / (grid[j] - grid[j - 1])
                    out[i, g] += levels[i, j - 1] + share * (levels[i, j] - levels[i, j - 1])
        for g in range(size):
            out[i, g] /= len(shifts)
    return out
