"""Spills: the measurements of one slice of the input, sorted into buckets but not within them.

They are the only intermediate form: a part is built by reading its buckets from all spills. They are files,
or stay in memory if all of them are small compared to the limit. A file gets its name when it is complete, so
its presence marks the slice as done. It is not synced to the disk (that would cost as much as the whole
build). Instead each bucket has a sum over its content, so that damage by a power failure is found when it is
read.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.measurements.rules import RULES
from ping_llm.rows.sortable import WORDS, Sortable, content, hash_key, part_of

MAGIC = int.from_bytes(b"PINGSPL1", "little")
RECORD_BYTES = 8 * WORDS


@dataclass(frozen=True)
class Spill:
    """The description of a spill, and its data or file."""

    place: Path | np.ndarray  # a file, or the words themselves
    rejected: np.ndarray  # int64 [len(RULES)]
    counts: np.ndarray  # int64 [buckets]
    contents: np.ndarray  # uint64 [buckets]

    @property
    def measurements(self) -> int:
        return int(self.counts.sum())

    @property
    def rows_in(self) -> int:
        return self.measurements + int(self.rejected.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        """Index of the first measurement of each bucket."""
        return np.cumsum(self.counts) - self.counts

    @property
    def header_bytes(self) -> int:
        return 16 + 8 * (len(RULES) + 2 * len(self.counts))


def make_spill(pieces: Iterable[Sortable], table: np.ndarray, by_probe: bool, path: Path | None) -> Spill:
    """Sort the measurements of a slice into buckets, in a file, or in memory if `path` is None."""
    buckets = int(table[-1, 2] + table[-1, 3])
    rejected = np.zeros(len(RULES), np.int64)
    counts, contents = np.zeros(buckets, np.int64), np.zeros(buckets, np.uint64)
    blocks: list[tuple[np.ndarray, np.ndarray]] = []
    for piece in pieces:
        rejected += piece.rejected
        places = np.empty(len(piece.words), np.int32)
        _assign(piece.words, table, by_probe, places, counts, contents)
        blocks.append((piece.words, places))
    cursor = np.cumsum(counts) - counts
    gathered = np.empty((int(counts.sum()), WORDS), np.uint64)
    while blocks:  # pop, so that memory is freed while the gathered block fills
        words, places = blocks.pop()
        _scatter(words, places, cursor, gathered)
    if path is None:
        return Spill(gathered, rejected, counts, contents)
    header = np.concatenate([[MAGIC, buckets], rejected, counts]).astype(np.int64)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            file.write(header.tobytes() + contents.tobytes())
            file.write(memoryview(gathered).cast("B") if len(gathered) else b"")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return Spill(path, rejected, counts, contents)


def open_spill(path: Path) -> Spill:
    """Read the header of a spill file, and check the length of the file."""
    with path.open("rb") as file:
        magic, buckets = np.frombuffer(file.read(16), np.int64) if path.stat().st_size >= 16 else (0, 0)
        rest = file.read(8 * (len(RULES) + 2 * int(buckets))) if magic == MAGIC else b""
    if magic != MAGIC or len(rest) != 8 * (len(RULES) + 2 * int(buckets)):
        raise _damaged(path)
    numbers = np.frombuffer(rest, np.int64)
    rejected, counts = numbers[: len(RULES)], numbers[len(RULES) : len(RULES) + int(buckets)]
    spill = Spill(path, rejected, counts, numbers[len(RULES) + int(buckets) :].view(np.uint64))
    if path.stat().st_size != spill.header_bytes + spill.measurements * RECORD_BYTES:
        raise _damaged(path)
    return spill


class SpillReader:
    """Reads buckets from all spills. Use as a context manager: it keeps the files open."""

    def __init__(self, spills: Sequence[Spill]):
        self._spills = spills

    def __enter__(self) -> Self:
        self._files = {
            spill.place: spill.place.open("rb", buffering=0)
            for spill in self._spills
            if isinstance(spill.place, Path)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()

    def read(self, bucket: int, limit: int) -> Iterator[np.ndarray]:
        """The measurements of a bucket, in blocks of at most `limit`; files are checked by their sums."""
        total = sum(int(spill.counts[bucket]) for spill in self._spills)
        block = np.empty((min(total, limit), WORDS), np.uint64)
        filled = 0
        for spill in self._spills:
            at, left = int(spill.starts[bucket]), int(spill.counts[bucket])
            found = np.zeros(1, np.uint64)
            while left:
                take = min(left, len(block) - filled)
                self._fill(spill, at, block[filled : filled + take], found)
                at, filled, left, total = at + take, filled + take, left - take, total - take
                if filled == len(block) and total:
                    yield block
                    block, filled = np.empty((min(total, limit), WORDS), np.uint64), 0
            if isinstance(spill.place, Path) and found[0] != spill.contents[bucket]:
                raise _damaged(spill.place)
        if filled:
            yield block

    def _fill(self, spill: Spill, at: int, words: np.ndarray, found: np.ndarray) -> None:
        if isinstance(spill.place, Path):
            file = self._files[spill.place]
            file.seek(spill.header_bytes + at * RECORD_BYTES)
            _read_exactly(file, words, spill.place)
            add_content(words, found)
        else:
            words[:] = spill.place[at : at + len(words)]


def _read_exactly(file, words: np.ndarray, path: Path) -> None:
    view = memoryview(words).cast("B")
    while len(view):
        got = file.readinto(view)
        if not got:
            raise _damaged(path)
        view = view[got:]


def _damaged(path: Path) -> PingError:
    return PingError(f"the intermediate file {path} is damaged (a power cut?); remove it and run again")


@kernel
def _assign(words, table, by_probe, places, counts, contents):
    for row in range(len(words)):
        part = part_of(hash_key(words, row, by_probe), table)
        places[row] = part
        counts[part] += 1
        contents[part] += content(words, row)


@kernel
def _scatter(words, places, cursor, out):
    for row in range(len(words)):
        at = cursor[places[row]]
        cursor[places[row]] = at + 1
        for word in range(WORDS):
            out[at, word] = words[row, word]


@kernel
def add_content(words, total):
    for row in range(len(words)):
        total[0] += content(words, row)
