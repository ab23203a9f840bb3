"""`ping-llm ingest`: read all files into parts, sort the parts into the table, account for every result.

On several machines the files, and the stretches of large ones, are read by tasks or by Spark:

    step `read`, --task I of --tasks N, on any machine and in any order; when all are done, step `finish`

A piece is read by the same code as on one machine, into the same folder of parts, which gets its name when it
is complete; a task that was killed is run again. `finish` sorts the parts into the table. Inputs and output
must be on a file system that all machines share.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json
from ping_llm.ingest import accounting
from ping_llm.ingest import append as appending
from ping_llm.ingest.accounting import Account
from ping_llm.ingest.options import (
    MOST_WORKERS,
    SORT_MEMORY_MB,
    SORT_WORKERS,
    STDIN,
    IngestOptions,
    find_files,
)
from ping_llm.ingest.plan import (
    FileParts,
    file_tasks,
    forget_others,
    in_stretches,
    is_done,
    read_files,
    run_tasks,
)
from ping_llm.ingest.workers import FileTask, GroupTask, RejectsTask, Workers, Written, group_days
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.measurements.schema import KINDS, PING
from ping_llm.paths import literal, utf8_name
from ping_llm.progress import Progress
from ping_llm.spark_session import each_on_spark

#: Versions of the layout of the output folder: 2 includes the counts of traceroutes, 1 is the same without.
FORMAT, FORMAT_WITH_HOPS = 1, 2

#: Steps of an ingest on a cluster, in their order.
STEPS = ("read", "finish")

_FACTS = ("bytes", "sha256", "trouble")


@dataclass
class IngestReport:
    """The content of ingest.json."""

    options: IngestOptions
    files: list[tuple[str, Account, dict[str, Any]]] = field(default_factory=list)

    @property
    def total(self) -> Account:
        total = Account()
        for _, account, _ in self.files:
            total += account
        return total

    def add(self, file: FileParts, account: Account) -> None:
        facts = {name: file.done[name] for name in _FACTS}
        self.files.append((utf8_name(file.task.path), account, facts))

    @property
    def troubles(self) -> list[str]:
        return [sentence for _, _, facts in self.files for sentence in facts["trouble"]]

    def as_json(self) -> dict[str, Any]:
        each, hops = self.options.rtt == "each", self.options.with_traceroutes
        return {
            "format": FORMAT_WITH_HOPS if hops else FORMAT,
            "options": self.options.as_json(),
            "total": self.total.as_json(each, hops),
            "files": [
                {"file": path, **account.as_json(each, hops), **facts} for path, account, facts in self.files
            ],
        }


def ingest(
    inputs: Sequence[str],
    out: Path,
    options: IngestOptions = IngestOptions(),
    workers: int | None = None,
    overwrite: bool = False,
    append: bool = False,
) -> IngestReport:
    """Ingest files into `out`, continuing an interrupted run.

    Args:
      append: Whether to add new files to an existing table, if there is one.

    Raises:
      UsageError: an input does not exist, or the output folder holds something else.
      PingError: another process writes to the folder, or the accounting does not add up.
    """
    out = literal(out)
    paths = find_files(inputs, out)
    workers = workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if appending.is_under_way(out):
        with only_writer(out, "ingest"):
            appending.complete(out)
    if append and not overwrite and (out / accounting.SUMMARY_FILE).exists():
        return _append(paths, out, options, workers)
    if not overwrite:
        done = _finished(out, paths, options)
        if done is not None and not (out / accounting.WORK_FOLDER).exists():
            return done
    with only_writer(out, "ingest"):
        accounting.refuse_strangers(out)
        if not overwrite:
            # Another process that held the lock until now may have done the work.
            done = _finished(out, paths, options)
            if done is not None:
                shutil.rmtree(out / accounting.WORK_FOLDER, ignore_errors=True)
                return done
        return _ingest(paths, out, options, workers)


@dataclass(frozen=True)
class ClusterOptions:
    """How the files are read: on this machine, by the tasks of a cluster, or by Spark.

    Attributes:
      engine: `local` or `spark`.
      step: `read` for the share of one task, `finish` for the rest; None for everything.
    """

    engine: str = "local"
    spark_master: str | None = None
    step: str | None = None
    task: int = 0
    tasks: int = 1

    def __post_init__(self) -> None:
        if self.engine not in ("local", "spark"):
            raise UsageError(f"--engine {self.engine} is not one of local, spark")
        if self.step not in (None, *STEPS):
            raise UsageError(f"--step {self.step} is not one of {', '.join(STEPS)}")
        if self.step is not None and self.engine == "spark":
            raise UsageError("--engine spark and --step exclude each other: Spark runs all tasks itself")


def ingest_on_cluster(
    inputs: Sequence[str],
    out: Path,
    options: IngestOptions,
    workers: int | None,
    where: ClusterOptions,
) -> IngestReport | None:
    """Read the files as given by `where`, then finish like `ingest`, with the same bytes.

    Returns None after step `read`.
    """
    out = literal(out)
    done = _finished(out, find_files(inputs, out), options)
    if done is None:
        count = workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS)
        if where.step == "read":
            _read_share(inputs, out, options, count, where.task, where.tasks)
            return None
        if where.step == "finish":
            _refuse_unread(inputs, out, options, count)
        else:
            _read_on_spark(inputs, out, options, count, where.spark_master)
    # With one worker, files would be read whole, and the existing parts of stretches would not be used.
    return ingest(inputs, out, options, max(workers or 0, 2))


def _append(paths: list[str], out: Path, options: IngestOptions, workers: int) -> IngestReport:
    """Append the new files; return the report of the whole table."""
    summary = accounting.read_summary(out) or {}
    if not appending.new_paths(out, summary, paths, options):
        return report_from_json(summary, options)
    with only_writer(out, "ingest"):
        accounting.refuse_strangers(out)
        appending.complete(out)
        # Another process that held the lock until now may have done the work.
        summary = accounting.read_summary(out) or {}
        new = appending.new_paths(out, summary, paths, options)
        if new:
            appending.append(new, out, summary, options, workers)
        return report_from_json(accounting.read_summary(out) or {}, options)


def _ingest(paths: list[str], out: Path, options: IngestOptions, workers: int) -> IngestReport:
    work = out / accounting.WORK_FOLDER
    work.mkdir(exist_ok=True)
    tasks = file_tasks(paths, work, options)
    forget_others(work, tasks)
    with Workers(workers) as pool:
        files = read_files(tasks, pool, cut=workers > 1)
        report = _write_table(files, out, work, options, workers, pool)
    write_json(out / accounting.SUMMARY_FILE, report.as_json())
    shutil.rmtree(work)
    return report


def _finished(out: Path, paths: list[str], options: IngestOptions) -> IngestReport | None:
    """The report of an earlier complete run with the same inputs and options, or None.

    Raises:
      UsageError: the folder holds another table, or other things.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder with --out")
    if not out.exists():
        return None
    earlier = accounting.read_summary(out)
    if earlier is None:
        interrupted = (out / accounting.WORK_FOLDER).is_dir()
        if accounting.holds_other_things(out) or not (interrupted or _is_empty(out)):
            raise UsageError(f"{out} is not empty and not an ingested table: choose another --out")
        return None
    hashes = {entry["file"]: entry["sha256"] for entry in earlier["files"]}
    names = {path: utf8_name(path) for path in paths}
    same = earlier["options"] == options.as_json() and sorted(hashes) == sorted(names.values())
    if not same or STDIN in paths or any(sha256_of(path) != hashes[name] for path, name in names.items()):
        if not earlier["total"]["measurements"]:
            return None  # that run found no measurement, so its output may be replaced
        raise UsageError(
            f"{out} holds a table made from other inputs or options: choose another --out, or add --overwrite"
        )
    return report_from_json(earlier, options) if accounting.is_whole(out, earlier) else None


