"""The stream of batches: what training iterates over, stops and resumes.

The stream is a function of (dataset fingerprint, options, seed, global batch size, length). Threads,
processes, hosts and restarts only decide who makes which part of it, and when. Resuming costs planning one
unit.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from ping_llm.contexts.options import ContextOptions, Parameters
from ping_llm.contexts.plan import Place, Planner, Unit, unit_sequences
from ping_llm.contexts.units import SKIP, STOP, FilledUnit, Rows, UnitFiller
from ping_llm.errors import PingError, UsageError
from ping_llm.rows.store import RowStore

STATE_VERSION = 1


class Batches:
    """An iterator of packed batches.

    Args:
        rows: a folder of probe rows, or an open store of them.
        options: how contexts are drawn.
        batch_size: sequences of a global batch.
        length: tokens of a sequence.
        seed: chooses the stream.
        epochs: None goes on for ever and leaves no space unused; a number gives exactly the planned contexts
            of so many epochs, the tail padded with segmentation 0.
        process_index, process_count: which share of each batch this host makes.
        threads: filling threads beside the caller's; 0 fills in the caller's.
        on_bad_row: "stop" raises an error that names the row; "skip" logs, counts and goes on.
    """

    def __init__(
        self,
        rows: str | Path | Rows,
        options: ContextOptions | None = None,
        *,
        batch_size: int,
        length: int,
        seed: int = 0,
        epochs: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
        threads: int = 1,
        on_bad_row: str = STOP,
    ):
        _check(batch_size, length, seed, epochs, process_index, process_count, threads, on_bad_row)
        self._options = options or ContextOptions()
        self._rows: Rows = RowStore(rows) if isinstance(rows, str | Path) else rows
        self._batch_size, self._length, self._seed, self._epochs = batch_size, length, seed, epochs
        self._threads = threads
        parameters = Parameters.of(self._options, length)
        self._planner = Planner(self._rows.index, parameters, unit_sequences(batch_size), length, seed)
        self._filler = UnitFiller(
            rows=self._rows,
            parameters=parameters,
            seed=seed,
            length=length,
            batch_size=batch_size,
            process_index=process_index,
            process_count=process_count,
            fillers=epochs is None,
            on_bad_row=on_bad_row,
        )
        self._batch = 0  # batches handed out
        self._start = Place(0, 0)  # of the unit that the next batch is in
        self._within = 0  # batches of it handed out
        self._filled: Iterator[FilledUnit] | None = None
        self._current: FilledUnit | None = None
        self._pool: ThreadPoolExecutor | None = None
        self.bad_rows: set[int] = set()  # rows skipped by this host so far

    @property
    def contexts_per_epoch(self) -> int:
        return self._planner.contexts

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        unit = self._unit()
        batch = unit.batch(self._within)
        self._batch += 1
        self._within += 1
        if self._within == len(unit):
            self._start, self._within, self._current = unit.unit.end, 0, None
        return batch

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, and which stream it is: a small dict for JSON."""
        return {
            "version": STATE_VERSION,
            "batch": self._batch,
            "epoch": self._start.epoch,
            "position": self._start.position,
            "within": self._within,
            **self._identity(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where a state of the same stream was taken, whatever threads, workers or hosts made it."""
        if state.get("version") != STATE_VERSION:
            raise PingError(
                f"the data state has version {state.get('version')}, this program reads {STATE_VERSION}; "
                "start a new run"
            )
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise PingError(
                    f"the data state was taken with {name} {state.get(name)!r}, this stream has {mine!r}; "
                    "resume with what the run was started with, or start a new run"
                )
        self._forget()
        self._batch = int(state["batch"])
        self._start = Place(int(state["epoch"]), int(state["position"]))
        self._within = int(state["within"])

    def close(self) -> None:
        """Stop the threads. The stream can be taken up again."""
        self._forget()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _identity(self) -> dict[str, Any]:
        return {
            "fingerprint": self._rows.fingerprint,
            "options": self._options.digest(),
            "seed": self._seed,
            "batch_size": self._batch_size,
            "length": self._length,
            "epochs": self._epochs,
        }

    def _unit(self) -> FilledUnit:
        """The unit that the next batch is in."""
        if self._current is None:
            if self._filled is None:
                self._filled = self._units(self._start)
            self._current = next(self._filled)
            self.bad_rows.update(self._current.bad_rows)
        return self._current

    def _forget(self) -> None:
        self._filled = self._current = None

    def _plans(self, start: Place) -> Iterator[Unit]:
        while len((unit := self._planner.plan(start, self._epochs)).row):
            yield unit
            start = unit.end

    def _units(self, start: Place) -> Iterator[FilledUnit]:
        plans = self._plans(start)
        if self._threads == 0:
            yield from map(self._filler.fill, plans)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "ping-llm-contexts")
        waiting: deque[Future[FilledUnit]] = deque()
        while True:
            while len(waiting) <= self._threads and (unit := next(plans, None)) is not None:
                waiting.append(self._pool.submit(self._filler.fill, unit))
            if not waiting:
                return
            yield waiting.popleft().result()


def _check(
    batch_size: int,
    length: int,
    seed: int,
    epochs: int | None,
    process_index: int,
    process_count: int,
    threads: int,
    on_bad_row: str,
) -> None:
    if batch_size < 1 or length < 1 or (epochs is not None and epochs < 1) or threads < 0:
        raise UsageError(
            f"batch_size {batch_size}, length {length}, epochs {epochs}, threads {threads}: give more"
        )
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}: give a whole number from 0 to 2^63 - 1")
    if process_count < 1 or not 0 <= process_index < process_count or batch_size % process_count:
        raise UsageError(
            f"a global batch of {batch_size} cannot be shared by {process_count} hosts "
            f"(this is {process_index}): make the batch a multiple of the hosts"
        )
    if on_bad_row not in (STOP, SKIP):
        raise UsageError(f"on_bad_row is {on_bad_row!r}: choose {STOP} or {SKIP}")
