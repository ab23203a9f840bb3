"""Reading of bzip2 blocks from any byte of a file, so that several workers can unpack one file.

bzip2 has no index, and its blocks begin at any bit; each begins with a mark of 48 bits. A block between two
marks is unpacked as a stream of its own, with an end and the block's checksum appended, so the library checks
that it ends exactly where the next mark is. The 48 bits may occur inside a block by chance (once in 30 TB of
compressed data): then the block fails like a damaged one, and the caller reads the file from its beginning
instead.
"""

import bz2
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.ingest.records import PIECE_BYTES, READ_BYTES, Broken

_BLOCK_MARK, _END_MARK = 0x314159265359, 0x177245385090
_MARK_BITS, _CRC_BITS, _HEADER_BYTES = 48, 32, 4

#: Upper bound of the size of a block: 900,000 bytes that cannot be compressed, and tables.
_MAX_BLOCK_BYTES = 2 << 20


#: Possible values of the last byte but one when a mark ends in the last byte, at any bit. Checking this byte
#: first saves most of the work.
_POSSIBLE = np.zeros(256, np.bool_)
_POSSIBLE[[(mark >> (8 - after)) & 255 for mark in (_BLOCK_MARK, _END_MARK) for after in range(8)]] = True


@kernel
def _find_marks(data, window, before, possible, places, ends):
    """Find the marks that end in `data`; `window` is the 8 bytes before, `before` the bytes read so far."""
    found = 0
    mask = np.uint64((1 << 48) - 1)
    block, end = np.uint64(0x314159265359), np.uint64(0x177245385090)
    for index in range(len(data)):
        window = (window << np.uint64(8)) | np.uint64(data[index])
        if not possible[(window >> np.uint64(8)) & np.uint64(255)]:
            continue
        for after in range(7, -1, -1):
            bits = (window >> np.uint64(after)) & mask
            if bits in (block, end):
                place = (before + index + 1) * 8 - after - 48
                if place >= 0:
                    places[found] = place
                    ends[found] = bits == end
                    found += 1
    return found, window


class _Marks:
    """The marks of a file from byte `start` on, and the bits between them. Places are bit offsets."""

    def __init__(self, file: BinaryIO, start: int):
        file.seek(start)
        self._file, self._start = file, start
        self._data, self._base = bytearray(), start
        self._window, self._read = np.uint64(0), 0
        self._found: deque[tuple[int, bool]] = deque()

    def next(self) -> tuple[int, bool] | None:
        """The next mark and whether it ends a stream; None at the end of the file."""
        while not self._found:
            if len(self._data) > _MAX_BLOCK_BYTES:
                raise Broken(f"no bzip2 block ends after byte {self._base:,}")
            if not self._more():
                return None
        return self._found.popleft()

    def _more(self) -> bool:
        chunk = self._file.read(READ_BYTES)
        array = np.frombuffer(chunk, np.uint8)
        places, ends = np.empty(len(chunk), np.int64), np.empty(len(chunk), np.bool_)
        found, self._window = _find_marks(array, self._window, self._read, _POSSIBLE, places, ends)
        self._window = np.uint64(self._window)
        self._read += len(chunk)
        self._data += chunk
        first = 8 * self._start
        self._found += zip((places[:found] + first).tolist(), ends[:found].tolist(), strict=True)
        return bool(chunk)

    def bits(self, begin: int, end: int) -> int:
        while (end + 7) // 8 - self._base > len(self._data):
            if not self._more():
                raise Broken(f"bzip2 data end early, at byte {self._base + len(self._data):,}")
        first, last = begin // 8 - self._base, (end + 7) // 8 - self._base
        return (int.from_bytes(self._data[first:last]) >> (-end % 8)) & ((1 << (end - begin)) - 1)

    def bytes(self, begin: int, count: int) -> bytes:
        """Return `count` bytes from byte `begin`; fewer at the end of the file."""
        while begin + count - self._base > len(self._data) and self._more():
            pass
        return bytes(self._data[begin - self._base : begin - self._base + count])

    def forget(self, before: int) -> None:
        """Discard the bytes before bit `before`."""
        del self._data[: before // 8 - self._base]
        self._base = before // 8


class Bzip2Blocks:
    """The text of the blocks that begin in the bytes [start, end) of a file, then of the blocks after them.

    Iteration gives (piece, whether its block begins at or after `end`). `checksums` holds the stored
    checksums in the range: [0, checksum] for a block, [1, checksum] for the end of a stream.

    Raises:
      Broken: while iterating, if the file is damaged or not of a form that this reader supports.
    """

    def __init__(self, file: BinaryIO, start: int, end: int):
        self._file, self._start, self._end = file, start, end
        self.checksums: list[list[int]] = []

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        self._file.seek(0)
        header = self._file.read(_HEADER_BYTES)
        marks = _Marks(self._file, self._start)
        mark = marks.next()
        expected = 8 * _HEADER_BYTES if self._start == 0 else None
        if self._start and mark is not None and mark[0] >= 8 * self._end:
            return
        while mark is not None:
            place, is_end = mark
            if expected is not None and place != expected:
                raise Broken(f"no bzip2 block at byte {expected // 8:,}")
            beyond = place >= 8 * self._end
            marks.forget(place)
            following = marks.next()
            content = place + _MARK_BITS
            checksum = marks.bits(content, content + _CRC_BITS)
            if not beyond:
                self.checksums.append([int(is_end), checksum])
            if is_end:
                after = (content + _CRC_BITS + 7) // 8
                next_header = marks.bytes(after, _HEADER_BYTES)
                if following is None and not next_header:
                    return
                if next_header != header:
                    raise Broken(f"no bzip2 stream like the first at byte {after:,}")
                expected = 8 * (after + _HEADER_BYTES)
            elif following is not None:
                for piece in _unpack(header, marks.bits(place, following[0]), following[0] - place, checksum):
                    yield piece, beyond
                expected = None
            mark = following
        raise Broken("bzip2 data end early")


def _unpack(header: bytes, block: int, bits: int, checksum: int) -> Iterator[bytes]:
    """Unpack one block as a stream of its own."""
    ending = _MARK_BITS + _CRC_BITS
    padding = -(bits + ending) % 8
    stream = ((block << ending) | (_END_MARK << _CRC_BITS) | checksum) << padding
    engine = bz2.BZ2Decompressor()
    data = header + stream.to_bytes((bits + ending + padding) // 8)
    try:
        while not engine.eof:
            piece = engine.decompress(data, PIECE_BYTES)
            data = b""
            if piece:
                yield piece
            elif engine.needs_input:
                raise Broken("a bzip2 block ends early")
    except (OSError, EOFError) as error:
        raise Broken(f"corrupt bzip2 block ({error})") from None
    if engine.unused_data:
        raise Broken("a bzip2 block ends before the next begins")


def checksums_agree(checksums: list[list[int]]) -> bool:
    """Whether the checksums of the blocks of a whole file match those at the ends of its streams."""
    combined, ended = 0, True
    for is_end, checksum in checksums:
        if is_end and checksum != combined:
            return False
        ended = bool(is_end)
        combined = 0 if is_end else ((combined << 1 | combined >> 31) & 0xFFFFFFFF) ^ checksum
    return ended and bool(checksums)
