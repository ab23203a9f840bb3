"""The plan of a run: input files, large ones in stretches, and the parts made from them.

The name of a folder of parts is a hash of everything that determines its content, so that a run continues
with the missing ones.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.ingest.options import STDIN, STRETCH_BYTES, IngestOptions
from ping_llm.ingest.workers import CutTask, FileTask, HashTask, Reports, Workers
from ping_llm.progress import Progress

#: Version of the format of parts in the work folder.
_PARTS = 4


@dataclass(frozen=True)
class FileParts:
    """The parts of one input file: counts and facts, rows by part, and rejects by part.

    Attributes:
      rows: For each part, its file and its number of rows by day (days since 1970).
      rejects: For each part, its file, which may be missing, and the number of lines before it.
    """

    task: FileTask
    done: dict[str, Any]
    rows: tuple[tuple[str, dict[int, int]], ...]
    rejects: tuple[tuple[str, int], ...]


def file_tasks(paths: Sequence[str], work: Path, options: IngestOptions) -> list[FileTask]:
    return [
        FileTask(path, number, str(work / _key(path, number, options)), options)
        for number, path in enumerate(paths)
    ]


def _key(path: str, number: int, options: IngestOptions) -> str:
    facts: list[Any] = [_PARTS, path, number, options.as_json()]
    if path != STDIN:
        try:
            status = Path(path).stat()
            facts += [status.st_size, status.st_mtime_ns]
        except OSError:
            pass  # the error is reported when the file is read
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def forget_others(work: Path, tasks: Sequence[FileTask]) -> None:
    """Remove parts of other inputs, of changed files and of interrupted reads."""
    wanted = {Path(task.folder).name for task in tasks}
    for entry in work.iterdir():
        if entry.name.partition("-")[0] not in wanted or entry.suffix == ".aside":
            shutil.rmtree(entry, ignore_errors=True)


def read_done(folder: Path) -> dict[str, Any] | None:
    """The `done.json` of a folder of parts; None if there is none, or if a part is missing or cut short."""
    try:
        done = json.loads((folder / "done.json").read_text())
        whole = all((folder / name).stat().st_size == size for name, size in done["sizes"].items())
        # Parts without `version`, from an older version of this program, have other columns.
        return done if whole and "version" in done else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_done(task: FileTask) -> bool:
    return task.path != STDIN and read_done(Path(task.folder)) is not None


def in_stretches(tasks: Sequence[FileTask], pool: Workers) -> dict[int, list[FileTask]]:
    """Tasks for the stretches of all files that can be read in stretches, by file number."""
    large = [task for task in tasks if task.path != STDIN and task.bytes > STRETCH_BYTES]
    found = pool.run([CutTask(task.path, task.options, task.bytes) for task in large], lambda reports: None)
    return {
        task.number: [
            replace(task, folder=f"{task.folder}-{stretch.number:05d}", stretch=stretch)
            for stretch in stretches
        ]
        for task, stretches in zip(large, found, strict=True)
        if stretches
    }


def read_files(tasks: Sequence[FileTask], pool: Workers, cut: bool) -> list[FileParts]:
    """Read all files that have not been read, in stretches if `cut`; return the parts of each file."""
    waiting = [task for task in tasks if not is_done(task)]
    stretches = in_stretches(waiting, pool) if cut else {}
    pieces = [piece for task in waiting for piece in stretches.get(task.number, [task]) if not is_done(piece)]
    with Progress("ingest", unit="results") as progress:
        shown = _Shown(progress, len(tasks), len(tasks) - len(waiting))
        run_tasks(pieces, pool, shown)
        hashes = _hashes([task for task in waiting if task.number in stretches], pool)
        joined = {number: join(tasks[number], own, hashes[number]) for number, own in stretches.items()}
        again = [tasks[number] for number, parts in joined.items() if parts is None]
        # These files are damaged or unusual: one reader reads them, reports why, and keeps the intact part.
        for task in again:
            shown.take_back(stretches[task.number])
        run_tasks(again, pool, shown)
    return [joined.get(task.number) or _whole(task) for task in tasks]


def run_tasks(tasks: Sequence[FileTask], pool: Workers, shown: Callable[[Reports], None]) -> None:
    """Read files and stretches."""
    # The largest first, so that no worker reads a large file alone at the end.
    ordered = sorted(tasks, key=lambda task: -task.bytes)
    for task in ordered:
        if task.path == STDIN:
            task.run(shown)  # a worker process has no standard input
    pool.run([task for task in ordered if task.path != STDIN], shown)


class _Shown:
    """Progress over all files."""

    def __init__(self, progress: Progress, files: int, done: int):
        self._progress, self._files, self._done, self._rejects = progress, files, done, 0

    def __call__(self, reports: Reports) -> None:
        self._done += reports.finished
        self._rejects += reports.rejects
        self._progress.advance(
            reports.results, f"{self._done:,} of {self._files:,} files · {self._rejects:,} rejects"
        )

    def take_back(self, pieces: Sequence[FileTask]) -> None:
        for piece in pieces:
            done = read_done(Path(piece.folder)) or {"results": 0, "rejects": {}}
            self(Reports(-done["results"], -sum(done["rejects"].values())))


def _hashes(tasks: Sequence[FileTask], pool: Workers) -> dict[int, tuple[int, str]]:
    found = pool.run([HashTask(task.path, task.bytes) for task in tasks], lambda reports: None)
    return {task.number: facts for task, facts in zip(tasks, found, strict=True)}


def join(task: FileTask, pieces: Sequence[FileTask], hashed: tuple[int, str]) -> FileParts | None:
    """Combine the parts of a file's stretches; None if the file has to be read whole.

    Raises:
      PingError: parts are missing.
    """
    from ping_llm.ingest.bzip2_blocks import checksums_agree

    each = [_read_again(piece) for piece in pieces]
    blocks = [one for done in each for one in done["checksums"]]
    bzip2 = any(piece.stretch is not None and piece.stretch.kind == "bzip2" for piece in pieces)
    if any(done["trouble"] for done in each) or (bzip2 and not checksums_agree(blocks)):
        return None
    lines = [0]
    for done in each:
        lines.append(lines[-1] + done["lines"])
    total = {name: _added_up([done[name] for done in each]) for name in _ADDED}
    total |= {"version": max(done["version"] for done in each), "trouble": []}
    total |= {"bytes": hashed[0], "sha256": hashed[1]}
    return FileParts(
        task,
        total,
        tuple(_rows(piece, done) for piece, done in zip(pieces, each, strict=True)),
        tuple((_rejects(piece), before) for piece, before in zip(pieces, lines, strict=False)),
    )


#: Entries of done.json that are added up: counts, and counters by name.
_ADDED = ("results", "not_pings", "traceroutes", "rejects", "not_used", "replies")


def _added_up(counts: list[Any]) -> Any:
    if all(isinstance(count, int) for count in counts):
        return sum(counts)
    return sum(map(Counter, counts), Counter())


def _whole(task: FileTask) -> FileParts:
    done = _read_again(task)
    return FileParts(task, done, (_rows(task, done),), ((_rejects(task), 0),))


def _read_again(task: FileTask) -> dict[str, Any]:
    done = read_done(Path(task.folder))
    if done is None:
        raise PingError(f"{task.path}: its parts in {task.folder} are gone; run the same command again")
    return done


def _rows(task: FileTask, done: dict[str, Any]) -> tuple[str, dict[int, int]]:
    days = {int(day): count for day, count in done["days"].items()}
    return str(Path(task.folder) / "rows.parquet"), days


def _rejects(task: FileTask) -> str:
    return str(Path(task.folder) / "rejects.parquet")
