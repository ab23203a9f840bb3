"""Tasks of an ingest run, one after another here or side by side in worker processes.

Processes, because parsing holds the GIL; spawned, because the parent may have threads. A worker takes most of
a second to start, so small work is done in this process.
"""

import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.ingest.finish import Group, write_group
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.parts import PartWriter
from ping_llm.ingest.reader import InputFile

#: Below this much input, workers cost more than they bring.
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
    """Read one input file into parts."""

    path: str
    number: int
    folder: str
    options: IngestOptions

    @property
    def bytes(self) -> int:
        try:
            return Path(self.path).stat().st_size
        except OSError:
            return 0

    def run(self, report: Callable[[Reports], None]) -> None:
        writer = PartWriter(Path(self.folder), self.number)
        file = InputFile(self.path, self.options, spool=Path(self.folder).parent)
        reported_results = reported_rejects = 0
        reported = time.monotonic()
        collecting = gc.isenabled()
        gc.disable()  # JSON has no cycles, and looking for them takes a tenth of the time
        try:
            for block in file:
                writer.add(block)
                if time.monotonic() - reported > _REPORT_SECONDS:
                    account = writer.account
                    report(Reports(account.results - reported_results, account.rejected - reported_rejects))
                    reported_results, reported_rejects = account.results, account.rejected
                    reported = time.monotonic()
        finally:
            if collecting:
                gc.enable()
        writer.finish({"bytes": file.bytes, "sha256": file.sha256, "trouble": file.trouble.sentences})
        account = writer.account
        report(Reports(account.results - reported_results, account.rejected - reported_rejects, 1))


@dataclass(frozen=True)
class GroupTask:
    """Sort one group of days into the table."""

    group: Group
    out: str
    spill: str
    each: bool
    memory_mb: int

    @property
    def bytes(self) -> int:
        return sum(Path(part).stat().st_size for part in self.group.parts)

    def run(self, report: Callable[[Reports], None]) -> Any:
        written = write_group(self.group, Path(self.out), Path(self.spill), self.each, self.memory_mb)
        report(Reports(finished=1))
        return written


_reports: Any = None


def _start_worker(reports: Any) -> None:
    global _reports
    _reports = reports


def _run_in_worker(task: FileTask | GroupTask) -> Any:
    return task.run(_reports.put)


def run_tasks(
    tasks: Sequence[FileTask] | Sequence[GroupTask], workers: int, show: Callable[[Reports], None]
) -> list[Any]:
    """Run all tasks; results in their order."""
    workers = min(workers, len(tasks))
    if workers <= 1 or sum(task.bytes for task in tasks) < _WORTH_WORKERS_BYTES:
        return [task.run(show) for task in tasks]
    context = multiprocessing.get_context("spawn")
    reports = context.SimpleQueue()
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(reports,)) as pool:
        futures = [pool.submit(_run_in_worker, task) for task in tasks]
        waiting = set(futures)
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=_REPORT_SECONDS, return_when=FIRST_COMPLETED)
                while not reports.empty():
                    show(reports.get())
                for future in finished:
                    future.result()
        except BrokenProcessPool:
            raise PingError(
                "a worker process died (out of memory?): run the same command again to continue, "
                "with fewer --workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]
