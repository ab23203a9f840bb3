"""Tasks of an ingest run, run sequentially in this process or in parallel in worker processes.

Processes are used because a quarter of the work is Python code and holds the GIL. A fork server that has
imported and compiled everything (preload.py) forks them, so that they start at once and share unchanged
memory. The server itself takes a second to start, so small work is done in this process. Large modules are
imported by the tasks, so that the parent of workers stays small.
"""

import gc
import hashlib
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ping_llm.errors import PingError
from ping_llm.ingest.options import SORT_ROWS, IngestOptions

if TYPE_CHECKING:
    from ping_llm.ingest.stretches import Stretch

#: Smallest number of rows worth a separate task.
_MIN_SORT_ROWS = 50_000


@dataclass(frozen=True)
class Group:
    """Consecutive days that are sorted together, and the parts that hold their rows."""

    first_day: int  # days since 1970
    last_day: int
    parts: tuple[str, ...]


@dataclass
class Written:
    """Counts of a sorted group, by input file: results and rows written, and duplicates left out."""

    measurements: Counter[int] = field(default_factory=Counter)
    duplicates: Counter[int] = field(default_factory=Counter)
    packets: Counter[int] = field(default_factory=Counter)
    kinds: Counter[tuple[int, int]] = field(default_factory=Counter)  # measurements by (file, kind)

    def __iadd__(self, other: "Written") -> "Written":
        self.measurements.update(other.measurements)
        self.duplicates.update(other.duplicates)
        self.packets.update(other.packets)
        self.kinds.update(other.kinds)
        return self


