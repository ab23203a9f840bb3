"""`ingest --append`: add new files to an existing table; the bytes are those of one run over all files.

Days without new measurements stay untouched. The others are sorted again, from their rows in the table and
the new parts, into a separate folder. When all of that is done, a journal is written that commits it: any run
that finds the journal moves the files to their places. So an interrupted run leaves either the old table or
the new one.
"""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from ping_llm.errors import PingError, UsageError
from ping_llm.files import sync_directory, write_json
from ping_llm.ingest import accounting
from ping_llm.ingest.options import SORT_MEMORY_MB, SORT_WORKERS, STDIN, IngestOptions
from ping_llm.ingest.plan import FileParts, file_tasks, forget_others, read_files
from ping_llm.ingest.workers import (
    Group,
    GroupTask,
    OldDayTask,
    RejectsTask,
    Workers,
    Written,
    group_days,
)
from ping_llm.measurements.schema import table_version
from ping_llm.paths import utf8_name
from ping_llm.progress import Progress

if TYPE_CHECKING:
    from ping_llm.ingest.run import IngestReport

_STAGED, _JOURNAL = "append", "append.json"


def new_paths(out: Path, summary: dict[str, Any], paths: Sequence[str], options: IngestOptions) -> list[str]:
    """The inputs that are not in the table yet.

    Raises:
      UsageError: the inputs cannot be appended.
    """
    from ping_llm.ingest.run import sha256_of

    if summary["options"] != options.as_json():
        raise UsageError(
            f"{out} was made with other options ({summary['options']}): append with the same, "
            "or name another --out"
        )
    if options.rtt == "each":
        raise UsageError(
            "--append cannot be used with --rtt each: a table of packets does not tell which of them belong "
            "together, so duplicates would not be found; ingest all files in one run"
        )
    if STDIN in paths:
        raise UsageError("--append needs files: standard input cannot be read again after an interruption")
    if not accounting.is_whole(out, summary):
        raise UsageError(f"{out} is damaged or not complete: ingest all files again, with --overwrite")
    known = {entry["file"]: entry["sha256"] for entry in summary["files"]}
    for path in paths:
        name = utf8_name(path)
        if name in known and sha256_of(path) != known[name]:
            raise UsageError(f"{name} has changed since it was ingested into {out}: ingest all files again")
    return [path for path in paths if utf8_name(path) not in known]


def append(
    paths: Sequence[str], out: Path, summary: dict[str, Any], options: IngestOptions, workers: int
) -> None:
    """Add the files to the table; the caller must hold the lock of the folder."""
    work = out / accounting.WORK_FOLDER
    work.mkdir(exist_ok=True)
    # File number 0 stands for the rows of the existing table.
    tasks = [replace(task, number=task.number + 1) for task in file_tasks(paths, work, options)]
    forget_others(work, tasks)
    staged = work / _STAGED
    with Workers(workers) as pool:
        files = read_files(tasks, pool, cut=workers > 1)
        report = _stage(files, out, staged, summary, options, workers, pool)
    write_json(work / _JOURNAL, report.as_json())
    complete(out)


def complete(out: Path) -> bool:
    """Finish a run that has written its journal; return whether there was one."""
    work = out / accounting.WORK_FOLDER
    if not (work / _JOURNAL).exists():
        return False
    summary = json.loads((work / _JOURNAL).read_text())
    for path in sorted((work / _STAGED).rglob("*.parquet")):
        place = out / path.relative_to(work / _STAGED)
        place.parent.mkdir(exist_ok=True)
        path.replace(place)
        sync_directory(place.parent)
    sync_directory(out)
    write_json(out / accounting.SUMMARY_FILE, summary)
    shutil.rmtree(work)
    return True


def is_under_way(out: Path) -> bool:
    return (out / accounting.WORK_FOLDER / _JOURNAL).exists()


def _stage(
    files: Sequence[FileParts],
    out: Path,
    staged: Path,
    summary: dict[str, Any],
    options: IngestOptions,
    workers: int,
    pool: Workers,
) -> "IngestReport":
    from ping_llm.ingest.run import accounted, report_from_json

    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    report = report_from_json(summary, options)
    new = [part for file in files for part in file.rows]
    there = _days_there(out)
    had = table_version(pq.read_schema(next(iter(there.values()))).names) if there else 1
    version = max([had, *(file.done["version"] for file in files)])
    wanted = {day for _, days in new for day in days}
    if version > had:
        wanted |= set(there)  # all files of the table must have the same columns
    old_days = sorted(wanted & set(there))
    old_rows = pool.run(
        [OldDayTask(str(there[day]), str(staged / f"old-{day}")) for day in old_days], lambda reports: None
    )
    old = [(str(staged / f"old-{day}"), {day: rows}) for day, rows in zip(old_days, old_rows, strict=True)]
    groups = group_days([part for part in (*old, *new) if part[1]], workers)
    written = _sort(groups, staged, workers, version, pool)
    if written.measurements[0] != sum(old_rows) or written.duplicates[0]:
        raise PingError(
            f"{out}: {sum(old_rows):,} measurements of the table became {written.measurements[0]:,}. "
            "That is a bug: please report it"
        )
    for part, _ in old:
        Path(part).unlink()
    rejects = out / accounting.REJECTS_FOLDER / accounting.REJECTS_FILE
    parts = tuple(file.rejects for file in files)
    pool.run([RejectsTask(parts, str(staged), str(rejects))], lambda reports: None)
    return accounted(report, files, written)


def _days_there(out: Path) -> dict[int, Path]:
    """The files of the table by day, in days since 1970."""
    from datetime import date

    epoch = date(1970, 1, 1)
    return {
        (date.fromisoformat(path.parent.name.removeprefix("date=")) - epoch).days: path
        for path in accounting.day_files(out)
    }


def _sort(groups: list[Group], staged: Path, workers: int, version: int, pool: Workers) -> Written:
    memory_mb = SORT_MEMORY_MB // min(max(workers, 2), SORT_WORKERS)
    tasks = [
        GroupTask(group, str(staged), str(staged.parent / "spill"), False, memory_mb, version)
        for group in groups
    ]
    total = Written(Counter(), Counter(), Counter(), Counter())
    with Progress("sort", total=len(groups), unit="groups of days") as progress:
        for one in pool.run(tasks, lambda reports: progress.advance(reports.finished), SORT_WORKERS):
            total += one
    return total
