"""The stream of batches that a training iterates over, stops and resumes.

The stream is a function of (dataset fingerprint, options, seed, global batch size, length). Threads,
processes, hosts and restarts only decide who makes which part of it, and when. Resuming costs planning one
unit. `Stream` holds what identifies a stream; it is small enough to be sent to another process.
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ping_llm.contexts.kinds import of_kinds
from ping_llm.contexts.options import ContextOptions, Parameters
from ping_llm.contexts.plan import Cursor, Planner, Unit, unit_sequences
from ping_llm.contexts.units import NOTES, SKIP, STOP, FilledUnit, Rows, Spent, UnitFiller
from ping_llm.errors import PingError, UsageError
from ping_llm.rows.store import RowStore


@dataclass(frozen=True)
class Stream:
    """One host's share of a stream. The arguments are those of `Batches`."""

    rows: Rows
    batch_size: int
    length: int
    options: ContextOptions = field(default_factory=ContextOptions)
    seed: int = 0
    epochs: int | None = None
    process_index: int = 0
    process_count: int = 1
    on_bad_row: str = STOP

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "process_count"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"epochs is {self.epochs}: it must be at least 1, or None for an endless stream")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed is {self.seed}: give a whole number from 0 to 2^63 - 1")
        if not 0 <= self.process_index < self.process_count or self.batch_size % self.process_count:
            raise UsageError(
                f"a global batch of {self.batch_size} cannot be shared by {self.process_count} hosts "
                f"(this is host {self.process_index}): batch_size must be a multiple of the hosts"
            )
        if self.on_bad_row not in (STOP, SKIP):
            raise UsageError(f"on_bad_row is {self.on_bad_row!r}: choose {STOP} or {SKIP}")
        Parameters.of(self.options, self.length)

    def identity(self) -> dict[str, Any]:
        """What two equal streams have in common; hosts and threads are not part of it."""
        return {
            "fingerprint": self.rows.fingerprint,
            "options": self.options.digest(),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "length": self.length,
            "epochs": self.epochs,
        }

    def planner(self) -> Planner:
        return Planner(
            self.rows.index,
            Parameters.of(self.options, self.length),
            unit_sequences(self.batch_size),
            self.length,
            self.seed,
        )

    def filler(self) -> UnitFiller:
        filler = UnitFiller(
            rows=self.rows,
            parameters=Parameters.of(self.options, self.length),
            seed=self.seed,
            length=self.length,
            batch_size=self.batch_size,
            process_index=self.process_index,
            process_count=self.process_count,
            fillers=self.epochs is None,
            on_bad_row=self.on_bad_row,
        )
        return filler.with_crossing() if self.options.crossed_probability else filler

    def unit_bytes(self) -> int:
        """Memory of a filled unit of this host."""
        sequences = unit_sequences(self.batch_size) // self.process_count
        return 4 * sequences * (4 * self.length + NOTES * self.options.max_segments)


def open_rows(rows: str | Path | Rows, data_format: str = "probe_chunks") -> Rows:
    """The rows behind a path: `probe_chunks` are built rows, `network_parquet` is a table of measurements."""
    if not isinstance(rows, str | Path):
        return rows
    if data_format == "probe_chunks":
        return RowStore(rows)
    if data_format == "network_parquet":
        from ping_llm.contexts.memory_rows import rows_of_parquet

        return rows_of_parquet(rows)
    raise UsageError(
        f"network_data_format is {data_format!r}: choose probe_chunks (rows that `ping-llm rows build` made) "
        "or network_parquet (measurements as Parquet, for small data)"
    )


STATE_VERSION = 1


@dataclass
class Stages:
    """Seconds of the loader's stages over all of its threads or processes, of the units handed out so far.

    Attributes:
        plan, read, fill: work.
        ready: how long units lay ready. Divided by the time passed, it is the mean number of them that did.
        units: how many.
    """

    plan: float = 0.0
    read: float = 0.0
    fill: float = 0.0
    ready: float = 0.0
    units: int = 0

    def add(self, spent: Spent) -> None:
        self.plan += spent.plan
        self.read += spent.read
        self.fill += spent.fill
        self.ready += max(time.monotonic() - spent.ready_at, 0.0)
        self.units += 1


