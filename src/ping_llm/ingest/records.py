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
    """Consecutive records of a stream.

    Attributes:
      numbers: of each record in its stream, from 1: the line, or the place in the array.
      unfinished: the stream ends right after the last record, with nothing that closes it.
    """

    records: list[bytes]
    numbers: np.ndarray
    oversize: list[Oversize] = field(default_factory=list)
    unfinished: bool = False


def lines(chunks: Chunks, first_number: int = 1) -> Iterator[Block]:
    """Blocks of non-blank lines, without their ends."""
    number = first_number
    carry = b""
    skipped: Oversize | None = None
    for chunk in chunks:
        cut = chunk.rfind(b"\n")
        if cut < 0:
            if skipped:
                skipped.length += len(chunk)
            else:
                carry += chunk
                if len(carry) > MAX_RECORD_BYTES:
                    skipped = Oversize(number, carry[:RAW_BYTES], len(carry))
                    carry = b""
            continue
        oversize = []
        body, rest = chunk[:cut], chunk[cut + 1 :]
        if skipped:
            end, separator, body = body.partition(b"\n")
            skipped.length += len(end)
            oversize.append(skipped)
            skipped = None
            number += 1
            records = body.split(b"\n") if separator else []
        else:
            records = (carry + body).split(b"\n")
            if len(records[0]) > MAX_RECORD_BYTES:
                oversize.append(Oversize(number, records[0][:RAW_BYTES], len(records[0])))
                del records[0]
                number += 1
        carry = rest
        yield _without_blanks(records, number, oversize)
        number += len(records)
    if skipped:
        yield Block([], np.zeros(0, np.int64), [skipped], unfinished=True)
    elif carry.strip():
        yield Block([carry], np.array([number]), unfinished=True)


def _without_blanks(records: list[bytes], number: int, oversize: list[Oversize]) -> Block:
    numbers = np.arange(number, number + len(records))
    if records and min(map(len, records)) <= 2:
        kept = [index for index, record in enumerate(records) if record.strip()]
        records, numbers = [records[index] for index in kept], numbers[kept]
    return Block(records, numbers, oversize)


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
        oversize = []
        if skipped and found:
            skipped.length += int(ends[0]) - len(carry)
            oversize.append(skipped)
            skipped = None
            number += 1
            starts, ends, found = starts[1:], ends[1:], found - 1
        pairs = zip(starts[:found].tolist(), ends[:found].tolist(), strict=True)
        records = [data[start:end] for start, end in pairs]
        if records and len(records[0]) > MAX_RECORD_BYTES:
            oversize.append(Oversize(number, records[0][:RAW_BYTES], len(records[0])))
            del records[0]
            number += 1
        if records or oversize:
            yield Block(records, np.arange(number, number + len(records)), oversize)
            number += len(records)
        carry, skipped = _keep_open_record(data, len(chunk), state, number, skipped)
    yield from _last_value(chunks, carry, state, number, skipped)


def _keep_open_record(
    data: bytes, new: int, state: np.ndarray, number: int, skipped: Oversize | None
) -> tuple[bytes, Oversize | None]:
    """What is carried over: the open record or, if it is too long, two bytes, to see the next begin."""
    start = int(state[scan.START])
    if skipped:
        skipped.length += new
    elif start >= 0 and len(data) - start > MAX_RECORD_BYTES:
        skipped = Oversize(number, data[start : start + RAW_BYTES], len(data) - start)
    if skipped:
        state[scan.START] = 0
        return data[-2:], skipped
    if start < 0:
        return b"", None
    state[scan.START] = 0
    return data[start:], None


def _last_value(
    chunks: Chunks, carry: bytes, state: np.ndarray, number: int, skipped: Oversize | None
) -> Iterator[Block]:
    if skipped:
        yield Block([], np.zeros(0, np.int64), [skipped], unfinished=True)
    elif state[scan.START] >= 0 and carry:
        yield Block([carry], np.array([number]), unfinished=True)
    elif state[scan.IN_ARRAY] and not chunks.broken:
        chunks.trouble.add(
            f"{chunks.name}: the JSON array has no end, at byte {chunks.offset:,} of the content; "
            "what was whole before it is kept"
        )
        chunks.broken = True
