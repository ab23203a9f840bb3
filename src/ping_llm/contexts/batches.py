"""The stream of batches for training, which can be stopped and resumed.

The stream is a function of (dataset fingerprint, options, seed, global batch size, length). Threads,
processes, hosts and restarts only determine which of them makes which part, and when. Resuming costs planning
one unit. `Stream` holds the identity of a stream; it is small enough to be sent to another process.
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


def check_share(
    batch_size: int, length: int, seed: int, epochs: int | None, process_index: int, process_count: int
) -> None:
    """Raise a UsageError if no stream has such batches, or no host has such a share of them."""
    for name, value in (("batch_size", batch_size), ("length", length), ("process_count", process_count)):
        if value < 1:
            raise UsageError(f"{name} is {value}: it must be at least 1")
    if epochs is not None and epochs < 1:
        raise UsageError(f"epochs is {epochs}: it must be at least 1, or None for an endless stream")
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}: it must be a whole number from 0 to 2^63 - 1")
    if not 0 <= process_index < process_count:
        raise UsageError(
            f"process_index is {process_index}: it must be from 0 to {process_count - 1}, since "
            f"process_count is {process_count}"
        )
    if batch_size % process_count:
        raise UsageError(
            f"batch_size is {batch_size}: it must be a multiple of process_count, which is {process_count}"
        )


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
        check_share(
            self.batch_size, self.length, self.seed, self.epochs, self.process_index, self.process_count
        )
        if self.on_bad_row not in (STOP, SKIP):
            raise UsageError(f"on_bad_row is {self.on_bad_row!r}: choose {STOP} or {SKIP}")
        Parameters.of(self.options, self.length)

    def identity(self) -> dict[str, Any]:
        """Values that are the same for equal streams; hosts and threads are not part of them."""
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
        """Memory of this host's share of a filled unit, in bytes."""
        sequences = unit_sequences(self.batch_size) // self.process_count
        return 4 * sequences * (4 * self.length + NOTES * self.options.max_segments)


def open_rows(rows: str | Path | Rows, data_format: str = "probe_chunks") -> Rows:
    """Open rows at a path: `probe_chunks` are built rows, `network_parquet` is a table of measurements.

    Raises:
        UsageError: the format is another one, or `pretokenized`, which has contexts and no rows.
    """
    if not isinstance(rows, str | Path):
        return rows
    if data_format == "probe_chunks":
        return RowStore(rows)
    if data_format == "network_parquet":
        from ping_llm.contexts.memory_rows import rows_of_parquet

        return rows_of_parquet(rows)
    if data_format == "pretokenized":
        raise UsageError(
            f"{rows} holds stored contexts (network_data_format is pretokenized), which only "
            "`ping-llm train` reads: give the rows that they were made from"
        )
    raise UsageError(
        f"network_data_format is {data_format!r}: choose probe_chunks (rows that `ping-llm rows build` "
        "made), network_parquet (measurements as Parquet, for small data) or pretokenized (contexts that "
        "`ping-llm pretokenize` wrote; only for training)"
    )


STATE_VERSION = 1


@dataclass
class Stages:
    """Time spent on the units returned so far, in seconds, by stage, summed over all threads or processes.

    Attributes:
        plan, read, fill: time spent on the work of each stage.
        ready: time for which filled units waited. Divided by the elapsed time, it is their mean number.
        units: number of units.
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
        batch_size: number of sequences per global batch.
        length: number of tokens per sequence.
        seed: random seed of the stream.
        epochs: None: an endless stream, with free space filled by further contexts. A number: exactly the
            planned contexts of that many epochs, with free space padded (segmentation 0).
        process_index, process_count: index of this host and number of hosts, which share each batch.
        threads: threads that fill units, besides the caller's; 0: fill in the caller's thread.
        workers: Grain worker processes that fill units instead of threads; 0: none. Threads share memory and
            are faster; processes help where other Python code holds the GIL for long.
        per_worker_buffer_size: filled units that each worker keeps ready.
        units_ahead: number of units that threads fill ahead; 0: one more than the number of threads.
        ram_budget_mb: memory limit of units that are filled ahead, MiB; 0: no limit.
        on_bad_row: "stop" raises an error that names the row; "skip" logs and counts it.
        data_format: "probe_chunks" or "network_parquet".
        grain_debug_mode: use Grain, and print its execution summary on closing.
        grain_visualization_dir: folder for the execution summary and graph of the pipeline; implies
            grain_debug_mode.
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
        self._batch = 0  # batches returned
        self._start = Cursor(0, 0)  # start of the unit that contains the next batch
        self._within = 0  # batches returned from this unit
        self._filled: Iterator[FilledUnit] | None = None
        self._current: FilledUnit | None = None
        self._pools: tuple[ThreadPoolExecutor, ...] = ()
        self._grain: Any = None
        self.bad_rows: set[int] = set()  # rows skipped by this host so far
        self.stages = Stages()

    @property
    def lanes(self) -> int:
        """Number of threads or processes that read and fill in parallel."""
        return self._workers or self._threads or 1

    @property
    def contexts_per_epoch(self) -> int:
        """Number of contexts that an epoch plans; fillers of an endless stream are not counted."""
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
        """The unit that contains the next batch; raises StopIteration at the end."""
        if self._current is None:
            if self._filled is None:
                self._filled = self._units()
            try:
                self._current = next(self._filled)
            except PingError:
                # A generator that has raised is exhausted: make a new one, so that the next
                # call raises the error again.
                self._filled = None
                raise
            self.bad_rows.update(self._current.bad_rows)
            self.stages.add(self._current.spent)
        return self._current

    def skip_unit(self) -> None:
        """Continue with the batch after the current unit."""
        unit = self.current_unit()
        self._batch += len(unit) - self._within
        self._start, self._within, self._current = unit.unit.end, 0, None

    def units(self) -> Iterator[FilledUnit]:
        """Yield the stream in whole units, to inspect it or to write it to a file."""
        while True:
            try:
                unit = self.current_unit()
            except StopIteration:
                return
            yield unit
            self.skip_unit()

    def get_state(self) -> dict[str, Any]:
        """Return the position and the identity of the stream, as a small dict for JSON."""
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
        """Yield the plans of the units from `start` on (default: the current position)."""
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
        """Yield each plan, and the time in seconds that it took."""
        plans = self.plans()
        while True:
            begun = time.monotonic()
            unit = next(plans, None)
            if unit is None:
                return
            yield unit, time.monotonic() - begun

    def _from_threads(self) -> Iterator[FilledUnit]:
        # A separate thread plans one unit ahead: planning takes 1 ms, for which the caller would wait.
        self._end_threads()  # those of a stream that failed
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