class Batches:
    """An iterator of packed batches.

    Args:
        rows: a folder of probe rows (or of measurements, see `data_format`), or an open store of rows.
        options: how contexts are drawn.
        batch_size: sequences of a global batch.
        length: tokens of a sequence.
        seed: chooses the stream.
        epochs: None is endless and leaves no space unused; a number gives exactly the planned contexts of
            that many epochs, the tail padded with segmentation 0.
        process_index, process_count: which share of each batch this host makes.
        threads: filling threads besides the caller's; 0 fills in the caller's thread.
        workers: Grain worker processes that fill instead of threads; 0 for none. Threads share memory and are
            the faster choice; processes help where other Python code holds the GIL for long.
        per_worker_buffer_size: filled units that each worker keeps ready.
        units_ahead: units that threads fill ahead; 0: one more than threads.
        ram_budget_mb: bound on the memory of units that are filled ahead; 0 for none.
        on_bad_row: "stop" raises an error that names the row; "skip" logs and counts it.
        data_format: "probe_chunks" or "network_parquet".
        grain_debug_mode: run through Grain, and print its execution summary when closed.
        grain_visualization_dir: the same, and write summary and graph of the pipeline there.
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
        workers: int = 0,
        per_worker_buffer_size: int = 1,
        units_ahead: int = 0,
        ram_budget_mb: int = 0,
        on_bad_row: str = STOP,
        data_format: str = "probe_chunks",
        grain_debug_mode: bool = False,
        grain_visualization_dir: str = "",
    ):
        if min(threads, workers, units_ahead, ram_budget_mb) < 0 or per_worker_buffer_size < 1:
            raise UsageError(
                f"threads {threads}, workers {workers}, units_ahead {units_ahead}, ram_budget_mb "
                f"{ram_budget_mb}: none can be negative; per_worker_buffer_size {per_worker_buffer_size} "
                "must be at least 1"
            )
        options = options or ContextOptions()
        self.stream = Stream(
            rows=of_kinds(open_rows(rows, data_format), options.kind_names),
            options=options,
            batch_size=batch_size,
            length=length,
            seed=seed,
            epochs=epochs,
            process_index=process_index,
            process_count=process_count,
            on_bad_row=on_bad_row,
        )
        self._planner, self._filler = self.stream.planner(), self.stream.filler()
        self._threads, self._workers = threads, workers
        affordable = max(ram_budget_mb * 2**20 // self.stream.unit_bytes(), 1) if ram_budget_mb else 2**31
        self._ahead = min(units_ahead or threads + 1, affordable)
        self._worker_buffer = min(per_worker_buffer_size, max(affordable // max(workers, 1), 1))
        self._debug = grain_debug_mode or bool(grain_visualization_dir)
        self._visualization = grain_visualization_dir
        self._batch = 0  # batches handed out
        self._start = Cursor(0, 0)  # of the unit that the next batch is in
        self._within = 0  # batches of it handed out
        self._filled: Iterator[FilledUnit] | None = None
        self._current: FilledUnit | None = None
        self._pools: tuple[ThreadPoolExecutor, ...] = ()
        self._grain: Any = None
        self.bad_rows: set[int] = set()  # rows skipped by this host so far
        self.stages = Stages()

    @property
    def lanes(self) -> int:
        """Threads or processes that read and fill side by side."""
        return self._workers or self._threads or 1

    @property
    def contexts_per_epoch(self) -> int:
        return self._planner.contexts

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        unit = self.current_unit()
        batch = unit.batch(self._within)
        self._batch += 1
        self._within += 1
        if self._within == len(unit):
            self._start, self._within, self._current = unit.unit.end, 0, None
        return batch

    def current_unit(self) -> FilledUnit:
        """The unit that the next batch is in; StopIteration at the end."""
        if self._current is None:
            if self._filled is None:
                self._filled = self._units()
            try:
                self._current = next(self._filled)
            except PingError:
                # A generator that raised is exhausted: make a new one, so that the next
                # call raises the error again.
                self._filled = None
                raise
            self.bad_rows.update(self._current.bad_rows)
            self.stages.add(self._current.spent)
        return self._current

    def skip_unit(self) -> None:
        """Go on with the batch after the current unit."""
        unit = self.current_unit()
        self._batch += len(unit) - self._within
        self._start, self._within, self._current = unit.unit.end, 0, None

    def units(self) -> Iterator[FilledUnit]:
        """The same stream, unit by unit: what looks into it or writes it out wants."""
        while True:
            try:
                unit = self.current_unit()
            except StopIteration:
                return
            yield unit
            self.skip_unit()

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, and which stream it is: a small dict for JSON."""
        return {
            "version": STATE_VERSION,
            "batch": self._batch,
            "epoch": self._start.epoch,
            "position": self._start.position,
            "within": self._within,
            **self.stream.identity(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Resume from a state of the same stream, taken with any number of threads, workers or hosts."""
        if state.get("version") != STATE_VERSION:
            raise PingError(
                f"the data state has version {state.get('version')}, this program reads {STATE_VERSION}; "
                "start a new run"
            )
        for name, mine in self.stream.identity().items():
            if name == "fingerprint" and state.get(name) != mine:
                raise PingError(
                    "these rows are not the ones this run was trained on: "
                    "resume with those, or start a new run"
                )
            if state.get(name) != mine:
                raise PingError(
                    f"the data state was taken with {name} {state.get(name)!r}, this stream has {mine!r}; "
                    "resume with what the run was started with, or start a new run"
                )
        self.close()
        self._batch = int(state["batch"])
        self._start = Cursor(int(state["epoch"]), int(state["position"]))
        self._within = int(state["within"])

    def close(self) -> None:
        """Stop threads and worker processes. Iterating continues with new ones."""
        self._filled = self._current = None
        self._end_threads()
        if self._grain is not None:
            if self._debug:
                from ping_llm.contexts import grain_pipeline

                grain_pipeline.report(self._grain, self._visualization)
            self._grain.close()
            self._grain = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def plans(self, start: Cursor | None = None) -> Iterator[Unit]:
        """The plans of the units from a place on (default: where the stream is)."""
        start = start or self._start
        while len((unit := self._planner.plan(start, self.stream.epochs)).row):
            yield unit
            start = unit.end

    def _units(self) -> Iterator[FilledUnit]:
        if self._workers or self._debug:
            return self._from_grain()
        if self._threads:
            return self._from_threads()
        return (self._filler.fill(unit, seconds) for unit, seconds in self._timed_plans())

    def _timed_plans(self) -> Iterator[tuple[Unit, float]]:
        """Each plan, and the seconds that it took."""
        plans = self.plans()
        while True:
            begun = time.monotonic()
            unit = next(plans, None)
            if unit is None:
                return
            yield unit, time.monotonic() - begun

    def _from_threads(self) -> Iterator[FilledUnit]:
        # One more thread plans a unit ahead: planning takes 1 ms, which the caller would wait for.
        self._end_threads()  # of a stream that failed
        filling = ThreadPoolExecutor(self._threads, "ping-llm-contexts")
        planning = ThreadPoolExecutor(1, "ping-llm-plans")
        self._pools = (filling, planning)
        plans = self._timed_plans()
        planned = planning.submit(next, plans, None)
        waiting: deque[Future[FilledUnit]] = deque()
        while True:
            while len(waiting) < self._ahead and (plan := planned.result()) is not None:
                planned = planning.submit(next, plans, None)
                waiting.append(filling.submit(self._filler.fill, *plan))
            if not waiting:
                return
            yield waiting.popleft().result()

    def _end_threads(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        self._pools = ()

    def _from_grain(self) -> Iterator[FilledUnit]:
        # Imported late: Grain imports JAX where that is installed.
        from ping_llm.contexts import grain_pipeline

        self._grain = grain_pipeline.iterate(
            self.stream,
            self._start,
            workers=self._workers,
            buffer_size=self._worker_buffer,
            debug=self._debug,
        )
        return map(grain_pipeline.unit_of, self._grain)
