"""Streams of bytes in chunks, with look-ahead, and their division into records.

A stream never raises an error for the content of its file. It yields the intact part, and stores the reason
why it stopped in `Trouble`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from ping_llm.ingest import scan
from ping_llm.ingest.options import MAX_RECORD_BYTES, RAW_BYTES

#: Bytes per read from a file.
READ_BYTES = 256 << 10


#: Largest size of a chunk, whatever a decompressor returns at once; the limits of records rely on it.
PIECE_BYTES = 1 << 20


class Broken(Exception):
    """Raised inside a decompressor: the data cannot be read beyond this point. The text says why."""


@dataclass
class Trouble:
    """The errors found in one input file, as sentences."""

    path: str
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)


class RawFile:
    """An open file that counts and hashes the bytes read; all streams are based on its chunks."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._hash = hashlib.sha256()
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._file.read(READ_BYTES):
            self.offset += len(chunk)
            self._hash.update(chunk)
            yield chunk

    def drain(self) -> None:
        """Read the rest of the file, so that the hash is that of the whole file."""
        for _ in self:
            pass

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class Chunks:
    """An iterator over non-empty chunks of bytes that can be examined before they are consumed."""

    def __init__(self, source: Iterator[bytes], name: str, trouble: Trouble, is_file: bool = False):
        self._source, self.name, self.trouble, self.is_file = source, name, trouble, is_file
        self._ahead: list[bytes] = []
        self._rest = b""  # the rest of a chunk larger than PIECE_BYTES
        self._ended = False
        #: Whether the bytes stop before their end.
        self.broken = False
        #: Number of bytes returned so far.
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            chunk = self._ahead.pop(0) if self._ahead else self._next()
            if not chunk:
                return
            self.offset += len(chunk)
            yield chunk

    def _next(self) -> bytes:
        if not self._rest:
            self._rest = self._next_chunk()
        if len(self._rest) <= PIECE_BYTES:
            piece, self._rest = self._rest, b""
        else:
            piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
        return piece

    def _next_chunk(self) -> bytes:
        while not self._ended:
            try:
                chunk = next(self._source, None)
            except Broken as problem:
                self._stop(str(problem))
            except OSError as error:
                self._stop(f"cannot be read further: {error.strerror or error}")
            else:
                if chunk:
                    return chunk
                # An empty chunk is not the end: a decompressor may read bytes and return none yet.
                self._ended = chunk is None
        return b""

    def _stop(self, why: str) -> None:
        self._ended = self.broken = True
        text = self.offset + sum(map(len, self._ahead))
        self.trouble.add(
            f"{self.name}: {why}, after {text:,} bytes of content; what was whole before it is kept"
        )

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes without consuming them; fewer only at the end."""
        while sum(map(len, self._ahead)) < count:
            chunk = self._next()
            if not chunk:
                break
            self._ahead.append(chunk)
        return b"".join(self._ahead)[:count]

    def unread(self, data: bytes) -> None:
        """Put back the bytes that were returned last."""
        if data:
            self._ahead.insert(0, data)
            self.offset -= len(data)

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes; fewer only at the end."""
        parts = []
        missing = count
        for chunk in self:
            parts.append(chunk[:missing])
            if len(chunk) > missing:
                self.unread(chunk[missing:])
            missing -= len(parts[-1])
            if not missing:
                break
        return b"".join(parts)


_BRACE = ord("{")
_SPACE = np.array([bytes([code]).isspace() for code in range(256)])


@dataclass
class Oversize:
    """A record longer than MAX_RECORD_BYTES, of which only the beginning and the length are kept."""

    number: int
    head: bytes
    length: int


