"""Conversion of measurements to probe rows, with three engines that write the same bytes.

The default engine reads the input through DuckDB and does the rest in compiled kernels. It holds at most one
slice or part per worker, so its memory is bounded for any size of the input, and a killed run can be
continued.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json
from ping_llm.locks import only_writer
from ping_llm.measurements.rules import RULES
from ping_llm.progress import Progress
from ping_llm.rows import codec
from ping_llm.rows.inputs import BATCH_ROWS, Scanner
from ping_llm.rows.manifest import (
    FORMAT,
    FORMAT_VERSION,
    FORMAT_WITH_KINDS,
    FORMAT_WITH_THROUGHPUT,
    INDEX_FILE,
    MANIFEST_FILE,
    RowIndex,
    file_sha256,
    fingerprint,
    open_index,
    sealed,
    write_index,
)
from ping_llm.rows.plan import (
    Plan,
    RowOptions,
    RunOptions,
    Split,
    finished_before,
    finished_manifest,
    layout_table,
    load_plan,
    make_plan,
)
from ping_llm.rows.shard import ShardInfo, ShardWriter, reused
from ping_llm.rows.sortable import WORDS, from_batch
from ping_llm.rows.sorting import block_limit, sorted_blocks
from ping_llm.rows.spill import RECORD_BYTES, Spill, SpillReader, make_spill, open_spill

__all__ = ["RowOptions", "RunOptions", "build", "run_step"]

STEPS = ("plan", "scan", "encode", "finish")

#: Largest share of the memory limit for which spills stay in memory; files cost a fifth of the time.
HELD_FRACTION = 0.25


def build(
    inputs: Sequence[str | Path],
    out: str | Path,
    options: RowOptions | None = None,
    run: RunOptions | None = None,
) -> dict[str, Any]:
    """Group measurements into probe rows below `out`, or continue an interrupted build.

    Args:
      inputs: Parquet files, folders or globs.

    Returns:
      The manifest; that of the first split, if there are several.
    """
    options, run, out = options or RowOptions(), run or RunOptions(), Path(out)
    if (out / ".append").exists():
        from ping_llm.rows.append import complete

        complete(out)
    manifest = finished_before(inputs, out, options)
    if manifest is not None:
        return manifest
    with only_writer(out, "rows build"):
        plan = make_plan(inputs, out, options, run)
        manifest = finished_manifest(out, options)
        if manifest is not None:
            clear_up(plan)
            return manifest
        _remove_leftovers(plan)
        _engine(run.engine)(plan, run)
        return finish(plan)


def _engine(name: str) -> Callable[[Plan, RunOptions], None]:
    if name == "reference":
        from ping_llm.rows import reference

        return reference.encode_all
    if name == "spark":
        from ping_llm.rows import spark

        return spark.encode_all
    return _scan_and_encode


def run_step(
    step: str,
    inputs: Sequence[str | Path],
    out: str | Path,
    options: RowOptions | None = None,
    run: RunOptions | None = None,
    task: int = 0,
    tasks: int = 1,
) -> dict[str, Any] | None:
    """Run one task's share of a step on a cluster: `plan`, all `scan`, all `encode`, then `finish`."""
    if step not in STEPS or not 0 <= task < tasks:
        raise UsageError(f"step {step!r}, task {task} of {tasks}: steps are {', '.join(STEPS)}, tasks from 0")
    options, run, out = options or RowOptions(), run or RunOptions(), Path(out)
    if step == "plan":
        plan = make_plan(inputs, out, options, run)
        if finished_manifest(out, options) is not None:
            clear_up(plan)
        return None
    manifest = finished_manifest(out, options)
    if manifest is not None:
        return manifest
    plan = load_plan(out)
    if step == "scan":
        _scan(plan, run, range(task, len(plan.slices), tasks))
    elif step == "encode":
        _encode(plan, run, range(task, plan.parts, tasks), open_spills(plan))
    else:
        totals_of_spills(plan, open_spills(plan))
        return finish(plan)
    return None


def _scan_and_encode(plan: Plan, run: RunOptions) -> None:
    if is_scanned(plan) and all(is_encoded(plan, part) for part in range(plan.parts)):
        return
    in_memory = plan.rows * RECORD_BYTES <= HELD_FRACTION * run.memory_bytes
    spills = _scan(plan, run, range(len(plan.slices)), in_memory)
    totals_of_spills(plan, spills)
    _encode(plan, run, range(plan.parts), spills)


