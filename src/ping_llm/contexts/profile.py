"""Where the loader's time goes: the same units, with a clock at each stage."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.units import Rows
from ping_llm.rows.block import RowBlock
from ping_llm.rows.index import RowIndex

#: What a bottleneck can be relieved with.
REMEDIES = {
    "plan": "planning is serial: a larger batch or longer sequences plan less often",
    "read": "faster storage or more threads; rows that stay in the page cache are read at memory speed",
    "fill": "more threads: filling holds no lock",
    "hand over": "the consumer is what is slow: the loader waits for it",
}


@dataclass(frozen=True)
class Stage:
    name: str
    seconds: float  # of work
    waiting: float  # wall-clock time beyond the work: another process had the core, or the disk was slow
    elements: int
    element: str


class TimedRows:
    """Rows that count the time spent reading them."""

    def __init__(self, rows: Rows):
        self._rows = rows
        self.seconds = self.wall = 0.0
        self.read_rows = 0

    @property
    def fingerprint(self) -> str:
        return self._rows.fingerprint

    @property
    def index(self) -> RowIndex:
        return self._rows.index

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        work, wall = time.thread_time(), time.perf_counter()
        block = self._rows.read(indices)
        self.seconds += time.thread_time() - work
        self.wall += time.perf_counter() - wall
        self.read_rows += len(block)
        return block


def profile(batches: Batches, seconds: float) -> dict[str, Any]:
    """Run the stages one after another in this thread, for about so many seconds."""
    rows = TimedRows(batches.stream.rows)
    filler = replace(batches.stream.filler(), rows=rows)
    plans = batches.plans()
    filler.fill(next(batches.plans()))  # compiles, and warms the cache
    rows.seconds = rows.wall = 0.0
    rows.read_rows = 0
    spent = {"plan": [0.0, 0.0], "fill": [0.0, 0.0], "hand over": [0.0, 0.0]}
    counts = {"units": 0, "contexts": 0, "batches": 0}
    tokens = 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        with _Clock(spent["plan"]):
            unit = next(plans, None)
        if unit is None:
            break
        with _Clock(spent["fill"]):
            filled = filler.fill(unit)
        with _Clock(spent["hand over"]):
            made = [filled.batch(index) for index in range(len(filled))]
        counts["units"] += 1
        counts["contexts"] += len(unit.row)
        counts["batches"] += len(made)
        tokens += int(np.count_nonzero(filled.targets))
    spent["fill"][0] -= rows.seconds
    spent["fill"][1] -= rows.wall
    stages = [
        _stage("plan", spent["plan"], counts["contexts"], "contexts"),
        _stage("read", [rows.seconds, rows.wall], rows.read_rows, "rows"),
        _stage("fill", spent["fill"], tokens, "tokens"),
        _stage("hand over", spent["hand over"], counts["batches"], "batches"),
    ]
    total = sum(stage.seconds + stage.waiting for stage in stages) or 1e-9
    slowest = max(stages, key=lambda stage: stage.seconds + stage.waiting)
    return {
        "stages": [
            {
                "stage": stage.name,
                "work_s": stage.seconds,
                "waiting_s": stage.waiting,
                "share": (stage.seconds + stage.waiting) / total,
                "elements": stage.element,
                "elements_per_s": stage.elements / max(stage.seconds + stage.waiting, 1e-9),
            }
            for stage in stages
        ],
        "tokens_per_s": tokens / total,
        "bottleneck": slowest.name,
        "advice": REMEDIES[slowest.name],
    }


def _stage(name: str, spent: list[float], elements: int, element: str) -> Stage:
    work, wall = spent
    return Stage(name, max(work, 0.0), max(wall - work, 0.0), elements, element)


class _Clock:
    """Adds its thread's time and the wall clock's to a pair."""

    def __init__(self, pair: list[float]):
        self._pair = pair

    def __enter__(self) -> None:
        self._work, self._wall = time.thread_time(), time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._pair[0] += time.thread_time() - self._work
        self._pair[1] += time.perf_counter() - self._wall
