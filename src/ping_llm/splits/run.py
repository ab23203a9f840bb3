"""`ping-llm split` into shards: count, find cuts, write, check, report."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from ping_llm import files
from ping_llm.errors import PingError, UsageError
from ping_llm.locks import only_writer
from ping_llm.measurements.parquet import ParquetInput, connect, open_input, read_columns
from ping_llm.paths import literal
from ping_llm.progress import Progress
from ping_llm.splits.assign import (
    LEFT_OUT,
    Assigner,
    Numbers,
    TimeCuts,
    find_cuts,
    stratum_length_us,
    stratum_values,
    time_range,
)
from ping_llm.splits.check import Check, Checker, Shard
from ping_llm.splits.deal import Dealer, ShardFiles
from ping_llm.splits.options import ShardOptions

REPORT_FILE = "shard.json"

#: File that exists while shards are being written and lists them, so that they are recognised after a kill.
WRITING_FILE = ".writing.json"
#: File that exists when all shards are written and not yet checked; an interrupted run continues there.
WRITTEN_FILE = ".written.json"
SPILL_FOLDER = ".shard-spill"
SPLITS = ("train", "val", "test")
_UNFINISHED = re.compile(r"\.(shard-\d+\.parquet)\.\d+\.part")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        [(entry["path"], entry["bytes"]) for entry in content.get("shards", []) if path.name == REPORT_FILE]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} cannot be read: remove it, or name another folder.") from None
    return content


def size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def own_files(out: Path) -> list[Path]:
    """Shards, complete or not, that this command wrote here and may remove.

    Raises:
      UsageError: a folder of a split holds other files.
    """
    own: set[str] = set()
    for name in (REPORT_FILE, f"broken-{REPORT_FILE}"):
        if (out / name).exists():
            own |= {entry["path"] for entry in read_json(out / name).get("shards", [])}
    if (out / WRITING_FILE).exists():
        own |= set(read_json(out / WRITING_FILE).get("shards", []))
    if (out / WRITTEN_FILE).exists():
        own |= set(read_json(out / WRITTEN_FILE).get("sizes", {}))
    found = []
    for split in SPLITS:
        folder = out / split
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UsageError(f"{folder} is not part of a split: name another folder.")
        for path in folder.iterdir() if folder.exists() else ():
            # .shard-00000.parquet.77.part becomes shard-00000.parquet.
            unfinished = _UNFINISHED.fullmatch(path.name)
            if f"{split}/{unfinished[1] if unfinished else path.name}" not in own:
                raise UsageError(f"{path} was not written by this command: move it, or name another folder.")
            found.append(path)
    return found


def forget_unwritten(out: Path) -> None:
    """Remove the list of shards being written if none of them exists."""
    if (out / WRITING_FILE).exists() and not any(any((out / split).glob("*")) for split in SPLITS):
        (out / WRITING_FILE).unlink()


REPORT_VERSION = 1

DEFAULT_MEMORY_MB = 1_000


@dataclass(frozen=True)
class Report:
    """The content of shard.json."""

    content: dict[str, Any]
    was_done: bool = False

    @property
    def broken(self) -> list[str]:
        return [check["promise"] for check in self.content["checks"] if not check["holds"]]


@dataclass(frozen=True)
class Written:
    """Facts from writing that the checks need: shards of each split, and rows left out in gaps."""

    shards_of: list[int]
    left_out: int


def shard(
    inputs: Sequence[str],
    out: Path,
    options: ShardOptions,
    memory_mb: int = DEFAULT_MEMORY_MB,
    threads: int = 2,
) -> Report:
    """Split measurements into shards below `out`, and check that nothing leaks between the splits."""
    out = literal(out)
    data = open_input(inputs)
    if not data.rows:
        raise PingError(f"{' '.join(inputs)} has no measurements.")
    done = _done_before(out, data, options)
    if done:
        return done
    with only_writer(out, "split"):
        # Another process that held the lock until now may have done the work.
        return _done_before(out, data, options) or _shard(data, out, options, memory_mb, threads)


def _shard(data: ParquetInput, out: Path, options: ShardOptions, memory_mb: int, threads: int) -> Report:
    _clean(out, data, options)
    spill = out / SPILL_FOLDER
    try:
        with connect(memory_mb, threads, spill) as connection:
            report = _run(connection, data, out, options)
    except duckdb.OutOfMemoryException as error:
        raise PingError(
            f"DuckDB needs more than {memory_mb} MB ({str(error).splitlines()[0]}): give --memory."
        ) from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)
        forget_unwritten(out)
    if report.broken:
        files.write_json(out / f"broken-{REPORT_FILE}", report.content)
        (out / WRITTEN_FILE).unlink(missing_ok=True)
        raise PingError(f"{out}: {'; '.join(report.broken)} does not hold, see broken-{REPORT_FILE}.")
    files.write_json(out / REPORT_FILE, report.content)
    (out / WRITTEN_FILE).unlink(missing_ok=True)
    return report


def _run(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, out: Path, options: ShardOptions
) -> Report:
    stratum_us = stratum_length_us(*time_range(connection, data))
    done = _written_before(out, data, options)
    if done is None:
        done = _write(connection, data, out, options, stratum_us)
        paths = [path for path, _, _ in _paths(out, options, done.shards_of)]
        sizes = {str(path.relative_to(out)): path.stat().st_size for path in paths}
        files.write_json(out / WRITTEN_FILE, {**_identity(data, options), **asdict(done), "sizes": sizes})
        (out / WRITING_FILE).unlink(missing_ok=True)
    written = [
        Shard(path, split, number, pq.read_metadata(path).num_rows)
        for path, split, number in _paths(out, options, done.shards_of)
    ]
    return _report(connection, data, out, options, written, done.left_out, stratum_us)


def _write(
    connection: duckdb.DuckDBPyConnection,
    data: ParquetInput,
    out: Path,
    options: ShardOptions,
    stratum_us: int,
) -> Written:
    """Write all shards."""
    cuts = find_cuts(connection, data, options) if options.by == "time" else None

    rows_of, distinct = _count(connection, data, options, cuts, stratum_us)
    for index in options.used:
        if not rows_of[index]:
            raise PingError(
                f"The split {options.splits[index]} would be empty: {data.rows:,} measurements are too few "
                f"to split by {options.by} like this. Give other --fractions, or another --seed."
            )
    shards_of = share_out(options.shards_for(data.rows), rows_of)
    dealer, assigner = Dealer(shards_of, distinct), Assigner(options, cuts)
    paths = [path for path, _, _ in _paths(out, options, shards_of)]
    files.write_json(out / WRITING_FILE, {"shards": [str(path.relative_to(out)) for path in paths]})
    with (
        Progress("write", data.rows, "measurements") as progress,
        ShardFiles(paths, version=data.version) as writer,
    ):
        for batch in read_columns(connection, data):
            values = stratum_values(batch, options.stratify, stratum_us)
            shards = dealer.deal(assigner.splits(batch, values), values)
            kept = shards != LEFT_OUT
            writer.write(shards[kept], batch if kept.all() else batch.take(kept))
            progress.advance(len(batch))
    return Written(shards_of, data.rows - int(rows_of.sum()))


def _paths(out: Path, options: ShardOptions, shards_of: list[int]) -> list[tuple[Path, str, int]]:
    """The path, split and number of each shard."""
    return [
        (out / options.splits[index] / f"shard-{number:05d}.parquet", options.splits[index], number)
        for index in options.used
        for number in range(shards_of[index])
    ]


def _count(
    connection: duckdb.DuckDBPyConnection,
    data: ParquetInput,
    options: ShardOptions,
    cuts: TimeCuts | None,
    stratum_us: int,
) -> tuple[np.ndarray, list[int]]:
    """Count the rows of each split, and the distinct values of each stratified column."""
    assigner = Assigner(options, cuts)
    rows_of = np.zeros(len(options.fractions), np.int64)
    numbers = [Numbers() for _ in options.stratify]
    with Progress("count", data.rows, "measurements") as progress:
        for batch in read_columns(connection, data, _needed(options)):
            values = stratum_values(batch, options.stratify, stratum_us)
            for column, known in enumerate(numbers):
                known.of(values[:, column])
            split = assigner.splits(batch, values)
            rows_of += np.bincount(split[split != LEFT_OUT], minlength=len(rows_of))
            progress.advance(len(batch))
    return rows_of, [len(known) for known in numbers]


def _report(
    connection: duckdb.DuckDBPyConnection,
    data: ParquetInput,
    out: Path,
    options: ShardOptions,
    written: list[Shard],
    left_out: int,
    stratum_us: int,
) -> Report:
    checker = Checker(connection, options, written)
    checks: list[Check | None] = [checker.rows(data.rows, left_out), checker.leakage(), checker.sizes()]
    checks += [checker.strata(name, stratum_us) for name in options.stratify]
    content: dict[str, Any] = {
        "version": REPORT_VERSION,
        "options": options.as_json(),
        "input": {"files": len(data.files), "rows": data.rows, "fingerprint": data.fingerprint},
        "rows": {"in": data.rows, "out": sum(shard.rows for shard in written), "in_gaps": left_out},
        "splits": checker.figures(),
        "checks": [check.as_json() for check in checks if check],
        "shared_probe_ids": checker.shared_probe_ids(),
        "shards": [
            {
                "path": str(shard.path.relative_to(out)),
                "rows": shard.rows,
                "bytes": shard.path.stat().st_size,
                "sha256": _sha256(shard.path),
            }
            for shard in written
        ],
    }
    # Convert tuples and NumPy numbers to the values that a reader of the file gets.
    return Report(json.loads(json.dumps(content)))


def _needed(options: ShardOptions) -> frozenset[str] | None:
    """Columns that determine the splits; counting reads only these. The rules are checked when writing."""
    if options.by == "row" and not options.stratify:
        return None
    columns = {"time": {"event_time"}, "probe": {"src_addr"}, "pair": {"src_addr", "dst_addr"}, "row": set()}
    needed = columns[options.by]
    strata = {"time": "event_time", "ip_version": "src_addr", "failed": "rtt"}
    return frozenset(needed | {strata.get(name, name) for name in options.stratify})


def share_out(shards: int, rows_of: np.ndarray) -> list[int]:
    """Number of shards of each split, in proportion to its rows; at least one if it has any rows."""
    counts = np.where(rows_of > 0, 1, 0)
    for _ in range(shards - int(counts.sum())):
        # The split with the largest shards gets the next one.
        with np.errstate(divide="ignore", invalid="ignore"):
            size = np.where(rows_of > 0, rows_of / counts, 0)
        counts[int(size.argmax())] += 1
    return counts.tolist()


def _done_before(out: Path, data: ParquetInput, options: ShardOptions) -> Report | None:
    """The report of an earlier run of the same work, or None; refuses a folder that holds other files."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder for the shards.")
    path = out / REPORT_FILE
    if path.exists():
        content = read_json(path)
        entries = {entry["path"]: entry["bytes"] for entry in content.get("shards", [])}
        same = content.get("options") == _identity(data, options)["options"]
        same &= content.get("input", {}).get("fingerprint") == data.fingerprint
        if not same:
            raise UsageError(
                f"{out} holds shards of other data or options (see {path}): remove it, or name another."
            )
        if all(size_of(out / name) == size for name, size in entries.items()):
            return Report(content, was_done=True)
    strangers = [
        item
        for item in (out.iterdir() if out.exists() else [])
        if item.name not in (*SPLITS, REPORT_FILE, f"broken-{REPORT_FILE}") and not item.name.startswith(".")
    ]
    if strangers:
        raise UsageError(f"{out} holds {strangers[0].name}, which is not part of a split: name another.")
    own_files(out)
    return None