def group_days(days_of_parts: Sequence[tuple[str, dict[int, int]]], workers: int = 1) -> list[Group]:
    """Split all days into groups of at least one day and, if possible, at most SORT_ROWS rows.

    The groups determine only how the work is shared; the file of a day is the same in any group.
    """
    totals: Counter[int] = Counter()
    for _, days in days_of_parts:
        totals.update(days)
    limit = min(SORT_ROWS, max(_MIN_SORT_ROWS, totals.total() // (3 * workers)))
    groups: list[list[int]] = []
    rows = 0
    for day in sorted(totals):
        if not groups or rows + totals[day] > limit:
            groups.append([])
            rows = 0
        groups[-1].append(day)
        rows += totals[day]
    return [
        Group(
            days[0],
            days[-1],
            tuple(part for part, held in days_of_parts if any(days[0] <= day <= days[-1] for day in held)),
        )
        for days in groups
    ]


#: Smallest input, in bytes, for which workers save time.
_WORTH_WORKERS_BYTES = 4 << 20

_REPORT_SECONDS = 0.2


@dataclass
class Reports:
    """Progress since the last report."""

    results: int = 0
    rejects: int = 0
    finished: int = 0


@dataclass(frozen=True)
class FileTask:
    """Read one input file, or a stretch of it, into parts."""

    path: str
    number: int
    folder: str
    options: IngestOptions
    stretch: "Stretch | None" = None

    @property
    def bytes(self) -> int:
        if self.stretch is not None:
            return self.stretch.bytes
        try:
            return Path(self.path).stat().st_size
        except OSError:
            return 0

    def run(self, report: Callable[[Reports], None]) -> None:
        from ping_llm.ingest.parts import PartWriter
        from ping_llm.ingest.reader import InputFile

        stretch = 0 if self.stretch is None else self.stretch.number
        writer = PartWriter(Path(self.folder), self.number, self.options.rtt == "each", stretch)
        file = InputFile(self.path, self.options, Path(self.folder).parent, self.stretch)
        account = writer.account
        results = rejects = 0
        reported = time.monotonic()
        for block in file:
            writer.add(block)
            if time.monotonic() - reported > _REPORT_SECONDS:
                report(Reports(account.results - results, account.rejected - rejects))
                results, rejects, reported = account.results, account.rejected, time.monotonic()
        facts: dict[str, Any] = {"bytes": file.bytes, "sha256": file.sha256}
        if self.stretch is not None:
            facts = {"lines": file.lines, "checksums": file.checksums}
        writer.finish({**facts, "trouble": file.trouble.sentences})
        report(Reports(account.results - results, account.rejected - rejects, self.stretch is None))


@dataclass(frozen=True)
class CutTask:
    """Divide one input file into stretches, if possible."""

    path: str
    options: IngestOptions
    bytes: int

    def run(self, report: Callable[[Reports], None]) -> "list[Stretch]":
        from ping_llm.ingest.reader import stretches_of

        return stretches_of(self.path, self.options)


@dataclass(frozen=True)
class HashTask:
    """The size and the SHA-256 of a file that is read in stretches."""

    path: str
    bytes: int

    def run(self, report: Callable[[Reports], None]) -> tuple[int, str]:
        with Path(self.path).open("rb") as file:
            return self.bytes, hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class GroupTask:
    """Sort one group of days into the table."""

    group: Group
    out: str
    spill: str
    each: bool
    memory_mb: int
    version: int  # version of the table

    @property
    def bytes(self) -> int:
        return sum(Path(part).stat().st_size for part in self.group.parts)

    def run(self, report: Callable[[Reports], None]) -> Written:
        from ping_llm.ingest.days import write_group

        written = write_group(
            self.group, Path(self.out), Path(self.spill), self.each, self.memory_mb, self.version
        )
        report(Reports(finished=1))
        return written


@dataclass(frozen=True)
class RejectsTask:
    """Join the rejects of all files, after those of an existing table when appending."""

    parts: tuple[tuple[tuple[str, int], ...], ...]  # for each file: its parts, and the lines before each
    out: str
    earlier: str | None = None
    bytes: int = 0

    def run(self, report: Callable[[Reports], None]) -> None:
        from ping_llm.ingest.days import write_rejects

        write_rejects(self.parts, Path(self.out), None if self.earlier is None else Path(self.earlier))


@dataclass(frozen=True)
class OldDayTask:
    """Convert a day of a table back to a part, as file 0; returns the number of its rows."""

    day: str
    part: str

    @property
    def bytes(self) -> int:
        return Path(self.day).stat().st_size

    def run(self, report: Callable[[Reports], None]) -> int:
        from ping_llm.ingest.days import day_as_part

        return day_as_part(Path(self.day), Path(self.part))


_reports: Any = None


def _start_worker(reports: Any) -> None:
    global _reports
    _reports = reports
    # Exclude imported objects from garbage collection, which would write to pages that all workers share.
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent is killed, because the next run may already write the same files."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _run_in_worker(task: Any) -> Any:
    return task.run(_reports.put)


class Workers:
    """A pool of up to `count` processes, started with the first work that is large enough."""

    def __init__(self, count: int):
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._reports: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def warm_up(self) -> None:
        """Start the fork server and a worker now, not with the first work that is large enough."""
        self._pool = self._pool or self._start()
        self._pool.submit(int).result()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ping_llm.ingest.preload"])
        self._reports = context.SimpleQueue()
        return ProcessPoolExecutor(self._count, context, initializer=_start_worker, initargs=(self._reports,))

    def run(
        self, tasks: Sequence[Any], show: Callable[[Reports], None], at_once: int | None = None
    ) -> list[Any]:
        """Run all tasks, at most `at_once` at the same time; return the results in the order of the tasks."""
        if self._pool is None:
            small = sum(task.bytes for task in tasks) < _WORTH_WORKERS_BYTES
            if self._count <= 1 or small:
                return [task.run(show) for task in tasks]
            self._pool = self._start()
        try:
            futures: list[Future[Any]] = []
            waiting: set[Future[Any]] = set()
            while waiting or len(futures) < len(tasks):
                while len(futures) < len(tasks) and len(waiting) < (at_once or len(tasks)):
                    futures.append(self._pool.submit(_run_in_worker, tasks[len(futures)]))
                    waiting.add(futures[-1])
                finished, waiting = wait(waiting, timeout=_REPORT_SECONDS, return_when=FIRST_COMPLETED)
                while not self._reports.empty():
                    show(self._reports.get())
                for future in finished:
                    future.result()
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise PingError(
                "a worker process died (out of memory?): run the same command again to continue, "
                "with fewer --workers"
            ) from None
