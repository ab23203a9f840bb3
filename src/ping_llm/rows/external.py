"""Sorted blocks of a part of any size: sorted at once where it fits, else in runs on disk that are merged."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ping_llm.rows.sortable import WORDS
from ping_llm.rows.sorting import SORT_BYTES, gather, merge_runs, sort_order

_GATHERED = 1 << 16  # measurements copied at once: 4.7 MB
_MIN_BUFFER = 256


def block_limit(memory_bytes: int) -> int:
    """How many measurements a worker with this much memory can sort at once; two blocks may be alive."""
    return max(1 << 16, memory_bytes // (SORT_BYTES + 8 * WORDS))


def sorted_blocks(
    blocks: Iterable[np.ndarray], by_probe: bool, temp: Path, memory_bytes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sort the measurements of all blocks together.

    Yields:
      (words, order): words[order] are the next measurements.
    """
    runs: list[BinaryIO] = []
    counts: list[int] = []
    waiting: np.ndarray | None = None
    try:
        for block in blocks:
            if waiting is not None:
                runs.append(_write_run(waiting, by_probe, temp))
                counts.append(len(waiting))
            waiting = block
        if waiting is None:
            return
        if not runs:
            yield waiting, sort_order(waiting, by_probe)
            return
        runs.append(_write_run(waiting, by_probe, temp))
        counts.append(len(waiting))
        waiting = None
        yield from _merged(runs, counts, by_probe, memory_bytes)
    finally:
        for run in runs:
            run.close()


def _write_run(words: np.ndarray, by_probe: bool, temp: Path) -> BinaryIO:
    from tempfile import TemporaryFile

    order = sort_order(words, by_probe)
    run = TemporaryFile(dir=temp, buffering=0)  # noqa: SIM115 - closed by sorted_blocks; has no name to clean up
    piece = np.empty((min(_GATHERED, len(words)), WORDS), np.uint64)
    for start in range(0, len(order), _GATHERED):
        part = order[start : start + _GATHERED]
        gather(words, part, piece)
        view = memoryview(piece[: len(part)]).cast("B")
        while len(view):
            view = view[run.write(view) :]
    run.seek(0)
    return run


def _merged(
    runs: list[BinaryIO], counts: list[int], by_probe: bool, memory_bytes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    size = min(_GATHERED, max(_MIN_BUFFER, memory_bytes // 2 // (len(runs) * 8 * WORDS)))
    buffers = np.empty((len(runs), size, WORDS), np.uint64)
    places, lengths = np.zeros(len(runs), np.int64), np.zeros(len(runs), np.int64)
    left = np.array(counts, np.int64)

    def refill(run: int) -> None:
        take = int(min(size, left[run]))
        view = memoryview(buffers[run, :take]).cast("B") if take else memoryview(b"")
        while len(view):
            view = view[runs[run].readinto(view) :]  # type: ignore[attr-defined]
        places[run], lengths[run] = 0, take
        left[run] -= take

    for run in range(len(runs)):
        refill(run)
    identity = np.arange(_GATHERED)
    while lengths.any():
        out = np.empty((_GATHERED, WORDS), np.uint64)
        filled = 0
        while filled < len(out) and lengths.any():
            written, empty = merge_runs(buffers, places, lengths, by_probe, out[filled:])
            filled += written
            if empty >= 0:
                refill(int(empty))
        yield out[:filled], identity[:filled]
