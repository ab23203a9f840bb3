"""How many threads make batches, measured on the data at hand (`grain_worker_count=-1`).

Threads, not processes: they share the rows in memory, and one makes 20 to 30 million tokens per second.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from ping_llm.contexts.batches import Batches

#: In place of a number of workers: choose by measuring.
MEASURE = -1

#: Seconds per number of threads. All together takes a few seconds.
_SECONDS = 1.0

#: The fewest threads that reach this share of the best speed: more would take cores from the steps.
_ENOUGH = 0.9

#: Units more than threads, at most: one takes some megabytes.
_MOST_AHEAD = 4


@dataclass(frozen=True)
class Tuned:
    """The choice: threads, and units that are made ahead of the steps; and tokens per second by threads."""

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
    """Measure numbers of threads up to that of the cores.

    Args:
        make: the batches with so many threads.
    """
    cores = len(os.sched_getaffinity(0))
    numbers = [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
    measured: dict[int, float] = {}
    slow: dict[int, float] = {}
    for threads in numbers:
        measured[threads], slow[threads] = _speed(make(threads), seconds)
    best = max(measured.values())
    chosen = next(threads for threads in numbers if measured[threads] >= _ENOUGH * best)
    # While a slow unit is made, the others must last.
    return Tuned(chosen, chosen + min(ceil(slow[chosen]), _MOST_AHEAD), measured)


def _speed(batches: Batches, seconds: float) -> tuple[float, float]:
    """Tokens per second, and how many times the mean a slow unit takes (one of twenty)."""
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
