"""`ping-llm ingest`: read every file into parts, sort the parts into the table, account for every result."""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json
from ping_llm.ingest.accounting import Account
from ping_llm.ingest.groups import Written, group_days
from ping_llm.ingest.inputs import STDIN, find_files
from ping_llm.ingest.options import MOST_WORKERS, SORT_MEMORY_MB, SORT_WORKERS, IngestOptions
from ping_llm.ingest.workers import FileTask, GroupTask, RejectsTask, Reports, Workers
from ping_llm.progress import Progress

#: Version of the layout of the output folder.
FORMAT = 1

_WORK = ".ingest"
_FACTS = ("bytes", "sha256", "trouble")


@dataclass
class IngestReport:
    """What ingest.json says."""

    options: IngestOptions
    files: list[tuple[str, Account, dict[str, Any]]] = field(default_factory=list)

    @property
    def total(self) -> Account:
        total = Account()
        for _, account, _ in self.files:
            total += account
        return total

    @property
    def troubles(self) -> list[str]:
        return [sentence for _, _, facts in self.files for sentence in facts["trouble"]]

    def as_json(self) -> dict[str, Any]:
        each = self.options.rtt == "each"
        return {
            "format": FORMAT,
            "options": self.options.as_json(),
            "total": self.total.as_json(each),
            "files": [
                {"file": path, **account.as_json(each), **facts} for path, account, facts in self.files
            ],
        }


def ingest(
    inputs: Sequence[str],
    out: Path,
    options: IngestOptions = IngestOptions(),
    workers: int | None = None,
    overwrite: bool = False,
) -> IngestReport:
    """Ingest files into `out`, continuing an interrupted run.

    Raises:
      UsageError: inputs that do not exist, or an output folder that holds something else.
      PingError: the accounting does not add up.
    """
    paths = find_files(inputs, out)
    workers = workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if not overwrite:
        done = _finished(out, paths, options)
        if done is not None:
            return done
    work = out / _WORK
    work.mkdir(parents=True, exist_ok=True)
    tasks = [
        FileTask(path, number, str(work / _key(path, number, options)), options)
        for number, path in enumerate(paths)
    ]
    _forget_others(work, tasks)
    waiting = [task for task in tasks if task.path == STDIN or read_done(Path(task.folder)) is None]
    with Workers(workers) as pool:
        _read_files(waiting, len(tasks), pool)
        report = _write_table(tasks, out, work, options, workers, pool)
    write_json(out / "ingest.json", report.as_json())
    shutil.rmtree(work)
    return report


def _key(path: str, number: int, options: IngestOptions) -> str:
    """Names a file's parts after all that decides them."""
    facts: list[Any] = [FORMAT, path, number, options.as_json()]
    if path != STDIN:
        try:
            status = Path(path).stat()
            facts += [status.st_size, status.st_mtime_ns]
        except OSError:
            pass  # it is reported when it is read
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def read_done(folder: Path) -> dict[str, Any] | None:
    """What a finished file's parts say of themselves; None if there are none."""
    try:
        return json.loads((folder / "done.json").read_text())
    except (OSError, ValueError):
        return None


def _forget_others(work: Path, tasks: Sequence[FileTask]) -> None:
    """Remove parts of other inputs, of changed files and of interrupted reads."""
    wanted = {Path(task.folder).name for task in tasks}
    for entry in work.iterdir():
        if entry.name not in wanted:
            shutil.rmtree(entry, ignore_errors=True)


def _finished(out: Path, paths: list[str], options: IngestOptions) -> IngestReport | None:
    """The report of an earlier run that did just this; None if there is none."""
    if not out.exists() or (out / _WORK).is_dir():
        return None
    summary = out / "ingest.json"
    if not summary.exists():
        if any(out.iterdir()):
            raise UsageError(f"{out} is not empty and not an ingested table: choose another --out")
        return None
    try:
        earlier = json.loads(summary.read_text())
        hashes = {entry["file"]: entry["sha256"] for entry in earlier["files"]}
        same = (
            earlier["options"] == options.as_json() and sorted(hashes) == list(paths) and STDIN not in paths
        )
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{summary} cannot be read: choose another --out, or add --overwrite") from None
    if not same or any(_sha256(path) != hashes[path] for path in paths):
        raise UsageError(
            f"{out} holds a table made from other inputs or options: choose another --out, or add --overwrite"
        )
    return _report_from_json(earlier, options)


def _sha256(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _report_from_json(value: dict[str, Any], options: IngestOptions) -> IngestReport:
    report = IngestReport(options)
    for entry in value["files"]:
        account = Account(
            entry["results"], entry["measurements"], entry["duplicates"], entry["not_pings"],
            Counter(entry["rejects"]), entry.get("packets", entry["measurements"]),
        )  # fmt: skip
        report.files.append((entry["file"], account, {name: entry[name] for name in _FACTS}))
    return report


def _read_files(tasks: Sequence[FileTask], all_files: int, pool: Workers) -> None:
    done = all_files - len(tasks)
    rejects = 0
    # The largest first, so that no worker is left alone with one at the end.
    ordered = sorted(tasks, key=lambda task: (-task.bytes, task.number))
    with Progress("ingest", unit="results") as progress:

        def show(reports: Reports) -> None:
            nonlocal done, rejects
            done += reports.finished
            rejects += reports.rejects
            progress.advance(reports.results, f"{done:,} of {all_files:,} files · {rejects:,} rejects")

        for task in ordered:
            if task.path == STDIN:
                task.run(show)  # a worker process has no standard input
        pool.run([task for task in ordered if task.path != STDIN], show)


def _write_table(
    tasks: Sequence[FileTask], out: Path, work: Path, options: IngestOptions, workers: int, pool: Workers
) -> IngestReport:
    for old in out.glob("date=*"):
        shutil.rmtree(old)
    facts = []
    for task in tasks:
        done = read_done(Path(task.folder))
        if done is None:
            raise PingError(f"{task.path}: its parts in {task.folder} are gone; run the same command again")
        facts.append(done)
    days = [
        (str(Path(task.folder) / "rows.parquet"), {int(day): count for day, count in done["days"].items()})
        for task, done in zip(tasks, facts, strict=True)
    ]
    groups = group_days([part for part in days if part[1]], workers)
    memory_mb = SORT_MEMORY_MB // min(max(workers, 2), SORT_WORKERS)
    group_tasks = [
        GroupTask(group, str(out), str(work / "spill"), options.rtt == "each", memory_mb) for group in groups
    ]
    written = Written()
    with Progress("sort", total=len(groups), unit="groups of days") as progress:
        for one in pool.run(group_tasks, lambda reports: progress.advance(reports.finished), SORT_WORKERS):
            written.measurements.update(one.measurements)
            written.duplicates.update(one.duplicates)
            written.packets.update(one.packets)
    shutil.rmtree(out / "rejects", ignore_errors=True)
    rejects = tuple(str(Path(task.folder) / "rejects.parquet") for task in tasks)
    pool.run([RejectsTask(rejects, str(out))], lambda reports: None)
    report = IngestReport(options)
    for task, done in zip(tasks, facts, strict=True):
        account = Account(
            results=done["results"],
            measurements=written.measurements[task.number],
            duplicates=written.duplicates[task.number],
            not_pings=done["not_pings"],
            rejects=Counter(done["rejects"]),
            packets=written.packets[task.number],
        )
        account.check(task.path)
        report.files.append((task.path, account, {name: done[name] for name in _FACTS}))
    report.total.check("all files together")
    return report