def _identity(data: ParquetInput, options: ShardOptions) -> dict[str, Any]:
    """Everything that determines the shards, as values read from JSON."""
    return json.loads(json.dumps({"options": options.as_json(), "fingerprint": data.fingerprint}))


def _written_before(out: Path, data: ParquetInput, options: ShardOptions) -> Written | None:
    """The facts of an interrupted run of the same work that had written all shards, or None."""
    try:
        content = json.loads((out / WRITTEN_FILE).read_text())
        written = Written(content.pop("shards_of"), content.pop("left_out"))
        sizes = content.pop("sizes")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if content != _identity(data, options):
        return None
    whole = all(size_of(out / name) == size for name, size in sizes.items())
    return written if whole and sizes else None


def _clean(out: Path, data: ParquetInput, options: ShardOptions) -> None:
    """Remove the files of an interrupted run: spills, unfinished files, and shards that cannot be reused."""
    shutil.rmtree(out / SPILL_FOLDER, ignore_errors=True)
    keep = _written_before(out, data, options)
    wanted = {path for path, _, _ in _paths(out, options, keep.shards_of)} if keep else set()
    own = own_files(out)
    # The files that list our shards are removed last, so that they survive a kill in this function.
    for path in own:
        if path not in wanted:
            path.unlink()
    obsolete = [] if keep else [WRITTEN_FILE]
    for name in (REPORT_FILE, f"broken-{REPORT_FILE}", WRITING_FILE, *obsolete):
        (out / name).unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
