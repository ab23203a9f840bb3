"""Ingest on several machines: the files, and the stretches of large ones, are read by tasks or by Spark.

    step `read`, --task I of --tasks N, anywhere and in any order; when all are done, step `finish`

A piece is read by the same code as on one machine, into the same folder of parts, which appears when it is
complete: a task that was killed is simply run again. `finish` sorts the parts into the table. Inputs and
output must be on a file system that all see.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.ingest import accounting
from ping_llm.ingest.options import STDIN, IngestOptions, find_files
from ping_llm.ingest.plan import file_tasks, in_stretches, is_done, run_tasks
from ping_llm.ingest.workers import FileTask, Workers
from ping_llm.progress import Progress
from ping_llm.spark_session import each_on_spark

STEPS = ("read", "finish")


def pieces_of(inputs: Sequence[str], out: Path, options: IngestOptions, pool: Workers) -> list[FileTask]:
    """All that is to be read, the largest first: the same list wherever it is made."""
    paths = find_files(inputs, out)
    if STDIN in paths:
        raise UsageError("standard input is read on one machine only: without --step and --engine")
    tasks = file_tasks(paths, out / accounting.WORK_FOLDER, options)
    stretches = in_stretches(tasks, pool)
    pieces = [piece for task in tasks for piece in stretches.get(task.number, [task])]
    return sorted(pieces, key=lambda piece: -piece.bytes)


def read_share(
    inputs: Sequence[str], out: Path, options: IngestOptions, workers: int, task: int, tasks: int
) -> None:
    """Read what falls to one task."""
    if not 0 <= task < tasks:
        raise UsageError(f"--task {task} of --tasks {tasks}: tasks are numbered from 0")
    with Workers(workers) as pool:
        own = pieces_of(inputs, out, options, pool)[task::tasks]
        (out / accounting.WORK_FOLDER).mkdir(parents=True, exist_ok=True)
        with Progress("ingest", unit="results") as progress:
            waiting = [piece for piece in own if not is_done(piece)]
            run_tasks(waiting, pool, lambda reports: progress.advance(reports.results))


def refuse_unread(inputs: Sequence[str], out: Path, options: IngestOptions, workers: int) -> None:
    """Raise unless everything has been read."""
    with Workers(workers) as pool:
        pieces = pieces_of(inputs, out, options, pool)
    missing = [piece for piece in pieces if not is_done(piece)]
    if missing:
        raise PingError(
            f"{len(missing)} of {len(pieces)} pieces are not read yet (such as {missing[0].path}), or have "
            "changed since; run the step `read` of all tasks"
        )


def read_on_spark(
    inputs: Sequence[str], out: Path, options: IngestOptions, workers: int, master: str | None
) -> None:
    """Read everything on Spark, a piece per partition; a lost one is read again by Spark itself."""
    with Workers(workers) as pool:
        waiting = [piece for piece in pieces_of(inputs, out, options, pool) if not is_done(piece)]
    (out / accounting.WORK_FOLDER).mkdir(parents=True, exist_ok=True)
    if not waiting:
        return
    each_on_spark("ping-llm ingest", master, len(waiting), partial(_read, waiting))


def _read(pieces: Sequence[FileTask], number: int) -> None:
    if not is_done(pieces[number]):
        pieces[number].run(_ignore)


def _ignore(reports: Any) -> None:
    """Progress of an executor is Spark's to show."""
