"""Compiled arithmetic of piecewise-linear distribution functions: x ascending in ms, f from 0 to 1."""

import numpy as np

from ping_llm.compiled import kernel


@kernel
def below(x: np.ndarray, f: np.ndarray, y: float) -> float:
    """F(y) of one piecewise-linear row."""
    k = len(x)
    if y <= x[0]:
        return f[0] if y == x[0] else 0.0
    if y >= x[k - 1]:
        return 1.0
    j = np.searchsorted(x, y, side="right")
    out: float = f[j - 1] + (f[j] - f[j - 1]) * (y - x[j - 1]) / (x[j] - x[j - 1])
    return out


@kernel
def cdf(values: np.ndarray, levels: np.ndarray, row: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.empty(len(row))
    for i in range(len(row)):
        out[i] = below(values[row[i]], levels[row[i]], y[i])
    return out


@kernel
def quantile(values: np.ndarray, levels: np.ndarray, row: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    out = np.empty((len(row), len(wanted)))
    for i in range(len(row)):
        x, f = values[row[i]], levels[row[i]]
        for m in range(len(wanted)):
            j = min(max(np.searchsorted(f, wanted[m]), 1), len(f) - 1)
            rise = f[j] - f[j - 1]
            share = (wanted[m] - f[j - 1]) / rise if rise > 0 else 1.0
            out[i, m] = x[j - 1] + min(max(share, 0.0), 1.0) * (x[j] - x[j - 1])
    return out


@kernel
def crps(values: np.ndarray, levels: np.ndarray, row: np.ndarray, y: np.ndarray) -> np.ndarray:
    """CRPS, ∫ (F(x) - [x ≥ y])² dx, by pieces: the square of a line from a to b integrates to
    width · (a² + ab + b²) / 3."""
    out = np.empty(len(row))
    for i in range(len(row)):
        x, f = values[row[i]], levels[row[i]]
        total = max(x[0] - y[i], 0.0) + max(y[i] - x[-1], 0.0)
        for j in range(1, len(x)):
            x0, x1, a, b = x[j - 1], x[j], f[j - 1], f[j]
            if y[i] <= x0:
                a, b = 1.0 - a, 1.0 - b
                total += (x1 - x0) * (a * a + a * b + b * b) / 3.0
            elif y[i] >= x1:
                total += (x1 - x0) * (a * a + a * b + b * b) / 3.0
            else:
                c = a + (b - a) * (y[i] - x0) / (x1 - x0)
                total += (y[i] - x0) * (a * a + a * c + c * c) / 3.0
                c, b = 1.0 - c, 1.0 - b
                total += (x1 - y[i]) * (c * c + c * b + b * b) / 3.0
        out[i] = total
    return out


@kernel
def mix(
    values: np.ndarray,
    levels: np.ndarray,
    other_values: np.ndarray,
    other_levels: np.ndarray,
    weight: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    n, k = values.shape
    k2 = len(other_values)
    merged = np.empty((n, k + k2))
    mass = np.empty((n, k + k2))
    for i in range(n):
        x, f, w = values[i], levels[i], weight[i]
        a = b = 0
        for j in range(k + k2):
            if b >= k2 or (a < k and x[a] <= other_values[b]):
                y = x[a]
                mass[i, j] = (1 - w) * f[a] + w * below(other_values, other_levels, y)
                a += 1
            else:
                y = other_values[b]
                mass[i, j] = (1 - w) * below(x, f, y) + w * other_levels[b]
                b += 1
            merged[i, j] = y
    return merged, mass


@kernel
def on_grid(values: np.ndarray, levels: np.ndarray, row: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """F at every point of one ascending grid, for each row, in one pass over both."""
    out = np.empty((len(row), len(grid)))
    for i in range(len(row)):
        x, f = values[row[i]], levels[row[i]]
        last = len(x) - 1
        j = 0
        for g in range(len(grid)):
            y = grid[g]
            while j <= last and x[j] <= y:
                j += 1
            if j == 0:
                out[i, g] = 0.0
            elif j > last:
                out[i, g] = 1.0
            else:
                out[i, g] = f[j - 1] + (f[j] - f[j - 1]) * (y - x[j - 1]) / (x[j] - x[j - 1])
    return out
