"""Measurements per source and the gaps between them, from one stream sorted by (source, time)."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from ping_llm.compiled import kernel

#: Gaps are counted by the second up to a day, beyond in steps of 1 %.
_EXACT = 86_400
_STEP = np.log(1.01)
_BINS = _EXACT + 2_000  # a gap of 130 years is the last


class Runs:
    """Feed it consecutive batches; then ask."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()  # measurements of a source → sources
        self.gaps = np.zeros(_BINS, np.int64)
        self.longest_gap_us = 0
        self._key: int | None = None
        self._time = 0
        self._size = 0

    def feed(self, keys: np.ndarray, times: np.ndarray) -> None:
        """Keys of sources and times in µs, sorted."""
        if not len(keys):
            return
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        lengths = np.diff(np.append(starts, len(keys)))
        gaps = np.diff(times)
        same = keys[1:] == keys[:-1]
        if self._key == int(keys[0]):
            # The source of the batch before goes on.
            lengths[0] += self._size
            gaps = np.append(gaps, times[0] - self._time)
            same = np.append(same, True)
        elif self._key is not None:
            self.sizes[self._size] += 1
        found = gaps[same]
        if len(found):
            self.longest_gap_us = max(self.longest_gap_us, int(found.max()))
            _count_gaps(found, _EXACT, _STEP, self.gaps)
        for size, sources in zip(*np.unique(lengths[:-1], return_counts=True), strict=True):
            self.sizes[int(size)] += int(sources)
        self._key, self._time, self._size = int(keys[-1]), int(times[-1]), int(lengths[-1])

    def finish(self) -> None:
        if self._key is not None:
            self.sizes[self._size] += 1
            self._key = None

    @property
    def sources(self) -> int:
        return sum(self.sizes.values())

    def size_quantiles(self, shares: Iterable[float]) -> list[int]:
        """Measurements per source, by nearest rank."""
        sizes = np.array(sorted(self.sizes), np.int64)
        ends = np.cumsum([self.sizes[size] for size in sizes.tolist()])
        return [int(sizes[np.searchsorted(ends, rank(share, int(ends[-1])))]) for share in shares]

    def gap_quantiles(self, shares: Iterable[float]) -> list[float]:
        """Seconds between a source's consecutive measurements, by nearest rank."""
        ends = np.cumsum(self.gaps)
        total = int(ends[-1])
        return (
            [gap_of_bin(int(np.searchsorted(ends, rank(share, total)))) for share in shares] if total else []
        )


def rank(share: float, count: int) -> int:
    """The nearest rank, from 1."""
    return min(count, max(1, int(np.ceil(share * count - 1e-9))))


def gap_of_bin(number: int) -> float:
    """Seconds at the lower edge of a bin."""
    if number < _EXACT:
        return float(number)
    return float(f"{_EXACT * np.exp((number - _EXACT) * _STEP):.3g}")


@kernel
def _count_gaps(gaps, exact, step, counts):
    for gap in gaps:
        second = gap // 1_000_000
        if second < exact:
            counts[second] += 1
        else:
            counts[min(exact + int(np.log(second / exact) / step), len(counts) - 1)] += 1
