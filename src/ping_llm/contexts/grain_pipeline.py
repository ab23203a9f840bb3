"""Filling of units in Grain's worker processes, with the same result.

An element is a whole unit of some hundred sequences, so Grain's 50–200 µs per element are negligible. Worker
i of w plans all units, which is cheap, and fills units i, i + w, …; Grain returns them in turn, so their
order is that of one process. The position of the stream is kept by `Batches`, not by Grain, whose own state
depends on the number of workers.

Importing this module imports Grain, and with it JAX where that is installed.
"""

import os
import sys
import threading
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import grain
import numpy as np
from grain._src.python.dataset.stats import pretty_format_summary, record_next_duration_if_output

from ping_llm.contexts.batches import Stream
from ping_llm.contexts.plan import Cursor, Unit
from ping_llm.contexts.units import FilledUnit, Spent
from ping_llm.files import write_text

#: Interval in seconds at which a worker checks that its parent is alive.
PARENT_CHECK_S = 1.0


class UnitDataset(grain.IterDataset):
    """Filled units from a position in the order on; sliceable, so that workers share the filling."""

    def __init__(self, stream: Stream, start: Cursor):
        super().__init__()
        self._stream, self._start = stream, start
        self._slice = slice(0, None, 1)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        del sequential_slice  # the units of a worker are never consecutive: the order would change
        self._slice = sl

    def __iter__(self) -> "UnitIterator":
        return UnitIterator(self._stream, self._start, self._slice.start or 0, self._slice.step or 1)


class UnitIterator(grain.DatasetIterator):
    def __init__(self, stream: Stream, start: Cursor, offset: int, step: int):
        super().__init__()
        self._planner, self._filler = stream.planner(), stream.filler()
        self._epochs = stream.epochs
        self._place, self._offset, self._step = start, offset, step
        self._planned = 0

    @record_next_duration_if_output
    def __next__(self) -> dict[str, np.ndarray]:
        with self._stats.record_self_time():
            begun = time.monotonic()
            unit = self._next_of_mine()
            filled = self._filler.fill(unit, time.monotonic() - begun)
            return self._stats.record_output_spec(_element(filled))

    def _next_of_mine(self) -> Unit:
        while True:
            unit = self._planner.plan(self._place, self._epochs)
            if not len(unit.row):
                raise StopIteration
            self._place = unit.end
            self._planned += 1
            if (self._planned - 1) % self._step == self._offset:
                return unit

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self._place.epoch, "position": self._place.position, "planned": self._planned}

    def set_state(self, state: dict[str, Any]) -> None:
        self._place = Cursor(state["epoch"], state["position"])
        self._planned = state["planned"]


def iterate(
    stream: Stream,
    start: Cursor,
    *,
    workers: int,
    buffer_size: int = 1,
    debug: bool = False,
) -> Any:
    """Return a Grain iterator of elements for `unit_of`. Closing it ends the workers."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads its flags when it starts workers
    grain.config.update("py_debug_mode", debug)
    dataset: grain.IterDataset = UnitDataset(stream, start)
    if workers:
        dataset = dataset.mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(
                num_workers=workers, per_worker_buffer_size=buffer_size
            ),
            worker_init_fn=_begin_worker,
        )
    return dataset.__iter__()


def report(iterator: Any, visualization_dir: str) -> None:
    """Print Grain's execution summary of an iterator in debug mode.

    Given a folder, write the summary and the graph there. Grain 0.2.18 only logs them, the summary every
    minute, and rejects a folder, so this uses its private functions.
    """
    summary = pretty_format_summary(iterator._stats._get_execution_summary())
    print(f"Grain execution summary\n{summary}", file=sys.stderr)
    if visualization_dir:
        write_text(Path(visualization_dir) / "grain_summary.txt", summary + "\n")
        write_text(
            Path(visualization_dir) / "grain_graph.txt", iterator._stats._visualize_dataset_graph() + "\n"
        )


def _begin_worker(index: int, count: int) -> None:
    """Set up a worker before anything else: without accelerator, and ending when its parent ends."""
    del index, count
    os.environ["JAX_PLATFORMS"] = "cpu"
    parent = os.getppid()

    def watch() -> None:
        # After kill -9 of the parent, a spawned worker is not notified and would wait for its queue forever.
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="ping-llm-parent-watch").start()


def _element(filled: FilledUnit) -> dict[str, np.ndarray]:
    unit = filled.unit
    return {
        "inputs": filled.inputs,
        "targets": filled.targets,
        "positions": filled.positions,
        "segments": filled.segments,
        "notes": filled.notes,
        "bad_rows": np.array(filled.bad_rows, np.int64),
        "spent": np.array(astuple(filled.spent)),
        "places": np.array(
            [unit.start.epoch, unit.start.position, unit.end.epoch, unit.end.position, unit.used], np.int64
        ),
        "first": unit.first,
        "row": unit.row,
        "number": unit.number,
        "key": unit.key,
        "bound": unit.bound,
    }


def unit_of(element: dict[str, np.ndarray]) -> FilledUnit:
    """Convert an element back to the unit from which `_element` made it."""
    start_epoch, start_position, end_epoch, end_position, used = element["places"].tolist()
    unit = Unit(
        Cursor(start_epoch, start_position),
        Cursor(end_epoch, end_position),
        element["first"],
        element["row"],
        element["number"],
        element["key"],
        element["bound"],
        used,
    )
    return FilledUnit(
        unit,
        element["inputs"],
        element["targets"],
        element["positions"],
        element["segments"],
        element["notes"],
        tuple(element["bad_rows"].tolist()),
        Spent(*element["spent"].tolist()),
    )
