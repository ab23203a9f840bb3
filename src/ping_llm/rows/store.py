"""Random access to the rows of a finished folder.

Opening checks that manifest and index are unchanged and that each shard has its size: 0.15 s for 7 million
rows. Shards are opened at their first read. Many rows are read by one call of a kernel, without the GIL,
which finds the position of each row from the index, reads, checks and decodes it. The source and times of
each row are compared with the index, so that a shard of another folder is detected; `rows verify` finds all
other errors.
"""

import errno
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.rows import codec, riegeli
from ping_llm.rows.block import RowBlock
from ping_llm.rows.manifest import (
    FORMAT_WITH_KINDS,
    FORMAT_WITH_THROUGHPUT,
    RowIndex,
    load_manifest,
    open_index,
)

# Number of files kept open. A call that needs more keeps its files open until it ends.
_MAX_OPEN = 256
_STRIDE = 64


class ShardPositions:
    """The open shards of a folder, and the positions of rows in them. Safe to use from several threads."""

    def __init__(self, files: Sequence[Path], sizes: Sequence[int], rows: Sequence[int], counts: np.ndarray):
        self._files, self._sizes, self._counts = files, sizes, counts
        self._first = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)
        marks = [-(-count // _STRIDE) for count in rows]
        self._first_mark = np.concatenate([[0], np.cumsum(marks, dtype=np.int64)]).astype(np.int64)
        self._marks = np.empty(self._first_mark[-1], np.int64)
        self._descriptors = np.full(len(files), -1, np.int32)
        self._open: OrderedDict[int, None] = OrderedDict()
        self._retired: list[int] = []
        self._users = 0
        self._lock = threading.Lock()
        # This is not __del__, which also runs after a failed __init__ and while the interpreter exits. At
        # exit the system closes the files.
        weakref.finalize(self, _close, self._open, self._descriptors, self._retired).atexit = False

    def file_of(self, row: int) -> Path:
        return self._files[int(np.searchsorted(self._first, row, side="right")) - 1]

    @contextmanager
    def of(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The descriptor, position and measurements of each row. Descriptors stay open inside the block."""
        with self._lock:
            self._users += 1
        try:
            counts = np.empty(len(rows), np.int64)
            descriptors, begins = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
            done = 0
            while done < len(rows):
                done, closed = _locate(
                    rows, done, self._first, self._first_mark, self._marks, self._descriptors, self._counts,
                    descriptors, begins, counts,
                )  # fmt: skip
                if closed >= 0:
                    self._open_shard(closed)
            yield descriptors, begins, counts
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    _close_all(self._retired)

    def _open_shard(self, shard: int) -> None:
        with self._lock:
            if self._descriptors[shard] >= 0:
                return
            self._mark(shard)
            try:
                descriptor = os.open(self._files[shard], os.O_RDONLY)
            except OSError as error:
                if error.errno == errno.EMFILE:
                    raise PingError(
                        f"cannot open {self._files[shard]}: this process may not open more files; "
                        f"`ulimit -n {len(self._files) + 1024}` allows what {len(self._files)} shards need"
                    ) from error
                raise PingError(f"cannot read {self._files[shard]}: {error.strerror}") from error
            self._open[shard] = None
            self._descriptors[shard] = descriptor
            if len(self._open) > _MAX_OPEN:
                oldest, _ = self._open.popitem(last=False)
                # Another thread may be reading from it, so it is closed when no thread reads.
                self._retired.append(int(self._descriptors[oldest]))
                self._descriptors[oldest] = -1

    def _mark(self, shard: int) -> None:
        counts = self._counts[self._first[shard] : self._first[shard + 1]]
        marks = self._marks[self._first_mark[shard] : self._first_mark[shard + 1]]
        end = _fill_marks(counts, marks)
        if not 0 <= end <= self._sizes[shard]:
            raise PingError(
                f"the index has rows beyond the end of {self._files[shard]}, which has "
                f"{self._sizes[shard]:,} bytes; build the rows again"
            )


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _close(shards: OrderedDict[int, None], descriptors: np.ndarray, retired: list[int]) -> None:
    _close_all([int(descriptors[shard]) for shard in shards] + retired)


@kernel
def _following(begin, count):
    """The position of the chunk after that of a row with `count` measurements."""
    return riegeli.chunk_end(begin, riegeli.data_size(8 * codec.record_words(np.int64(count))))


@kernel
def _fill_marks(counts, marks):
    """Fill in the positions of every 64th row. Returns the end of the last row, -1 if a row is empty."""
    begin = np.int64(riegeli.SIGNATURE_END)
    for row in range(len(counts)):
        if counts[row] < 1:
            return np.int64(-1)
        if row % _STRIDE == 0:
            marks[row // _STRIDE] = begin
        begin = _following(begin, counts[row])
    return begin


@kernel
def _locate(rows, done, first, first_mark, marks, open_descriptors, all_counts, descriptors, begins, counts):
    """Fill the last three arrays from index `done` on.

    Returns:
      The number of rows done, and the shard that must be opened to continue, or -1.
    """
    for place in range(done, len(rows)):
        row = rows[place]
        low, high = 0, len(first) - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if first[middle] <= row:
                low = middle
            else:
                high = middle
        if open_descriptors[low] < 0:
            return place, low
        descriptors[place] = open_descriptors[low]
        within = row - first[low]
        begin = marks[first_mark[low] + within // _STRIDE]
        for before in range(row - within % _STRIDE, row):
            begin = _following(begin, all_counts[before])
        begins[place] = begin
        counts[place] = all_counts[row]
    return len(rows), -1


__all__ = ["RowBlock", "RowStore"]

_REASONS = {
    riegeli.TOO_SHORT: "the file ends before it",
    riegeli.BAD_CHUNK: "it is not of the length that the index says",
    riegeli.BAD_HASH: "its checksum differs",
}

_AS_INDEXED, _OTHER_SOURCE, _OTHER_FIRST_TIME, _OTHER_LAST_TIME = range(4)
_DIFFERENCES = {
    _OTHER_SOURCE: "its source differs from the index",
    _OTHER_FIRST_TIME: "its first time differs from the index",
    _OTHER_LAST_TIME: "its last time differs from the index",
}


class RowStore:
    """The rows of one folder. Safe to read from several threads; pickled as its path.

    Args:
      path: The folder.
      check: Whether to compare index and shards with the manifest, and rows with the index. `rows verify`
        does that itself, so that it can report all errors.
    """

    def __init__(self, path: str | Path, *, check: bool = True):
        self.path = Path(path)
        self.manifest: dict[str, Any] = load_manifest(self.path)
        index, shards = self.manifest["index"], self.manifest["shards"]
        self._check = check
        if check:
            self._check_sizes()
        self.index: RowIndex = open_index(self.path / index["file"], index["sha256"] if check else None)
        rows = [shard["rows"] for shard in shards]
        if len(self.index) != sum(rows):
            raise PingError(
                f"{self.path}: index and manifest disagree on the number of rows; build them again"
            )
        self._places = ShardPositions(
            [self.path / shard["file"] for shard in shards],
            [shard["bytes"] for shard in shards],
            rows,
            self.index.counts,
        )

    def _check_sizes(self) -> None:
        for shard in self.manifest["shards"]:
            path = self.path / shard["file"]
            try:
                size = path.stat().st_size
            except OSError as error:
                raise PingError(f"cannot read {path}: {error.strerror}; build the rows again") from error
            if size != shard["bytes"]:
                raise PingError(
                    f"{path} has {size:,} bytes, the manifest says {shard['bytes']:,}; build the rows again"
                )

    def __reduce__(self) -> tuple[type["RowStore"], tuple[Path]]:
        return RowStore, (self.path,)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def counts(self) -> np.ndarray:
        """Number of measurements of each row, int32, memory-mapped."""
        return self.index.counts

    @property
    def ipv4(self) -> np.ndarray:
        """Whether each row's source is IPv4."""
        return self.index.ipv4

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        """The rows with the given numbers, in the given order; repeats are allowed."""
        rows = self._checked(indices)
        with self._places.of(rows) as (descriptors, begins, counts):
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            block = RowBlock.empty(len(rows), int(offsets[-1]))
            block.offsets[:] = offsets
            place, fault, reason = _read(descriptors, begins, counts, offsets, *codec.columns(block))
            if self._check and not (fault or reason):
                index = self.index
                place, difference = _first_difference(
                    rows, offsets, block.src, block.time, index.src, index.first_time, index.last_time
                )
                if difference:
                    raise self._error(int(rows[place]), _DIFFERENCES[difference])
        if fault:
            raise self._error(int(rows[place]), _REASONS[fault])
        if reason:
            raise self._error(int(rows[place]), codec.REASONS[reason])
        if self.manifest["version"] >= FORMAT_WITH_KINDS:
            block.part_kinds(self.manifest["version"] == FORMAT_WITH_THROUGHPUT)
        return block

    def read_records(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """The raw records of the rows, in the given order. For inspection; `read` is faster for many rows."""
        rows = self._checked(indices)
        records = []
        with self._places.of(rows) as places:
            for row, descriptor, begin, count in zip(rows, *places, strict=True):
                size = codec.record_bytes(int(count))
                raw = np.empty(riegeli.chunk_end(begin, riegeli.data_size(size)) - begin, np.uint8)
                chunk = np.empty(riegeli.RECORD_AT + size, np.uint8)
                fault = riegeli.read_chunk(descriptor, begin, size, raw, chunk)
                if fault:
                    raise self._error(int(row), _REASONS[fault])
                records.append(chunk[riegeli.RECORD_AT :].tobytes())
        return records

    def _checked(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        rows = np.asarray(indices, np.int64).ravel()
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            bad = rows[(rows < 0) | (rows >= len(self))][0]
            raise IndexError(f"row {bad} of {self.path}, which has {len(self)}")
        return rows

    def _error(self, row: int, reason: str) -> PingError:
        return PingError(
            f"row {row} in {self._places.file_of(row)} is malformed: {reason}; "
            f"`ping-llm rows verify {self.path}` checks them all"
        )


@kernel
def _read(
    descriptors, begins, counts, offsets, src, time, dst, rtt, msm_id, probe_id, size, errors
):  # fmt: skip
    """Fill the columns. Returns the first bad row, its fault as a chunk, and its fault as a record."""
    most = np.int64(0)
    for row in range(len(counts)):
        most = max(most, counts[row])
    record = 8 * codec.record_words(most)
    raw = np.empty(riegeli.chunk_end(riegeli.BLOCK - 1, riegeli.data_size(record)), np.uint8)
    words = np.empty((riegeli.RECORD_AT + record) // 8, np.int64)
    chunk, words32 = words.view(np.uint8), words.view(np.int32)
    for row in range(len(counts)):
        count = counts[row]
        record = 8 * codec.record_words(count)
        fault = riegeli.read_chunk(descriptors[row], begins[row], record, raw, chunk)
        if fault != riegeli.OK:
            return row, fault, codec.OK
        fault = codec.check_record(words, riegeli.RECORD_AT // 8, count)
        if fault != codec.OK:
            return row, riegeli.OK, fault
        codec.decode_record(
            words, words32, riegeli.RECORD_AT // 8, row, offsets[row], count,
            src, time, dst, rtt, msm_id, probe_id, size, errors,
        )  # fmt: skip
    return 0, riegeli.OK, codec.OK


@kernel
def _first_difference(rows, offsets, src, time, index_src, first_time, last_time):
    """The first row whose source or times differ from the index, and the code of the difference."""
    for place in range(len(rows)):
        row = rows[place]
        for byte in range(16):
            if src[place, byte] != index_src[row, byte]:
                return place, _OTHER_SOURCE
        if time[offsets[place]] != first_time[row]:
            return place, _OTHER_FIRST_TIME
        if time[offsets[place + 1] - 1] != last_time[row]:
            return place, _OTHER_LAST_TIME
    return 0, _AS_INDEXED