@dataclass
class Block:
    """Consecutive records of a stream: record i is data[starts[i]:ends[i]].

    Attributes:
      numbers: Number of each record in its stream, from 1: the line, or the place in the array.
      unfinished: Whether the stream ends with the last record, without anything that ends the record.
    """

    data: bytes
    starts: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray
    oversize: list[Oversize] = field(default_factory=list)
    unfinished: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, np.uint8)

    def text(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    @property
    def texts(self) -> list[bytes]:
        return [self.text(index) for index in range(len(self))]

    def with_lines_split(self, lines: Sequence[int]) -> "Block | None":
        """Split the given lines that hold only objects, several or in an array, into these objects.

        The objects keep the number of their line. None if none of the given lines is of this form.
        """
        pieces = {}
        for line in lines:
            text = self.text(line)
            starts, ends, _ = scan.split_text(text)
            several = len(starts) > 1 or text.lstrip()[:1] == b"["
            if several and len(starts) and all(text[start] == _BRACE for start in starts.tolist()):
                pieces[line] = (starts + self.starts[line], ends + self.starts[line])
        if not pieces:
            return None
        counts = np.ones(len(self), np.int64)
        counts[list(pieces)] = [len(starts) for starts, _ in pieces.values()]
        starts, ends, numbers = (
            np.repeat(column, counts) for column in (self.starts, self.ends, self.numbers)
        )
        first = np.cumsum(counts) - counts
        for line, (own_starts, own_ends) in pieces.items():
            place = slice(first[line], first[line] + counts[line])
            starts[place], ends[place] = own_starts, own_ends
        return Block(self.data, starts, ends, numbers, self.oversize, self.unfinished)

    def without_first(self) -> "Block":
        return Block(
            self.data, self.starts[1:], self.ends[1:], self.numbers[1:], self.oversize, self.unfinished
        )


def _only(oversize: Oversize) -> Block:
    none = np.zeros(0, np.int64)
    return Block(b"", none, none, none, [oversize], unfinished=True)


def whole_block(data: bytes, number: int = 1) -> Block:
    """A block of one record, with nothing after it that ends the record."""
    return Block(data, np.array([0]), np.array([len(data)]), np.array([number]), unfinished=True)


def lines(chunks: Chunks) -> Iterator[Block]:
    """Blocks of non-blank lines, without their newlines."""
    number = 1
    carry = b""
    skipped: Oversize | None = None
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            if skipped:
                skipped.length += len(chunk)
            else:
                carry += chunk
                if len(carry) > MAX_RECORD_BYTES:
                    skipped = Oversize(number, carry[:RAW_BYTES], len(carry))
                    carry = b""
            continue
        data, carry = carry + chunk[:cut], chunk[cut:]
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        starts = np.concatenate([[0], ends[:-1] + 1])
        numbers = np.arange(number, number + len(starts))
        number += len(starts)
        if not skipped and ends[0] > MAX_RECORD_BYTES:
            skipped = Oversize(number - len(starts), data[:RAW_BYTES], 0)
        if skipped:
            skipped.length += int(ends[0])
            yield _without_blanks(data, starts[1:], ends[1:], numbers[1:], [skipped])
            skipped = None
        else:
            block = _without_blanks(data, starts, ends, numbers, [])
            if len(block):
                yield block
    if skipped:
        yield _only(skipped)
    elif carry.strip():
        yield whole_block(carry, number)


def _without_blanks(
    data: bytes, starts: np.ndarray, ends: np.ndarray, numbers: np.ndarray, oversize: list[Oversize]
) -> Block:
    short = np.flatnonzero(ends - starts <= 2)
    if len(short):
        array = np.frombuffer(data, np.uint8)
        # The newline after a line is also a space, so two characters can always be checked.
        blank = _SPACE[array[starts[short]]] & _SPACE[array[np.minimum(starts[short] + 1, ends[short])]]
        kept = np.ones(len(starts), bool)
        kept[short[blank]] = False
        starts, ends, numbers = starts[kept], ends[kept], numbers[kept]
    return Block(data, starts, ends, numbers, oversize)


def values(chunks: Chunks) -> Iterator[Block]:
    """Blocks of JSON values: the elements of top-level arrays, and all other top-level values."""
    state = scan.new_state()
    number = 1
    carry = b""
    skipped: Oversize | None = None
    for chunk in chunks:
        data = carry + chunk
        array = np.frombuffer(data, np.uint8)
        room = len(chunk) + 1
        starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
        found = int(scan.split_values(array, len(carry), state, starts, ends))
        starts, ends = starts[:found].copy(), ends[:found].copy()
        numbers = np.arange(number, number + found)
        number += found
        if found and not skipped and ends[0] - starts[0] > MAX_RECORD_BYTES:
            # The length of the part in this chunk is added below.
            head = data[starts[0] : starts[0] + RAW_BYTES]
            skipped = Oversize(int(numbers[0]), head, len(carry) - int(starts[0]))
        if found and skipped:
            skipped.length += int(ends[0]) - len(carry)
            yield Block(data, starts[1:], ends[1:], numbers[1:], [skipped])
            skipped = None
        elif found:
            yield Block(data, starts, ends, numbers)
        carry, skipped = _keep_open_record(data, len(chunk), state, number, skipped)
    if skipped:
        yield _only(skipped)
    elif state[scan.START] >= 0 and carry:
        yield whole_block(carry, number)
    elif state[scan.IN_ARRAY] and not chunks.broken:
        chunks.trouble.add(
            f"{chunks.name}: the JSON array has no end, at byte {chunks.offset:,} of the content; "
            "what was whole before it is kept"
        )
        chunks.broken = True


def _keep_open_record(
    data: bytes, new: int, state: np.ndarray, number: int, skipped: Oversize | None
) -> tuple[bytes, Oversize | None]:
    """The bytes to carry over: the open record or, if it is too long, those needed to find the next one."""
    start, candidate = int(state[scan.START]), int(state[scan.CANDIDATE])
    if skipped:
        skipped.length += new
    elif start >= 0 and len(data) - start > MAX_RECORD_BYTES:
        skipped = Oversize(number, data[start : start + RAW_BYTES], len(data) - start)
    if skipped and len(data) - candidate > RAW_BYTES:
        candidate = state[scan.CANDIDATE] = -1  # a key is never that long
    if start >= 0:
        state[scan.START] = 0
    keep = start if start >= 0 else len(data)
    if skipped:
        keep = max(0, len(data) - 2) if candidate < 0 else candidate
    if candidate >= 0:
        state[scan.CANDIDATE] = candidate - keep
    return data[keep:], skipped
