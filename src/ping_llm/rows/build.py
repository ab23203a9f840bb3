"""Measurements → probe rows: one command, three engines, the same bytes.

The default engine reads the input through DuckDB and does the rest in compiled kernels. It never holds more
than a slice or a part a worker, so its memory is bounded at any size of the input, and a killed run goes on
where it was.
"""

import fcntl
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.progress import Progress
from ping_llm.rows import steps
from ping_llm.rows.inputs import Scanner
from ping_llm.rows.options import RowOptions, RunOptions
from ping_llm.rows.plan import Plan, finished_manifest, load_plan, make_plan
from ping_llm.rows.spill import RECORD_BYTES, Spill

__all__ = ["RowOptions", "RunOptions", "build", "run_step"]

STEPS = ("plan", "scan", "encode", "finish")

#: Spills stay in memory if they take at most this part of the limit: writing and reading them costs a fifth.
HELD_FRACTION = 0.25


def build(
    inputs: Sequence[str | Path],
    out: str | Path,
    options: RowOptions | None = None,
    run: RunOptions | None = None,
) -> dict[str, Any]:
    """Group measurements into probe rows below `out`, or go on with a build that was interrupted.

    Args:
      inputs: Parquet files, folders or globs.

    Returns:
      the manifest; of the first split, if there are several.
    """
    options, run, out = options or RowOptions(), run or RunOptions(), Path(out)
    with _alone(out):
        plan = make_plan(inputs, out, options, run)
        manifest = finished_manifest(out, options)
        if manifest is not None:
            steps.clear_up(plan)
            return manifest
        _remove_leftovers(plan)
        _engine(run.engine)(plan, run)
        return steps.finish(plan)


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
    """One task's share of a step, for clusters: `plan`, then all `scan`, then all `encode`, then `finish`."""
    if step not in STEPS or not 0 <= task < tasks:
        raise UsageError(f"step {step!r}, task {task} of {tasks}: steps are {', '.join(STEPS)}, tasks from 0")
    options, run, out = options or RowOptions(), run or RunOptions(), Path(out)
    if step == "plan":
        plan = make_plan(inputs, out, options, run)
        if finished_manifest(out, options) is not None:
            steps.clear_up(plan)
        return None
    manifest = finished_manifest(out, options)
    if manifest is not None:
        return manifest
    plan = load_plan(out)
    if step == "scan":
        _scan(plan, run, range(task, len(plan.slices), tasks))
    elif step == "encode":
        _encode(plan, run, range(task, plan.parts, tasks), steps.open_spills(plan))
    else:
        steps.totals_of_spills(plan, steps.open_spills(plan))
        return steps.finish(plan)
    return None


def _scan_and_encode(plan: Plan, run: RunOptions) -> None:
    if steps.is_scanned(plan) and all(steps.is_encoded(plan, part) for part in range(plan.parts)):
        return
    in_memory = plan.rows * RECORD_BYTES <= HELD_FRACTION * run.memory_bytes
    spills = _scan(plan, run, range(len(plan.slices)), in_memory)
    steps.totals_of_spills(plan, spills)
    _encode(plan, run, range(plan.parts), spills)


def _scan(plan: Plan, run: RunOptions, numbers: Sequence[int], in_memory: bool = False) -> list[Spill]:
    # DuckDB streams: a fraction of the limit is plenty for it, the slices take the rest.
    scanner = Scanner(run.memory_bytes // 4)
    spills: dict[int, list[Spill]] = {}

    def scan(number: int) -> int:
        spills[number] = steps.scan_slice(plan, number, scanner, in_memory)
        return plan.slice_rows(number)

    with Progress("scan", sum(map(plan.slice_rows, numbers)), "measurements") as progress:
        _together(run.threads, numbers, scan, progress)
    return [spill for number in numbers for spill in spills[number]]


def _encode(plan: Plan, run: RunOptions, parts: Sequence[int], spills: Sequence[Spill]) -> None:
    sizes = {part: steps.part_measurements(plan, part, spills) for part in parts}
    held = sum(spill.place.nbytes for spill in spills if isinstance(spill.place, np.ndarray))
    share = (run.memory_bytes - held) // run.threads
    # Large parts first, so that no worker starts on one when the others have finished.
    ordered = sorted(parts, key=lambda part: -sizes[part])
    with Progress("encode", sum(sizes.values()), "measurements") as progress:
        _together(run.threads, ordered, lambda part: steps.encode_part(plan, part, spills, share), progress)


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


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the output folder, so that two builds cannot mix in it. The lock ends with the process."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.parent / f".{out.name}.lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another build is writing to {out}; wait for it or name another --out"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _remove_leftovers(plan: Plan) -> None:
    """Unfinished files of a killed run."""
    folders = {plan.work, plan.spill_folder, *(plan.out / split.name for split in plan.splits)}
    for folder in folders:
        for leftover in folder.glob(".*.part"):
            leftover.unlink()
