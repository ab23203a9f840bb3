"""Conversion between a probe row and the bytes of its record.

A record is an Arrow IPC record batch message without its schema. All columns have a fixed width and none is
nullable, so the layout depends only on the number n of measurements: 70 header words of 8 bytes, then the
body. The kernels write and check this layout directly, at memory speed; pyarrow.ipc, which takes about 20 µs
per row, is the reference in the tests; `to_arrow` reads a record with it.

A reader accepts only the exact headers that the writer makes: every header word is compared, so a malformed
record cannot cause access out of bounds.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.rows.block import RowBlock

_MEASUREMENT = pa.struct(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("dst", pa.binary(16), nullable=False),
        pa.field("rtt", pa.float64(), nullable=False),
        pa.field("msm_id", pa.int64(), nullable=False),
        pa.field("probe_id", pa.int64(), nullable=False),
        pa.field("size", pa.int32(), nullable=False),
        pa.field("packet_error_count", pa.int32(), nullable=False),
    ]
)
ROW_SCHEMA = pa.schema(
    [
        pa.field("src", pa.binary(16), nullable=False),
        pa.field("measurements", pa.list_(pa.field("item", _MEASUREMENT, nullable=False)), nullable=False),
    ]
)

#: Schema of versions 2 and 3: the same bytes, with a different meaning of one column (see block.KIND_BITS).
ROW_SCHEMA_WITH_KINDS = pa.schema(
    [
        ROW_SCHEMA.field("src"),
        pa.field(
            "measurements",
            pa.list_(
                pa.field(
                    "item",
                    pa.struct(
                        [
                            field.with_name("size_and_kind") if field.name == "size" else field
                            for field in _MEASUREMENT
                        ]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)

# The header of n = 0: the prefix and flatbuffer that Arrow writes, as little-endian words. docs/formats.md
# gives the meaning of each; _header_word computes those that depend on n.
HEADER_WORDS = 70
_TEMPLATE = np.zeros(HEADER_WORDS, np.int64)
_TEMPLATE[:11] = [
    0x00000228_FFFFFFFF, 0x14, 0x00050006_0016000C, 0x0000000C_000C0008, 0x00000018_00040300, 0,
    0x000C0018_000A0000, 0x0000000A_00080004, 0x00000010_0000014C, 1, 0x00000013_00000000,
]  # fmt: skip
_TEMPLATE[49] = 10 << 32  # the number of field nodes, in the upper half of the word

# Fixed part of the body: src (16 bytes) and the two int32 offsets of the list.
_FIXED_WORDS = 3
_MAX_COUNT = 2**31 - 1

OK, _TOO_SHORT, _BAD_LENGTH, _BAD_HEADER, _BAD_OFFSETS = range(5)
REASONS = {
    _TOO_SHORT: "it is shorter than any record",
    _BAD_LENGTH: "its length does not fit its number of measurements",
    _BAD_HEADER: "its header is not that of a probe row",
    _BAD_OFFSETS: "its list offsets are wrong",
}


class MalformedRowError(PingError):
    """A record that is not a probe row. `index` is its index among the given records."""

    def __init__(self, index: int, reason: str):
        super().__init__(f"record {index} is malformed: {reason}")
        self.index, self.reason = index, reason


def record_bytes(count: int) -> int:
    """Length of the record of a row with `count` measurements."""
    return 8 * record_words(count)


def max_measurements(limit_bytes: int) -> int:
    """The largest number of measurements whose record takes at most `limit_bytes`."""
    count = max(0, (limit_bytes - 8 * (HEADER_WORDS + _FIXED_WORDS)) // 56)
    return count if record_bytes(count) <= limit_bytes else count - 1


def encode(block: RowBlock) -> list[bytes]:
    """The records of all rows of a block. A row has at least one measurement."""
    counts = np.diff(block.offsets)
    if len(counts) and (counts.min() < 1 or counts.max() > _MAX_COUNT):
        raise ValueError("a row has from 1 to 2^31 - 1 measurements")
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum([record_words(count) for count in counts.tolist()], out=starts[1:])
    words = np.empty(starts[-1], np.int64)
    _encode(
        _words(block.src),
        block.offsets,
        block.time,
        _words(block.dst),
        block.rtt.view(np.int64),
        block.msm_id,
        block.probe_id,
        block.size_and_kind(),
        block.packet_error_count,
        starts,
        words,
        words.view(np.int32),
    )
    buffer = memoryview(words.view(np.uint8))
    ends = (starts * 8).tolist()
    return [bytes(buffer[begin:end]) for begin, end in pairwise(ends)]


def decode(records: Sequence[bytes]) -> RowBlock:
    """Decode many records to rows. For versions 2 and 3, call `RowBlock.part_kinds` afterwards.

    Raises:
      MalformedRowError: names the first record that does not have the layout that `encode` writes.
    """
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    if (lengths % 8).any():
        raise MalformedRowError(int(np.flatnonzero(lengths % 8)[0]), REASONS[_BAD_LENGTH])
    words = np.frombuffer(b"".join(records), np.int64)
    starts = np.zeros(len(records) + 1, np.int64)
    np.cumsum(lengths // 8, out=starts[1:])
    offsets = np.zeros(len(records) + 1, np.int64)
    index, fault = _check(words, starts, offsets)
    if fault != OK:
        raise MalformedRowError(index, REASONS[fault])
    block = RowBlock.empty(len(records), int(offsets[-1]))
    block.offsets[:] = offsets
    _decode(words, words.view(np.int32), starts, offsets, *columns(block))
    return block


def to_arrow(record: bytes) -> pa.RecordBatch:
    """Read a record with Arrow: zero-copy, and independent of the kernels in this module."""
    return pa.ipc.read_record_batch(pa.py_buffer(record), ROW_SCHEMA)


def columns(block: RowBlock) -> tuple[np.ndarray, ...]:
    """The columns of a block in the form that `decode_record` fills, before `RowBlock.part_kinds`."""
    return (
        _words(block.src),
        block.time,
        _words(block.dst),
        block.rtt.view(np.int64),
        block.msm_id,
        block.probe_id,
        block.size,
        block.packet_error_count,
    )


def _words(addresses: np.ndarray) -> np.ndarray:
    """A view of uint8 [n, 16] as int64 [n, 2], with the same order of bytes."""
    return np.ascontiguousarray(addresses).view(np.int64).reshape(-1, 2)


@kernel
def record_words(count):
    half = (count + 1) // 2  # an int32 column, padded to 8 bytes
    return HEADER_WORDS + _FIXED_WORDS + 6 * count + 2 * half


@kernel
def begin_record(out, at, count, src_high, src_low):
    """Write a record of `count` measurements, except its columns, at out[at:].

    Returns the position where the columns begin, for `put_measurement`.
    """
    for word in range(HEADER_WORDS):
        out[at + word] = _header_word(word, count)
    out[at + HEADER_WORDS] = src_high
    out[at + HEADER_WORDS + 1] = src_low
    out[at + HEADER_WORDS + 2] = count << 32  # list offsets 0 and count
    body = at + HEADER_WORDS + _FIXED_WORDS
    half = (count + 1) // 2
    out[body + 6 * count + half - 1] = 0  # the padding of an odd count
    out[body + 6 * count + 2 * half - 1] = 0
    return body


@kernel
def put_measurement(
    out, out32, body, count, i, time, dst_high, dst_low, rtt, msm_id, probe_id, size, errors
):  # fmt: skip
    """Write the i-th of `count` measurements of a record whose columns begin at out[body]."""
    out[body + i] = time
    out[body + count + 2 * i] = dst_high
    out[body + count + 2 * i + 1] = dst_low
    out[body + 3 * count + i] = rtt
    out[body + 4 * count + i] = msm_id
    out[body + 5 * count + i] = probe_id
    sizes = 2 * (body + 6 * count)
    out32[sizes + i] = size
    out32[sizes + 2 * ((count + 1) // 2) + i] = errors


@kernel
def _header_word(word, count):
    half = (count + 1) // 2
    if word == 5:  # length of the body
        return 8 * (_FIXED_WORDS + 6 * count + 2 * half)
    if 11 <= word < 49:  # 19 buffers: (start, length) in bytes
        return _buffer_word((word - 11) // 2, (word - 11) % 2, count, half)
    if word >= 50:  # 10 field nodes: (length, nulls)
        node = (word - 50) // 2
        if (word - 50) % 2 == 1:
            return 0
        return 1 if node < 2 else count
    return _TEMPLATE[word]


@kernel
def _buffer_word(buffer, part, count, half):
    """The start or length of a buffer. Arrow's order is src (validity, data), list (validity, offsets),
    struct (validity), then (validity, data) of each column. Validity is not stored: its length is 0."""
    if buffer == 0:
        return 0
    if buffer == 1:
        return 16 if part == 1 else 0
    if buffer == 2:
        return 0 if part == 1 else 16
    if buffer == 3:
        return 8 if part == 1 else 16
    if buffer == 4:
        return 0 if part == 1 else 24
    column = (buffer - 5) // 2
    if part == 1:
        if (buffer - 5) % 2 == 0:
            return 0
        if column == 1:
            return 16 * count
        return 8 * count if column < 5 else 4 * count
    start = 24  # offset of the column in the body
    if column > 0:
        start += 8 * count
    if column > 1:
        start += 16 * count
    if column > 2:
        start += 8 * count
    if column > 3:
        start += 8 * count
    if column > 4:
        start += 8 * count
    if column > 5:
        start += 8 * half
    return start


@kernel
def _encode(src, offsets, time, dst, rtt, msm_id, probe_id, size, errors, starts, out, out32):
    for row in range(len(src)):
        begin = offsets[row]
        count = offsets[row + 1] - begin
        at = starts[row]
        body = begin_record(out, at, count, src[row, 0], src[row, 1])
        for i in range(begin, begin + count):
            put_measurement(
                out, out32, body, count, i - begin,
                time[i], dst[i, 0], dst[i, 1], rtt[i], msm_id[i], probe_id[i], size[i], errors[i],
            )  # fmt: skip


@kernel
def _check(words, starts, offsets):
    """Compare every header with the one that the writer makes; fill the offsets. Returns (row, fault)."""
    for row in range(len(starts) - 1):
        at = starts[row]
        length = starts[row + 1] - at
        if length < HEADER_WORDS + _FIXED_WORDS + 8:
            return row, _TOO_SHORT
        count = words[at + 54]  # length of the struct's node
        if count < 1 or count > _MAX_COUNT or record_words(count) != length:
            return row, _BAD_LENGTH
        fault = check_record(words, at, count)
        if fault != OK:
            return row, fault
        offsets[row + 1] = offsets[row] + count
    return 0, OK


@kernel
def check_record(words, at, count):
    """Check header and list offsets of a record of `count` measurements at words[at:]: OK or a fault."""
    for word in range(HEADER_WORDS):
        if words[at + word] != _header_word(word, count):
            return _BAD_HEADER
    if words[at + HEADER_WORDS + 2] != count << 32:
        return _BAD_OFFSETS
    return OK


@kernel
def _decode(words, words32, starts, offsets, src, time, dst, rtt, msm_id, probe_id, size, errors):
    for row in range(len(src)):
        decode_record(
            words, words32, starts[row], row, offsets[row], offsets[row + 1] - offsets[row],
            src, time, dst, rtt, msm_id, probe_id, size, errors,
        )  # fmt: skip


@kernel
def decode_record(
    words, words32, at, row, begin, count, src, time, dst, rtt, msm_id, probe_id, size, errors
):  # fmt: skip
    """Copy a record at words[at:] to source `row` and to [begin, begin + count) of the columns."""
    at += HEADER_WORDS
    src[row, 0] = words[at]
    src[row, 1] = words[at + 1]
    body = at + _FIXED_WORDS
    half = (count + 1) // 2
    for i in range(count):
        time[begin + i] = words[body + i]
    for i in range(count):
        dst[begin + i, 0] = words[body + count + 2 * i]
        dst[begin + i, 1] = words[body + count + 2 * i + 1]
    for i in range(count):
        rtt[begin + i] = words[body + 3 * count + i]
    for i in range(count):
        msm_id[begin + i] = words[body + 4 * count + i]
    for i in range(count):
        probe_id[begin + i] = words[body + 5 * count + i]
    sizes = 2 * (body + 6 * count)
    for i in range(count):
        size[begin + i] = words32[sizes + i]
    for i in range(count):
        errors[begin + i] = words32[sizes + 2 * half + i]