def _is_empty(out: Path) -> bool:
    return all(entry.name == LOCK_FILE for entry in out.iterdir())


def sha256_of(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def report_from_json(value: dict[str, Any], options: IngestOptions) -> IngestReport:
    report = IngestReport(options)
    for entry in value["files"]:
        account = Account(
            entry["results"], entry["measurements"], entry["duplicates"], entry["not_pings"],
            Counter(entry["rejects"]), entry.get("packets", entry["measurements"]),
            **_hop_counts(entry), kinds=Counter(entry.get("kinds", {})),
        )  # fmt: skip
        report.files.append((entry["file"], account, {name: entry[name] for name in _FACTS}))
    return report


def _hop_counts(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "traceroutes": counts.get("traceroutes", 0),
        "not_used": Counter(counts.get("not_used", {})),
        "replies": Counter(counts.get("replies", {})),
    }


def _write_table(
    files: Sequence[FileParts], out: Path, work: Path, options: IngestOptions, workers: int, pool: Workers
) -> IngestReport:
    accounting.remove_table(out)
    days = [part for file in files for part in file.rows]
    groups = group_days([part for part in days if part[1]], workers)
    memory_mb = SORT_MEMORY_MB // min(max(workers, 2), SORT_WORKERS)
    # One version for all days, so that all files of the table have the same columns.
    version = max((file.done["version"] for file in files), default=1)
    group_tasks = [
        GroupTask(group, str(out), str(work / "spill"), options.rtt == "each", memory_mb, version)
        for group in groups
    ]
    written = Written()
    with Progress("sort", total=len(groups), unit="groups of days") as progress:
        for one in pool.run(group_tasks, lambda reports: progress.advance(reports.finished), SORT_WORKERS):
            written += one
    pool.run([RejectsTask(tuple(file.rejects for file in files), str(out))], lambda reports: None)
    report = IngestReport(options)
    return accounted(report, files, written)


def accounted(report: IngestReport, files: Sequence[FileParts], written: Written) -> IngestReport:
    """Add all files to the report and check the accounts, per file and in total: no result may be lost."""
    for file in files:
        account = account_of(file, written)
        account.check(utf8_name(file.task.path))
        report.add(file, account)
    report.total.check("all files together")
    return report


def account_of(file: FileParts, written: Written) -> Account:
    """The account of the results of a file."""
    number, done = file.task.number, file.done
    return Account(
        results=done["results"],
        measurements=written.measurements[number],
        duplicates=written.duplicates[number],
        not_pings=done["not_pings"],
        rejects=Counter(done["rejects"]),
        packets=written.packets[number],
        kinds=_kinds_of(written, number),
        **_hop_counts(done),
    )


def _kinds_of(written: Written, file: int) -> Counter[str]:
    kinds = Counter({name: written.kinds[file, code] for code, name in enumerate(KINDS)})
    # In a table of pings only, measurements are not counted by kind.
    kinds[KINDS[PING]] += written.measurements[file] - kinds.total()
    return kinds


def _pieces_of(inputs: Sequence[str], out: Path, options: IngestOptions, pool: Workers) -> list[FileTask]:
    """All files and stretches to read, the largest first; the list is the same on every machine."""
    paths = find_files(inputs, out)
    if STDIN in paths:
        raise UsageError("standard input is read on one machine only: without --step and --engine")
    tasks = file_tasks(paths, out / accounting.WORK_FOLDER, options)
    stretches = in_stretches(tasks, pool)
    pieces = [piece for task in tasks for piece in stretches.get(task.number, [task])]
    return sorted(pieces, key=lambda piece: -piece.bytes)


def _read_share(
    inputs: Sequence[str], out: Path, options: IngestOptions, workers: int, task: int, tasks: int
) -> None:
    """Read the share of one task."""
    if not 0 <= task < tasks:
        raise UsageError(f"--task {task} of --tasks {tasks}: tasks are numbered from 0")
    with Workers(workers) as pool:
        own = _pieces_of(inputs, out, options, pool)[task::tasks]
        (out / accounting.WORK_FOLDER).mkdir(parents=True, exist_ok=True)
        with Progress("ingest", unit="results") as progress:
            waiting = [piece for piece in own if not is_done(piece)]
            run_tasks(waiting, pool, lambda reports: progress.advance(reports.results))


def _refuse_unread(inputs: Sequence[str], out: Path, options: IngestOptions, workers: int) -> None:
    """Raise PingError unless everything has been read."""
    with Workers(workers) as pool:
        pieces = _pieces_of(inputs, out, options, pool)
    missing = [piece for piece in pieces if not is_done(piece)]
    if missing:
        raise PingError(
            f"{len(missing)} of {len(pieces)} pieces are not read yet (such as {missing[0].path}), or have "
            "changed since; run the step `read` of all tasks"
        )


def _read_on_spark(
    inputs: Sequence[str], out: Path, options: IngestOptions, workers: int, master: str | None
) -> None:
    """Read everything on Spark, one piece per partition; Spark repeats lost partitions itself."""
    with Workers(workers) as pool:
        waiting = [piece for piece in _pieces_of(inputs, out, options, pool) if not is_done(piece)]
    (out / accounting.WORK_FOLDER).mkdir(parents=True, exist_ok=True)
    if not waiting:
        return
    each_on_spark("ping-llm ingest", master, len(waiting), partial(_read, waiting))


def _read(pieces: Sequence[FileTask], number: int) -> None:
    if not is_done(pieces[number]):
        pieces[number].run(_ignore)


def _ignore(reports: Any) -> None:
    """Ignore reports of progress: Spark shows that of its executors."""
