"""Confidence intervals by drawing sources, not measurements.

Measurements of one source are alike: drawing them one by one would make intervals several times too
narrow. A replicate draws as many sources as there are, with replacement, with all of their measurements.
One source says nothing about others: there is no interval then.
"""

import numpy as np

REPLICATES = 200
BOUNDS = (2.5, 97.5)


class Bootstrap:
    """The same draws for every figure and every method of a test, so that methods can be compared."""

    def __init__(self, sources: np.ndarray, replicates: int = REPLICATES, seed: int = 0):
        self._sources = np.asarray(sources)
        self._count = int(self._sources.max()) + 1 if len(self._sources) else 0
        random = np.random.default_rng(seed)
        #: How often each source is in each replicate.
        self._draws = None
        if self._count > 1:
            self._draws = random.multinomial(self._count, np.full(self._count, 1 / self._count), replicates)

    def mean(self, values: np.ndarray, chosen: np.ndarray | None = None) -> list[float] | None:
        """Bounds of the mean; `values` are those of the chosen measurements."""
        if self._draws is None or not len(values):
            return None
        sources = self._sources if chosen is None else self._sources[chosen]
        total = self._draws @ np.bincount(sources, values, self._count)
        number = self._draws @ np.bincount(sources, minlength=self._count)
        return _bounds(total[number > 0] / number[number > 0])

    def median(self, values: np.ndarray, chosen: np.ndarray | None = None) -> list[float] | None:
        """Bounds of the median."""
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
