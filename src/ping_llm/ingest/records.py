"""Streams of text → blocks of records: lines, or the elements of a JSON array, in bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ping_llm.ingest import scan
from ping_llm.ingest.options import MAX_RECORD_BYTES, RAW_BYTES
from ping_llm.ingest.streams import Chunks


@dataclass
class Oversize:
    """A record longer than MAX_RECORD_BYTES: its beginning and its length are all that is known of it."""

    number: int
    head: bytes
    length: int


@dataclass
class Block:
    """Consecutive records of a stream: record i is data[starts[i]:ends[i]].

    Attributes:
      numbers: of each record in its stream, from 1: the line, or the place in the array.
      unfinished: the stream ends right after the last record, with nothing that closes it.
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

    def without_first(self) -> "Block":
        return Block(
            self.data, self.starts[1:], self.ends[1:], self.numbers[1:], self.oversize, self.unfinished
        )


def _only(oversize: Oversize) -> Block:
    none = np.zeros(0, np.int64)
    return Block(b"", none, none, none, [oversize], unfinished=True)


def whole_block(data: bytes, number: int = 1) -> Block:
    """A block of one record that nothing closes."""
    return Block(data, np.array([0]), np.array([len(data)]), np.array([number]), unfinished=True)


def lines(chunks: Chunks) -> Iterator[Block]:
    """Blocks of non-blank lines, without their ends."""
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
            yield _without_blanks(data, starts, ends, numbers, [])
    if skipped:
        yield _only(skipped)
    elif carry.strip():
        yield whole_block(carry, number)


def _without_blanks(
    data: bytes, starts: np.ndarray, ends: np.ndarray, numbers: np.ndarray, oversize: list[Oversize]
) -> Block:
    short = np.flatnonzero(ends - starts <= 2).tolist()
    blank = [index for index in short if not data[starts[index] : ends[index]].strip()]
    if blank:
        starts, ends, numbers = (np.delete(column, blank) for column in (starts, ends, numbers))
    return Block(data, starts, ends, numbers, oversize)


def values(chunks: Chunks) -> Iterator[Block]:
    """Blocks of JSON values: the elements of top-level arrays, and whatever else stands at the top."""
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
            # starts[0] is 0 only after a carry: the length is then added up below.
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
    """What is carried over: the open record or, if it is too long, two bytes, to see the next begin."""
    start = int(state[scan.START])
    if skipped:
        skipped.length += new
    elif start >= 0 and len(data) - start > MAX_RECORD_BYTES:
        skipped = Oversize(number, data[start : start + RAW_BYTES], len(data) - start)
    if start >= 0:
        state[scan.START] = 0
    if skipped:
        return data[-2:], skipped
    return (data[start:] if start >= 0 else b""), None
