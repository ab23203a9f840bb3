"""`query … --out`: answers to a whole file as Parquet by day, divided among the tasks of a cluster.

A part of a day is the unit of work. Its file appears when it is complete, and existing parts are not made
again. A part is always answered as a whole and from the same earlier measurements, whichever task does it,
so the bytes do not depend on the tasks. Each task holds the input in memory.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError, UsageError
from ping_llm.files import remove_unfinished, whole_file, write_json
from ping_llm.measurements.columns import NO_TIME
from ping_llm.measurements.schema import DAY_US
from ping_llm.model.packaged import base_folder
from ping_llm.progress import Progress
from ping_llm.spark_session import each_on_spark

#: Folder name for rows without a time, which Hive, Spark, DuckDB and Arrow read as null.
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Unit:
    """One part of a day.

    Attributes:
      day: days since 1970; None: rows without a time.
      part: number of the part within the day.
      rows: indices of its rows in the input.
    """

    day: int | None
    part: int
    rows: np.ndarray

    @property
    def day_name(self) -> str:
        return _NO_DAY if self.day is None else str(np.datetime64(self.day, "D"))

    def file(self, out: Path) -> Path:
        return out / f"date={self.day_name}" / f"part-{self.part}.parquet"


@dataclass(frozen=True)
class Job(ABC):
    """A query about all rows of a file. It is pickled for workers, which cache by it what they have opened.

    Attributes:
      run: a run; None for a simple method.
      data: as for `Model.load`: path of rows, or whether to use the run's own.
      path: the input file or folder.
    """

    run: Path | None
    data: Path | bool
    path: Path

    #: Name of the step that makes the parts, and of the command, which also names the summary's file.
    step: ClassVar[str]
    command: ClassVar[str]
    #: Nouns for messages: the content of the folder, and the rows of the input.
    made: ClassVar[str]
    items: ClassVar[str]
    #: Largest number of rows per part; None: a day is one part.
    part_rows: ClassVar[int | None] = None

    @abstractmethod
    def open(self) -> Any:
        """Open the model, or the simple method used instead."""

    @abstractmethod
    def read(self) -> tuple[Any, np.ndarray]:
        """Read the input, and the time of each row in µs (NO_TIME: unknown)."""

    @abstractmethod
    def key(self, given: Any) -> dict[str, Any]:
        """Values that the parts depend on, besides the run."""

    @abstractmethod
    def table(self, model: Any, given: Any, rows: np.ndarray) -> pa.Table:
        """Table of the answers to some rows."""

    @abstractmethod
    def summary(self, tables: Iterable[pa.Table], count: int) -> dict[str, Any]:
        """Figures about all parts."""


def run(
    job: Job, out: Path, step: str | None = None, task: int = 0, tasks: int = 1, model: Any = None
) -> dict[str, Any] | None:
    """Write the answers to OUT/date=YYYY-MM-DD/part-N.parquet, or resume.

    Args:
      step: the job's own step for the share of one task, `finish` for the summary, None for both.
      model: the result of `job.open`, if it is open already.

    Returns:
      the summary; None after the job's own step.

    Raises:
      UsageError: the folder holds something else.
      PingError: parts are missing at `finish`.
    """
    if step not in (None, job.step, "finish") or not 0 <= task < tasks:
        raise UsageError(
            f"--step {step}, --task {task} of {tasks}: steps are {job.step} and finish, tasks from 0"
        )
    given, times = job.read()
    units = units_of(times, job.part_rows)
    _claim(out, job, given)
    if step != "finish":
        # The largest units first, dealt to the tasks in turn.
        order = sorted(range(len(units)), key=lambda one: (-len(units[one].rows), one))[task::tasks]
        with Progress(job.items, sum(len(units[one].rows) for one in order)) as progress:
            for unit in (units[one] for one in order):
                if not unit.file(out).exists():
                    model = job.open() if model is None else model
                    _make(job, model, given, unit, out)
                progress.advance(len(unit.rows))
    return None if step == job.step else _finish(job, out, units, len(times))


def run_on_spark(job: Job, out: Path, master: str | None = None) -> dict[str, Any]:
    """Run a job on Spark, with one unit per partition; a worker loads the model and the input once.

    Args:
      master: Spark master such as yarn; None: as set by spark-submit or the environment.
    """
    given, times = job.read()
    units = units_of(times, job.part_rows)
    _claim(out, job, given)
    waiting = [place for place, unit in enumerate(units) if not unit.file(out).exists()]
    if waiting:
        work = partial(_on_worker, job, out, waiting)
        each_on_spark(f"ping-llm {job.command}", master, len(waiting), work)
    return _finish(job, out, units, len(times))


def _on_worker(job: Job, out: Path, waiting: Sequence[int], number: int) -> None:
    model, given, units = _opened(job)
    unit = units[waiting[number]]
    if not unit.file(out).exists():
        _make(job, model, given, unit, out)


@lru_cache(maxsize=1)
def _opened(job: Job) -> tuple[Any, Any, list[Unit]]:
    given, times = job.read()
    return job.open(), given, units_of(times, job.part_rows)


def units_of(times: np.ndarray, part_rows: int | None) -> list[Unit]:
    """Divide the rows by day and part, in input order within a day; rows without a time come last."""
    days = np.where(times == NO_TIME, np.iinfo(np.int64).max, times // DAY_US)
    order = np.argsort(days, kind="stable")
    names, begins = np.unique(days[order], return_index=True)
    units = []
    for day, rows in zip(names.tolist(), np.split(order, begins[1:]), strict=True):
        size = part_rows or len(rows)
        units += [
            Unit(
                None if day == np.iinfo(np.int64).max else day, place, rows[place * size : (place + 1) * size]
            )
            for place in range(-(-len(rows) // size))
        ]
    return units


def digest(columns: Iterable[np.ndarray]) -> str:
    """SHA-256 of the content of columns, as hexadecimal text."""
    made = hashlib.sha256()
    for column in columns:
        made.update(np.ascontiguousarray(column))
    return made.hexdigest()


def _claim(out: Path, job: Job, given: Any) -> None:
    """Record the job in its folder, so that parts of different inputs or runs are not mixed."""
    where = None if job.run is None else str((base_folder(job.run) or job.run).resolve())
    key, file = {"format": 1, "run": where} | job.key(given), out / f".{job.command}.json"
    # Another task may write the same file at the same time.
    if not file.exists() and (not out.exists() or all(one.name[0] == "." for one in out.iterdir())):
        write_json(file, key)
        return
    try:
        same = json.loads(file.read_text()) == key
    except (OSError, ValueError):
        raise UsageError(
            f"{out} is not empty and has no {job.made}: give an empty or new folder as --out"
        ) from None
    if not same:
        raise UsageError(
            f"{out} has the {job.made} of other {job.items} or of another run: give another folder as --out"
        )


def _make(job: Job, model: Any, given: Any, unit: Unit, out: Path) -> None:
    table = job.table(model, given, unit.rows)
    file = unit.file(out)
    try:
        with whole_file(file) as aside:
            pq.write_table(table.combine_chunks(), aside, compression="zstd")
    except FileNotFoundError:
        if not file.exists():  # otherwise another process finished the job, and removed our temporary file
            raise


def _finish(job: Job, out: Path, units: Sequence[Unit], count: int) -> dict[str, Any]:
    missing = [unit for unit in units if not unit.file(out).exists()]
    if missing:
        raise PingError(
            f"{len(missing)} of {len(units)} parts are missing (such as part {missing[0].part} of "
            f"{missing[0].day_name}); run the step `{job.step}` of all tasks"
        )
    for folder in sorted({unit.file(out).parent for unit in units}):
        remove_unfinished(folder, "part-*.parquet")
    tables = (pq.read_table(unit.file(out), partitioning=None) for unit in units)
    days = len({unit.day for unit in units} - {None})
    summary = {job.items: count, "days": days} | job.summary(tables, count)
    write_json(out / f"{job.command}.json", summary)
    return summary