def _scan(plan: Plan, run: RunOptions, numbers: Sequence[int], in_memory: bool = False) -> list[Spill]:
    # DuckDB streams, so a fraction of the limit is enough for it; the slices take the rest.
    scanner = Scanner(run.memory_bytes // 4)
    spills: dict[int, list[Spill]] = {}

    def scan(number: int) -> int:
        spills[number] = scan_slice(plan, number, scanner, in_memory)
        return plan.slice_rows(number)

    with Progress("scan", sum(map(plan.slice_rows, numbers)), "measurements") as progress:
        _together(run.threads, numbers, scan, progress)
    return [spill for number in numbers for spill in spills[number]]


def _encode(plan: Plan, run: RunOptions, parts: Sequence[int], spills: Sequence[Spill]) -> None:
    sizes = {part: part_measurements(plan, part, spills) for part in parts}
    held = sum(spill.place.nbytes for spill in spills if isinstance(spill.place, np.ndarray))
    share = (run.memory_bytes - held) // run.threads
    # Large parts first, so that no worker starts a large part when the others have finished.
    ordered = sorted(parts, key=lambda part: -sizes[part])
    with Progress("encode", sum(sizes.values()), "measurements") as progress:
        _together(run.threads, ordered, lambda part: encode_part(plan, part, spills, share), progress)


def _together(workers: int, numbers: Iterable[int], work: Callable[[int], int], progress: Progress) -> None:
    """Run `work` on every number in threads (kernels and DuckDB release the GIL); stop at the first error."""
    with ThreadPoolExecutor(workers, "rows") as pool:
        waiting = {pool.submit(work, number) for number in numbers}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=1, return_when=FIRST_EXCEPTION)
                for future in done:
                    progress.advance(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _remove_leftovers(plan: Plan) -> None:
    """Remove unfinished files of a killed run."""
    folders = {plan.work, plan.spill_folder, *(plan.out / split.name for split in plan.splits)}
    for folder in folders:
        for leftover in folder.glob(".*.part"):
            leftover.unlink()


_TOTALS_FILE = "totals.json"


def scan_slice(plan: Plan, number: int, scanner: Scanner, in_memory: bool = False) -> list[Spill]:
    """Make the spill of a slice, or open its file if that exists. In memory, each batch has its own spill."""
    path = plan.spill_path(number)
    if path.exists():
        return [open_spill(path)]
    scratch = reused("batch", BATCH_ROWS * WORDS, np.uint64).reshape(-1, WORDS) if in_memory else None
    pieces = (from_batch(batch, scratch) for batch in scanner.batches(plan.slices[number]))
    table, by_probe = layout_table(plan.splits, plan.buckets), plan.options.by_probe
    with writing(path):
        if in_memory:
            spills = [make_spill([piece], table, by_probe, None) for piece in pieces]
        else:
            spills = [make_spill(pieces, table, by_probe, path)]
    expected, found = plan.slice_rows(number), sum(spill.rows_in for spill in spills)
    if found != expected:
        path.unlink(missing_ok=True)
        raise PingError(
            f"{plan.slices[number][0].file}: {found:,} rows were read, and its footer says {expected:,}; the "
            "file changed during the build or is damaged: replace it and build again"
        )
    return spills


def open_spills(plan: Plan) -> list[Spill]:
    """The spill files of all slices, which must all have been scanned."""
    missing = [number for number in range(len(plan.slices)) if not plan.spill_path(number).exists()]
    if missing:
        raise PingError(
            f"{len(missing)} of {len(plan.slices)} slices are not scanned yet; run the step `scan`"
        )
    return [open_spill(plan.spill_path(number)) for number in range(len(plan.slices))]


def part_measurements(plan: Plan, part: int, spills: Sequence[Spill]) -> int:
    buckets = slice(part * plan.buckets, (part + 1) * plan.buckets)
    return sum(int(spill.counts[buckets].sum()) for spill in spills)


def is_encoded(plan: Plan, part: int) -> bool:
    """Whether the shard of a part is complete; its marker is written after it."""
    try:
        marker = json.loads(plan.marker_path(part).read_bytes())
        return plan.shard_path(part).stat().st_size == marker["bytes"] and plan.index_path(part).exists()
    except (OSError, ValueError):
        return False


def encode_part(plan: Plan, part: int, spills: Sequence[Spill], memory_bytes: int) -> int:
    """Make the shard of a part unless it exists. Returns its number of measurements."""
    count = part_measurements(plan, part, spills)
    if is_encoded(plan, part):
        return count
    by_probe, limit = plan.options.by_probe, block_limit(memory_bytes)
    writer = ShardWriter(plan.shard_path(part), plan.options.max_measurements, by_probe)
    with SpillReader(spills) as reader, writer as shard, writing(plan.shard_path(part)):
        for bucket in range(part * plan.buckets, (part + 1) * plan.buckets):
            blocks = reader.read(bucket, limit)
            for words, order in sorted_blocks(blocks, by_probe, plan.spill_folder, memory_bytes):
                shard.add(words, order)
            shard.end_row()  # a row has one hash, so it is in one bucket
        info, index = shard.finish()
    mark_encoded(plan, part, info, index)
    return count


def mark_encoded(plan: Plan, part: int, info: ShardInfo, index: RowIndex) -> None:
    """Write the index and the marker of a part whose shard is published."""
    with writing(plan.index_path(part)):
        write_index(plan.index_path(part), [index])
        write_json(plan.marker_path(part), info.as_dict())


def write_totals(plan: Plan, rejected: np.ndarray, measurements: int, content: int) -> None:
    """Store the totals of the scan, to compare them with those of the shards."""
    totals = {
        "rejected": {str(rule): int(n) for rule, n in zip(RULES, rejected, strict=True) if n},
        "measurements": measurements,
        "content": content,
    }
    with writing(plan.work / _TOTALS_FILE):
        write_json(plan.work / _TOTALS_FILE, totals)


def totals_of_spills(plan: Plan, spills: Sequence[Spill]) -> None:
    rejected = sum((spill.rejected for spill in spills), np.zeros(len(RULES), np.int64))
    content = sum(int(spill.contents.sum(dtype=np.uint64)) for spill in spills) % 2**64
    write_totals(plan, rejected, sum(spill.measurements for spill in spills), content)


def is_scanned(plan: Plan) -> bool:
    """Whether the totals of the scan are stored."""
    return (plan.work / _TOTALS_FILE).exists()


def finish(plan: Plan) -> dict[str, Any]:
    """Check that nothing is lost, write the index and manifest of every split, and remove temporary files.

    Returns:
      The manifest; that of the first split, if there are several.
    """
    missing = [part for part in range(plan.parts) if not is_encoded(plan, part)]
    if missing:
        raise PingError(f"{len(missing)} of {plan.parts} parts are not encoded yet; run the step `encode`")
    totals = json.loads((plan.work / _TOTALS_FILE).read_bytes())
    markers = [json.loads(plan.marker_path(part).read_bytes()) for part in range(plan.parts)]
    _check_accounts(plan, totals, markers)
    with writing(plan.out / MANIFEST_FILE):
        manifests = [_finish_split(plan, split, markers, totals) for split in plan.splits]
        for split, manifest in zip(plan.splits, manifests, strict=True):
            write_json(plan.out / split.name / MANIFEST_FILE, manifest)
    clear_up(plan)
    return manifests[0]


def _check_accounts(plan: Plan, totals: dict[str, Any], markers: list[dict[str, Any]]) -> None:
    """Check that rows in = measurements out + rejected, and that all measurements are unchanged."""
    written = sum(marker["measurements"] for marker in markers)
    rejected = sum(totals["rejected"].values())
    content = sum(int(marker["content"], 16) for marker in markers) % 2**64
    if plan.rows != written + rejected or written != totals["measurements"] or content != totals["content"]:
        raise PingError(
            f"the accounts of {plan.out} do not add up: {plan.rows:,} rows in, {rejected:,} rejected, "
            f"{totals['measurements']:,} scanned, {written:,} written; remove {plan.work} and run again"
        )


def _finish_split(
    plan: Plan, split: Split, markers: list[dict[str, Any]], totals: dict[str, Any]
) -> dict[str, Any]:
    parts = range(split.first_part, split.first_part + split.parts)
    folder = plan.out / split.name
    indices = [open_index(plan.index_path(part)) for part in parts]
    version = FORMAT_VERSION
    if any(index.has_throughput.any() for index in indices):
        version = FORMAT_WITH_THROUGHPUT
    elif any(index.other_kinds.any() for index in indices):
        version = FORMAT_WITH_KINDS
    write_index(folder / INDEX_FILE, indices)
    index_checksum = file_sha256(folder / INDEX_FILE)
    shards = [markers[part] for part in parts]
    measurements = sum(shard["measurements"] for shard in shards)
    rows = sum(shard["rows"] for shard in shards)
    manifest = {
        "format": FORMAT,
        "version": version,
        "fingerprint": fingerprint(
            plan.options.as_dict(), [shard["sha256"] for shard in shards], index_checksum
        ),
        "options": plan.options.as_dict(),
        "split": split.name or None,
        "schema": (codec.ROW_SCHEMA if version == FORMAT_VERSION else codec.ROW_SCHEMA_WITH_KINDS)
        .serialize()
        .to_pybytes()
        .hex(),
        "source": plan.source,
        "counts": {
            "in": plan.rows,
            "rejected": totals["rejected"],
            "other_splits": totals["measurements"] - measurements,
            "measurements": measurements,
            "rows": rows,
        },
        "shards": shards,
        "index": {
            "file": INDEX_FILE,
            "rows": rows,
            "bytes": (folder / INDEX_FILE).stat().st_size,
            "sha256": index_checksum,
        },
    }
    return sealed(manifest)


def clear_up(plan: Plan) -> None:
    """Remove files that only the build needed, those in the folder of the plan last.

    Without the plan, the remaining files could not be recognised as belonging to this build.
    """
    if plan.spill_folder != plan.work:
        shutil.rmtree(plan.spill_folder, ignore_errors=True)
    shutil.rmtree(plan.work, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into a PingError with the file that could not be written and the free disk space."""
    try:
        yield
    except OSError as error:
        room = os.statvfs(path.parent)
        free = room.f_bavail * room.f_frsize / 1e6
        raise PingError(
            f"cannot write {path}: {error.strerror or error} ({free:,.0f} MB free on that disk); "
            "make room and run the same command again: finished parts are kept"
        ) from error
