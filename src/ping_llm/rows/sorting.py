"""Sorting of measurements into rows: by the hash of the key, the key, then all other values.

Measurements of a part share few keys (about 28 measurements per key) and often arrive in time order. So a
block is grouped with a hash table, only the keys are sorted, and each group is sorted separately, which costs
one pass if it is already sorted. That is several times faster than sorting whole records, and needs 28 bytes
per measurement in addition to the 72 of the record. Data that does not fit in memory is sorted in runs and
merged.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.rows.sortable import PROBE_ID, SRC_HIGH, SRC_LOW, TIME, WORDS, hash_key

#: Memory per measurement while sorting, in bytes: the record, and the hash table at its fullest.
SORT_BYTES = 8 * WORDS + 28

_SMALL = 24  # groups up to this size are sorted by insertion


def sort_order(words: np.ndarray, by_probe: bool) -> np.ndarray:
    """The indices that sort the measurements of a block, int64 [n]."""
    group_of, first, sizes, hashes = _grouped(words, by_probe)
    # This uses NumPy's sort, because Numba would take four seconds to compile its own.
    ranked = np.argsort(hashes)
    _break_ties(ranked, hashes, words, first, by_probe)
    order = np.empty(len(words), np.int64)
    _sort_groups(words, group_of, ranked, sizes, order)
    return order


@kernel
def _grouped(words, by_probe):
    """The group of each measurement; and for each group one measurement, its size and its hash."""
    count = len(words)
    group_of = np.empty(count, np.int32)
    first = np.empty(max(16, count // 16), np.int32)
    sizes = np.empty(len(first), np.int32)
    hashes = np.empty(len(first), np.uint64)
    table = np.full(1024, -1, np.int32)
    groups = 0
    for row in range(count):
        hashed = hash_key(words, row, by_probe)
        slot = np.int64(hashed & np.uint64(len(table) - 1))
        while True:
            group = table[slot]
            if group < 0 or (hashes[group] == hashed and _same_key(words, first[group], row, by_probe)):
                break
            slot = (slot + 1) & (len(table) - 1)
        if group < 0:
            if groups == len(first):
                first, sizes, hashes = _doubled(first), _doubled(sizes), _doubled(hashes)
            group = groups
            groups += 1
            first[group] = row
            sizes[group] = 0
            hashes[group] = hashed
            table[slot] = group
            if 2 * groups > len(table):
                table = _rebuilt(hashes, groups, 4 * len(table))
        sizes[group] += 1
        group_of[row] = group
    return group_of, first[:groups], sizes[:groups], hashes[:groups]


@kernel
def _sort_groups(words, group_of, ranked, sizes, order):
    starts = np.empty(len(ranked), np.int64)
    at = 0
    largest = 0
    for rank in range(len(ranked)):
        starts[ranked[rank]] = at
        at += sizes[ranked[rank]]
        largest = max(largest, sizes[ranked[rank]])
    for row in range(len(order)):
        group = group_of[row]
        order[starts[group]] = row
        starts[group] += 1
    scratch = np.empty(largest, np.int64)
    at = 0
    for rank in range(len(ranked)):
        end = at + sizes[ranked[rank]]
        _sort_group(words, order[at:end], scratch)
        at = end


@kernel
def _same_key(words, one, other, by_probe):
    if by_probe and words[one, PROBE_ID] != words[other, PROBE_ID]:
        return False
    return words[one, SRC_HIGH] == words[other, SRC_HIGH] and words[one, SRC_LOW] == words[other, SRC_LOW]


@kernel
def _doubled(array):
    larger = np.empty(2 * len(array), array.dtype)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@kernel
def _rebuilt(hashes, groups, size):
    table = np.full(size, -1, np.int32)
    for group in range(groups):
        slot = np.int64(hashes[group] & np.uint64(size - 1))
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = group
    return table


@kernel
def _break_ties(ranked, hashes, words, first, by_probe):
    """Order groups with equal hashes by their keys, by insertion sort, as runs are short.

    Two sources rarely have equal hashes, but the sources of one probe always do.
    """
    for rank in range(1, len(ranked)):
        group = ranked[rank]
        place = rank
        while place > 0 and hashes[ranked[place - 1]] == hashes[group]:
            if not _key_less(words, first[group], first[ranked[place - 1]], by_probe):
                break
            ranked[place] = ranked[place - 1]
            place -= 1
        ranked[place] = group


@kernel
def _key_less(words, one, other, by_probe):
    if by_probe and words[one, PROBE_ID] != words[other, PROBE_ID]:
        return words[one, PROBE_ID] < words[other, PROBE_ID]
    if words[one, SRC_HIGH] != words[other, SRC_HIGH]:
        return words[one, SRC_HIGH] < words[other, SRC_HIGH]
    return words[one, SRC_LOW] < words[other, SRC_LOW]


@kernel
def _less(words, one, other):
    """Order within a group: by time, then by all other words, so that equal measurements are identical."""
    for word in range(TIME, WORDS):
        if words[one, word] != words[other, word]:
            return words[one, word] < words[other, word]
    return False


@kernel
def _sort_group(words, order, scratch):
    count = len(order)
    unsorted = 1
    while unsorted < count and not _less(words, order[unsorted], order[unsorted - 1]):
        unsorted += 1
    if unsorted == count:
        return
    # Insertion sort within short pieces, then bottom-up merging of neighbours.
    for start in range(0, count, _SMALL):
        end = min(start + _SMALL, count)
        for i in range(start + 1, end):
            row = order[i]
            place = i
            while place > start and _less(words, row, order[place - 1]):
                order[place] = order[place - 1]
                place -= 1
            order[place] = row
    width = _SMALL
    while width < count:
        for start in range(0, count - width, 2 * width):
            _merge(words, order, start, start + width, min(start + 2 * width, count), scratch)
        width *= 2


@kernel
def _merge(words, order, start, middle, end, scratch):
    if not _less(words, order[middle], order[middle - 1]):
        return
    for i in range(start, middle):
        scratch[i - start] = order[i]
    left, left_end, right, at = 0, middle - start, middle, start
    while left < left_end:
        if right < end and _less(words, order[right], scratch[left]):
            order[at] = order[right]
            right += 1
        else:
            order[at] = scratch[left]
            left += 1
        at += 1


@kernel
def gather(words, order, out):
    for row in range(len(order)):
        for word in range(WORDS):
            out[row, word] = words[order[row], word]


@kernel
def _head_less(heads, hashes, one, other, by_probe):
    if hashes[one] != hashes[other]:
        return hashes[one] < hashes[other]
    if by_probe and heads[one, PROBE_ID] != heads[other, PROBE_ID]:
        return heads[one, PROBE_ID] < heads[other, PROBE_ID]
    for word in range(WORDS):
        if heads[one, word] != heads[other, word]:
            return heads[one, word] < heads[other, word]
    return False


@kernel
def merge_runs(buffers, places, lengths, by_probe, out):
    """Merge the sorted buffers [runs, size, 9] into `out` until it is full or a buffer is used up.

    Args:
      places: Position in each buffer; updated.
      lengths: Length of the filled part of each buffer, 0 for a finished run.

    Returns:
      The number of measurements written, and the run that needs a refill (-1: none).
    """
    runs = len(buffers)
    heads = np.empty((runs, WORDS), np.uint64)
    hashes = np.empty(runs, np.uint64)
    live = np.empty(runs, np.int64)
    alive = 0
    for run in range(runs):
        if places[run] < lengths[run]:
            heads[run] = buffers[run, places[run]]
            hashes[run] = hash_key(heads, run, by_probe)
            live[alive] = run
            alive += 1
    written = 0
    while written < len(out) and alive:
        best = live[0]
        for i in range(1, alive):
            if _head_less(heads, hashes, live[i], best, by_probe):
                best = live[i]
        for word in range(WORDS):
            out[written, word] = heads[best, word]
        written += 1
        places[best] += 1
        if places[best] == lengths[best]:
            return written, best
        at = places[best]
        for word in range(WORDS):
            heads[best, word] = buffers[best, at, word]
        hashes[best] = hash_key(heads, best, by_probe)
    return written, -1


_GATHERED = 1 << 16  # measurements copied at once: 4.7 MB
_MIN_BUFFER = 256


def block_limit(memory_bytes: int) -> int:
    """Largest number of measurements a worker can sort at once; two blocks may be in memory."""
    return max(1 << 16, memory_bytes // (SORT_BYTES + 8 * WORDS))


def sorted_blocks(
    blocks: Iterable[np.ndarray], by_probe: bool, temp: Path, memory_bytes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sort the measurements of all blocks together.

    Yields:
      (words, order), where words[order] are the next measurements.
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
