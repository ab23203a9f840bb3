"""Conversion of sorted measurements to one complete shard, with its index and its counts."""

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.files import publish
from ping_llm.measurements.address_kernels import is_ipv4_words
from ping_llm.rows import codec, riegeli
from ping_llm.rows.block import KIND_BITS, THROUGHPUT_BITS
from ping_llm.rows.codec import begin_record, put_measurement
from ping_llm.rows.manifest import FLAG_IPV4, FLAG_OTHER_KINDS, FLAG_THROUGHPUT, RowIndex
from ping_llm.rows.sortable import (
    DST_HIGH,
    DST_LOW,
    MSM_ID,
    PROBE_ID,
    RTT,
    SIZE_ERRORS,
    SRC_HIGH,
    SRC_LOW,
    TIME,
    WORDS,
    content,
    rtt_bits,
)

_local = threading.local()


def reused(name: str, size: int, kind: type[np.generic]) -> np.ndarray:
    """A reusable array of this thread, with its old content. Valid until the next call with the same name."""
    arrays = _local.__dict__
    if name not in arrays or len(arrays[name]) < size or arrays[name].dtype != kind:
        arrays[name] = np.empty(size + size // 4, kind)
    return arrays[name][:size]


class Output:
    """Writes pieces in a background thread: fill `buffer`, call `write`, at the end `close`.

    A disk error is raised by the next call.
    """

    def __init__(self, path: Path):
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, "output")
        self._pending: list[Future[None]] = []
        self._turn = 0

    def buffer(self, size: int) -> np.ndarray:
        """A buffer to fill for the next `write`, one of two; the other may still be written to disk."""
        self._wait(1)
        self._turn ^= 1
        return reused(f"output {self._turn}", size, np.uint8)

    def write(self, piece: bytes | np.ndarray) -> None:
        self._wait(1)
        self._pending.append(self._thread.submit(self._put, piece))

    def close(self) -> str:
        """Wait until everything is written, and close the file. Returns its checksum."""
        try:
            self._wait(0)
        finally:
            self._thread.shutdown()
            self._file.close()
        return self._digest.hexdigest()

    def _wait(self, left: int) -> None:
        while len(self._pending) > left:
            self._pending.pop(0).result()

    def _put(self, piece: bytes | np.ndarray) -> None:
        view = memoryview(piece).cast("B")
        self._digest.update(view)
        while len(view):
            view = view[self._file.write(view) :]


#: Options with which ArrayRecord's own writer writes the same bytes: each record can be read separately.
WRITER_OPTIONS = "group_size:1,uncompressed"
_KIND_MASK = np.uint64((1 << (THROUGHPUT_BITS - KIND_BITS)) - 1)
_CHUNK_WORDS = 1 << 19  # words of records encoded at a time: 4 MiB


@dataclass(frozen=True)
class ShardInfo:
    """The entry of a shard in the manifest."""

    file: str
    rows: int
    measurements: int
    bytes: int
    sha256: str
    content: str  # sum of the hashes of its measurements

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class ShardWriter:
    """Writes one shard from measurements that arrive in order, in blocks of any size.

    The last row, which the next block may continue, is held back; at most one row is held. Use as a context
    manager; `finish` publishes the file, and without it no file remains.
    """

    def __init__(self, path: Path, max_measurements: int, by_probe: bool):
        self._path, self._limit, self._by_probe = path, max_measurements, by_probe
        self._aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._carry = np.empty((0, WORDS), np.uint64)
        self._content = np.zeros(1, np.uint64)
        self._pieces: list[RowIndex] = []
        self._begins: list[np.ndarray] = []
        self._end = riegeli.SIGNATURE_END

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._output = Output(self._aside)
        self._output.write(riegeli.signature())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._output.close()
        except OSError:
            if kind is None:  # otherwise another error is already being raised
                raise
        self._aside.unlink(missing_ok=True)

    def add(self, words: np.ndarray, order: np.ndarray) -> None:
        """Add the measurements words[order], which come after all measurements added before."""
        if len(self._carry):
            words = np.concatenate([self._carry, words[order]])
            order = np.arange(len(words))
            self._carry = np.empty((0, WORDS), np.uint64)
        if len(order) == 0:
            return
        starts = _row_starts(words, order, self._limit, self._by_probe)
        self._write(words, order, starts, len(starts) - 2)
        self._carry = words[order[starts[-2] :]]

    def end_row(self) -> None:
        """End the last row: later measurements start a new one."""
        if len(self._carry):
            order = np.arange(len(self._carry))
            self._write(self._carry, order, np.array([0, len(order)]), 1)
            self._carry = np.empty((0, WORDS), np.uint64)

    def finish(self) -> tuple[ShardInfo, RowIndex]:
        """Write the last row and the end of the file, and publish the file."""
        self.end_row()
        index = _joined(self._pieces)
        begins = np.concatenate([np.empty(0, np.int64), *self._begins])
        self._output.write(riegeli.ending(self._end, begins, _record_sizes(index.counts)))
        checksum = self._output.close()
        publish(self._aside, self._path)
        info = ShardInfo(
            self._path.name,
            len(index),
            int(index.counts.sum(dtype=np.int64)),
            self._path.stat().st_size,
            checksum,
            f"{int(self._content[0]):016x}",
        )
        return info, index

    def _write(self, words: np.ndarray, order: np.ndarray, starts: np.ndarray, rows: int) -> None:
        """Write the first `rows` rows, chunk by chunk."""
        row = 0
        while row < rows:
            ends = _record_ends(starts, row, rows, _CHUNK_WORDS)
            out = reused("records", int(ends[-1]), np.int64)
            piece = _empty_index(len(ends) - 1)
            _encode(
                words, order, starts[row:], ends, out, out.view(np.int32), self._content,
                piece.first_time, piece.last_time, piece.src.view(np.uint64).reshape(-1, 2),
                piece.counts, piece.flags,
            )  # fmt: skip
            self._pieces.append(piece)
            self._frame(out.view(np.uint8), ends * 8)
            row += len(ends) - 1

    def _frame(self, records: np.ndarray, ends: np.ndarray) -> None:
        begin, begins = self._end, np.empty(len(ends) - 1, np.int64)
        self._end = riegeli.framed_end(ends, begin)
        framed = self._output.buffer(self._end - begin)
        chunk = reused("chunk", riegeli.CHUNK_HEADER + 16 + int(np.diff(ends).max()), np.uint8)
        riegeli.frame(records, ends, begin, begin, framed, chunk, begins)
        self._output.write(framed)
        self._begins.append(begins)


