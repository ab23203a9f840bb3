"""The RTTs at which the curves of a stack are kept, and what is done to curves there."""

import numpy as np

from ping_llm.compiled import COMPILED, kernel
from ping_llm.measurements.schema import MAX_RTT_MS

#: 0.02 ms apart to 2 ms, 0.1 ms to 100, 0.25 ms to 400, every whole millisecond to 2 s, so that bits are
#: exact there, then 2 % apart.
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

#: A tenth of a millisecond more or less is nothing to be off by: ratios are of RTT + this.
FLOOR_MS = 0.1

#: A blur is a mean over this many shifts of equal probability.
SHIFTS = 32


def capped(levels: np.ndarray, most_ms: float) -> np.ndarray:
    """[n, GRID]: what lies above `most_ms` goes to the rest, in proportion."""
    last = min(int(np.searchsorted(GRID, most_ms)), len(GRID) - 1)
    out: np.ndarray = np.minimum(levels / np.maximum(levels[:, last : last + 1], 1e-9), 1.0)
    return out


def blurred(levels: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """[n, GRID]: each curve blurred by a normal of this deviation in log RTT, [n]; 0 leaves it as it is."""
    make = _blurred if COMPILED else _blurred_plainly
    out: np.ndarray = make(GRID, np.ascontiguousarray(levels), np.asarray(spread, np.float64), shifts())
    return out


def shifts() -> np.ndarray:
    """Quantiles of a standard normal, of equal probability each."""
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf((k + 0.5) / SHIFTS) for k in range(SHIFTS)])


def _blurred_plainly(
    grid: np.ndarray, levels: np.ndarray, spread: np.ndarray, shifts: np.ndarray
) -> np.ndarray:
    """The same without a compiler, on a small device: 3 ms for a curve, and as plain Python 210."""
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
            j = 1  # grid[j - 1] <= y < grid[j]: both ascend, so they are walked through once
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
