"""Choice of the number of loader threads by measurement on the data (`grain_worker_count=-1`).

Threads are used instead of processes, because they share the rows in memory, and one thread makes 20 to 46
million tokens per second.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from ping_llm.contexts.batches import Batches

#: Value of grain_worker_count that means to choose by measurement.
MEASURE = -1

#: Seconds of measurement per number of threads. The whole measurement takes a few seconds.
_SECONDS = 1.0

#: The smallest number of threads that reaches this share of the best speed is chosen: more would take cores
#: from the steps.
_ENOUGH = 0.9

#: Largest number of units ahead beyond the number of threads; a unit takes some megabytes.
_MOST_AHEAD = 4


@dataclass(frozen=True)
class Tuned:
    """The chosen numbers of threads and of units made ahead, and measured tokens per second by threads."""

    threads: int
    units_ahead: int
    measured: dict[int, float]

    def __str__(self) -> str:
        speeds = ", ".join(f"{threads}: {speed / 1e6:.1f}" for threads, speed in self.measured.items())
        several = "" if self.threads == 1 else "s"
        return (
            f"loader: {self.threads} thread{several}, {self.units_ahead} units ahead "
            f"(million tokens/s by threads: {speeds})"
        )


def tune(make: Callable[[int], Batches], seconds: float = _SECONDS) -> Tuned:
    """Measure the speed with 1, 2, 4, … threads, up to the number of cores, and choose.

    Args:
        make: makes the batches with a given number of threads.
    """
    cores = len(os.sched_getaffinity(0))
    numbers = [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
    measured: dict[int, float] = {}
    slow: dict[int, float] = {}
    for threads in numbers:
        measured[threads], slow[threads] = _speed(make(threads), seconds)
    best = max(measured.values())
    chosen = next(threads for threads in numbers if measured[threads] >= _ENOUGH * best)
    # While a slow unit is made, the units ahead must last.
    return Tuned(chosen, chosen + min(ceil(slow[chosen]), _MOST_AHEAD), measured)


def _speed(batches: Batches, seconds: float) -> tuple[float, float]:
    """Tokens per second, and time of a slow unit (one in twenty) as a multiple of the mean."""
    took: list[float] = []
    tokens = 0
    with batches:
        units = batches.units()
        next(units)  # compiles the kernels, and fills the caches
        begun = time.monotonic()
        for unit in units:
            tokens += int(np.count_nonzero(unit.segments))
            took.append(unit.spent.read + unit.spent.fill)
            if time.monotonic() - begun >= seconds:
                break
        passed = time.monotonic() - begun
    took = took or [1.0]
    return tokens / max(passed, 1e-9), float(np.quantile(took, 0.95) / max(np.mean(took), 1e-9))