def _empty_index(rows: int) -> RowIndex:
    return RowIndex(
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
        np.empty((rows, 16), np.uint8),
        np.empty(rows, np.int32),
        np.empty(rows, np.uint8),
    )


def _joined(pieces: list[RowIndex]) -> RowIndex:
    pieces = pieces or [_empty_index(0)]
    return RowIndex(
        *(
            np.concatenate([getattr(piece, name) for piece in pieces])
            for name in RowIndex.__dataclass_fields__
        )
    )


@kernel
def _record_sizes(counts):
    sizes = np.empty(len(counts), np.int64)
    for row in range(len(counts)):
        sizes[row] = 8 * codec.record_words(np.int64(counts[row]))
    return sizes


@kernel
def _row_starts(words, order, limit, by_probe):
    """The starts of the rows, then the end of the last row."""
    starts = np.empty(len(order) + 1, np.int64)
    rows = 0
    start = 0
    for i in range(len(order)):
        same = i > 0
        if same:
            one, other = order[i], order[i - 1]
            same = (
                words[one, SRC_LOW] == words[other, SRC_LOW]
                and words[one, SRC_HIGH] == words[other, SRC_HIGH]
                and (not by_probe or words[one, PROBE_ID] == words[other, PROBE_ID])
            )
        if not same or i - start == limit:
            starts[rows] = i
            rows += 1
            start = i
    starts[rows] = len(order)
    return starts[: rows + 1].copy()


@kernel
def _record_ends(starts, row, rows, limit):
    """Word offsets of the records of rows [row, …), for all rows that fit in the limit, at least one."""
    ends = np.empty(rows - row + 1, np.int64)
    ends[0] = 0
    count = 0
    while row + count < rows:
        length = codec.record_words(starts[row + count + 1] - starts[row + count])
        if count and ends[count] + length > limit:
            break
        ends[count + 1] = ends[count] + length
        count += 1
    return ends[: count + 1].copy()


@kernel
def _swapped(value):
    """Reverse the bytes of a word."""
    value = ((value & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8)) | (
        (value >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    )
    value = ((value & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16)) | (
        (value >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    )
    return (value << np.uint64(32)) | (value >> np.uint64(32))


@kernel
def _encode(
    words, order, starts, ends, out, out32, total, first_time, last_time, src, counts, flags
):  # fmt: skip
    """Encode rows into `out` at `ends`, fill in their index entries, and add their content to `total`."""
    for row in range(len(ends) - 1):
        begin = starts[row]
        count = starts[row + 1] - begin
        at = ends[row]
        head = order[begin]
        src[row, 0] = _swapped(words[head, SRC_HIGH])
        src[row, 1] = _swapped(words[head, SRC_LOW])
        counts[row] = count
        flags[row] = FLAG_IPV4 if is_ipv4_words(words[head, SRC_HIGH], words[head, SRC_LOW]) else 0
        first_time[row] = np.int64(words[head, TIME])
        last_time[row] = np.int64(words[order[begin + count - 1], TIME])
        body = begin_record(out, at, count, np.int64(src[row, 0]), np.int64(src[row, 1]))
        for i in range(count):
            one = order[begin + i]
            total[0] += content(words, one)
            both = words[one, SIZE_ERRORS]
            if both >> np.uint64(32 + KIND_BITS):
                if (both >> np.uint64(32 + KIND_BITS)) & _KIND_MASK:
                    flags[row] |= FLAG_OTHER_KINDS
                if both >> np.uint64(32 + THROUGHPUT_BITS):
                    flags[row] |= FLAG_THROUGHPUT
            put_measurement(
                out, out32, body, count, i,
                np.int64(words[one, TIME]),
                np.int64(_swapped(words[one, DST_HIGH])),
                np.int64(_swapped(words[one, DST_LOW])),
                np.int64(rtt_bits(words[one, RTT])),
                np.int64(words[one, MSM_ID]) - 1,
                np.int64(words[one, PROBE_ID]) - 1,
                np.int32(np.int64(both >> np.uint64(32)) - 1),
                np.int32(np.int64(both & np.uint64(0xFFFFFFFF)) - 1),
            )  # fmt: skip
