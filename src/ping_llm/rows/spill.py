"""Spill files: the measurements of one slice of the input, sorted into parts but not within them.

They are the only intermediate form: whoever builds a part reads its stretch of every spill file. A file
appears under its name when it is whole, so its presence is the marker that the slice is done. It is not
synced to the disk (that would cost as much as the whole build); each stretch carries a sum over its content
instead, and a stretch that a power cut has damaged is found when it is read.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.rows.keys import content, hash_key, part_of
from ping_llm.rows.sortable import RULES, WORDS, Sortable

MAGIC = int.from_bytes(b"PINGSPL1", "little")
RECORD_BYTES = 8 * WORDS


@dataclass(frozen=True)
class SpillHeader:
    """What is in a spill file."""

    path: Path
    rejected: np.ndarray  # int64 [len(RULES)]
    counts: np.ndarray  # int64 [parts]
    contents: np.ndarray  # uint64 [parts]

    @property
    def measurements(self) -> int:
        return int(self.counts.sum())

    @property
    def rows_in(self) -> int:
        return self.measurements + int(self.rejected.sum())


def write_spill(path: Path, pieces: Iterable[Sortable], table: np.ndarray, by_probe: bool) -> SpillHeader:
    """Sort the measurements of a slice into parts and write them as one whole file."""
    parts = int(table[-1, 2] + table[-1, 3])
    rejected = np.zeros(len(RULES), np.int64)
    counts, contents = np.zeros(parts, np.int64), np.zeros(parts, np.uint64)
    blocks: list[tuple[np.ndarray, np.ndarray]] = []
    for piece in pieces:
        rejected += piece.rejected
        places = np.empty(len(piece.words), np.int32)
        _assign(piece.words, table, by_probe, places, counts, contents)
        blocks.append((piece.words, places))
    cursor = np.zeros(parts, np.int64)
    np.cumsum(counts[:-1], out=cursor[1:])
    gathered = np.empty((int(counts.sum()), WORDS), np.uint64)
    while blocks:  # popped, so that memory shrinks as the gathered block fills
        words, places = blocks.pop()
        _scatter(words, places, cursor, gathered)
    header = np.concatenate([[MAGIC, parts], rejected, counts]).astype(np.int64)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            file.write(header.tobytes() + contents.tobytes())
            file.write(memoryview(gathered).cast("B") if len(gathered) else b"")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return SpillHeader(path, rejected, counts, contents)


def read_header(path: Path) -> SpillHeader:
    """Read what is in a spill file, and check its length."""
    with path.open("rb") as file:
        magic, parts = np.frombuffer(file.read(16), np.int64) if path.stat().st_size >= 16 else (0, 0)
        rest = file.read(8 * (len(RULES) + 2 * int(parts))) if magic == MAGIC else b""
    if magic != MAGIC or len(rest) != 8 * (len(RULES) + 2 * int(parts)):
        raise _damaged(path)
    numbers = np.frombuffer(rest, np.int64)
    rejected, counts = numbers[: len(RULES)], numbers[len(RULES) : len(RULES) + int(parts)]
    header = SpillHeader(path, rejected, counts, numbers[len(RULES) + int(parts) :].view(np.uint64))
    if path.stat().st_size != 16 + len(rest) + header.measurements * RECORD_BYTES:
        raise _damaged(path)
    return header


def read_part(headers: Sequence[SpillHeader], part: int, limit: int) -> Iterable[np.ndarray]:
    """The measurements of a part, in blocks of at most `limit`, checked against the sums in the files."""
    total = sum(int(header.counts[part]) for header in headers)
    block = np.empty((min(total, limit), WORDS), np.uint64)
    filled = 0
    for header in headers:
        left = int(header.counts[part])
        found = np.zeros(1, np.uint64)
        start = 16 + 8 * (len(RULES) + 2 * len(header.counts))
        start += int(header.counts[:part].sum()) * RECORD_BYTES
        with header.path.open("rb", buffering=0) as file:
            file.seek(start)
            while left:
                take = min(left, len(block) - filled)
                _read_exactly(file, block[filled : filled + take], header.path)
                add_content(block[filled : filled + take], found)
                filled, left, total = filled + take, left - take, total - take
                if filled == len(block) and total:
                    yield block
                    block, filled = np.empty((min(total, limit), WORDS), np.uint64), 0
        if found[0] != header.contents[part]:
            raise _damaged(header.path)
    if filled:
        yield block


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
