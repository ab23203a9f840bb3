"""Strata: the values of a few columns, numbered in the order in which they are first seen."""

from collections.abc import Sequence

import numpy as np

from ping_llm.addresses import is_ipv4
from ping_llm.shards.measurements import Columns

_DAY_US, _HOUR_US = 86_400 * 10**6, 3_600 * 10**6

_VALUES = {
    "time": lambda batch, length: batch.time // length,
    "msm_id": lambda batch, _: batch.msm_id,
    "ip_version": lambda batch, _: is_ipv4(batch.src).astype(np.int64),
    "failed": lambda batch, _: (batch.rtt < 0).astype(np.int64),
    "probe_id": lambda batch, _: batch.probe_id,
}


def stratum_length_us(first_us: int, last_us: int) -> int:
    """A stratum of time is a day, or an hour where there are less than three days."""
    return _DAY_US if last_us - first_us >= 3 * _DAY_US else _HOUR_US


def stratum_values(batch: Columns, names: Sequence[str], time_us: int) -> np.ndarray:
    """int64 [n, columns]."""
    values = [_VALUES[name](batch, time_us).astype(np.int64) for name in names]
    return np.stack(values, axis=1) if values else np.zeros((len(batch), 0), np.int64)


class Numbers:
    """Gives each distinct value the next number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, values: np.ndarray) -> np.ndarray:
        """int64 [n] of integers [n]; consecutive batches share the numbers."""
        unique, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        numbers = np.empty(len(unique), np.int64)
        for position in np.argsort(first, kind="stable").tolist():
            numbers[position] = self._numbers.setdefault(int(unique[position]), len(self._numbers))
        return numbers[inverse.ravel()]
