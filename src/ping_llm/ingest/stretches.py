"""Division of a large file into stretches that are read in parallel, with the same bytes as by one reader.

Only files with one record per line are divided: plain text at any byte, bzip2 at its blocks, zstd at its
frames. A line belongs to the stretch that contains the newline before it, so a stretch drops its text up to
the first newline and continues beyond its end to the next one. The division depends only on the file: workers
on one machine, tasks on a cluster and a continued run find the same stretches.

Unusual files (damaged, UTF-16, archives) are not read in stretches, but from the beginning by one reader.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from ping_llm.ingest.bzip2_blocks import Bzip2Blocks
from ping_llm.ingest.containers import container, is_refused, unpack
from ping_llm.ingest.options import PLAIN_STRETCH_BYTES, STRETCH_BYTES
from ping_llm.ingest.records import READ_BYTES, Chunks, Trouble

_PLAIN, _BZIP2, _ZSTD = "plain", "bzip2", "zstd"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Stretch:
    """The bytes [start, end) of a file; `kind` is its container."""

    number: int
    kind: str
    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


def cut(path: Path, head_bytes: int) -> tuple[list[Stretch], bytes]:
    """The stretches of a file and the first bytes of its text; no stretches if it should be read whole.

    The caller must check that the text has one record per line.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        kind = container(file.read(4)) or _PLAIN
        length = PLAIN_STRETCH_BYTES if kind == _PLAIN else STRETCH_BYTES
        if kind not in (_PLAIN, _BZIP2, _ZSTD) or size <= length:
            return [], b""
        head = first_text(file, kind, head_bytes)
        if is_refused(head):
            return [], b""
        places = _frames(file, size, length) if kind == _ZSTD else _even(size, length)
    pairs = pairwise([*places, size])
    stretches = [Stretch(number, kind, *pair) for number, pair in enumerate(pairs)]
    return (stretches if len(stretches) > 1 else []), head


def first_text(file: BinaryIO, kind: str, count: int) -> bytes:
    """The first bytes of a file's text."""
    raw = Chunks(_read(file, 0, file.seek(0, 2)), "", Trouble(""))
    return (raw if kind == _PLAIN else Chunks(unpack(raw, kind), "", Trouble(""))).peek(count)


def _even(size: int, length: int) -> list[int]:
    count = -(-size // length)
    return [number * size // count for number in range(count)]


def _frames(file: BinaryIO, size: int, length: int) -> list[int]:
    """Starts of zstd frames, at least `length` bytes apart; none if the frames cannot be followed."""
    places, place = [0], 0
    while place < size:
        if place - places[-1] >= length:
            places.append(place)
        place = _end_of_frame(file, place)
        if not place:
            return []
    return places if place == size else []


def _end_of_frame(file: BinaryIO, place: int) -> int:
    file.seek(place)
    start = file.read(14)
    if len(start) < 8:
        return 0
    if start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F:
        return place + 8 + int.from_bytes(start[4:8], "little")
    if start[:4] != _ZSTD_MAGIC:
        return 0
    flags = start[4]
    single = flags >> 5 & 1
    size_bytes = (single, 2, 4, 8)[flags >> 6]
    place += 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + size_bytes
    while True:
        file.seek(place)
        header = file.read(3)
        if len(header) < 3:
            return 0
        block = int.from_bytes(header, "little")
        place += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return place + 4 * (flags >> 2 & 1)


def _read(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (chunk := file.read(min(READ_BYTES, end - start))):
        start += len(chunk)
        yield chunk


class StretchText:
    """The lines of a stretch, in chunks. `lines` is the number of lines returned so far."""

    def __init__(self, file: BinaryIO, stretch: Stretch):
        self._file, self._stretch = file, stretch
        self._blocks = Bzip2Blocks(file, stretch.start, stretch.end)
        self.lines = 0

    @property
    def checksums(self) -> list[list[int]]:
        return self._blocks.checksums

    def __iter__(self) -> Iterator[bytes]:
        begun = self._stretch.number == 0
        for piece, beyond in self._pieces():
            if not begun:
                if beyond:
                    return  # no line begins here
                _, newline, piece = piece.partition(b"\n")
                begun = bool(newline)
            if begun and beyond and b"\n" in piece:
                self.lines += 1
                yield piece[: piece.index(b"\n") + 1]
                return
            if begun and piece:
                self.lines += piece.count(b"\n")
                yield piece

    def _pieces(self) -> Iterator[tuple[bytes, bool]]:
        if self._stretch.kind == _BZIP2:
            yield from self._blocks
            return
        size = self._file.seek(0, 2)
        for start, end, beyond in (
            (self._stretch.start, self._stretch.end, False),
            (self._stretch.end, size, True),
        ):
            for piece in self._unpacked(start, end) if start < end else ():
                yield piece, beyond

    def _unpacked(self, start: int, end: int) -> Iterator[bytes]:
        chunks = Chunks(_read(self._file, start, end), "", Trouble(""))
        return iter(chunks) if self._stretch.kind == _PLAIN else unpack(chunks, _ZSTD)
