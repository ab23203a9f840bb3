"""Where every row lies: which file, opened when first needed, and at which position of it.

The length of a record follows from its number of measurements, so positions are sums over the index. Every
64th is remembered: an eighth of a byte a row, filled when a file is opened.
"""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.rows import codec, riegeli

# Files kept open. A call may need more: it holds what it uses.
_MAX_OPEN = 256
_STRIDE = 64


class Places:
    """The shards of a folder. Safe to use from several threads."""

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

    def file_of(self, row: int) -> Path:
        return self._files[int(np.searchsorted(self._first, row, side="right")) - 1]

    @contextmanager
    def of(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Descriptor, position and measurements of each row. The descriptors are open inside the block."""
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
                    self._close_retired()

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
                # Somebody may be reading from it: it is closed when nobody reads.
                self._retired.append(int(self._descriptors[oldest]))
                self._descriptors[oldest] = -1

    def _mark(self, shard: int) -> None:
        counts = self._counts[self._first[shard] : self._first[shard + 1]]
        marks = self._marks[self._first_mark[shard] : self._first_mark[shard + 1]]
        end = _fill_marks(counts, marks)
        if not 0 <= end <= self._sizes[shard]:
            raise PingError(
                f"the index says more of {self._files[shard]} than its {self._sizes[shard]:,} bytes hold; "
                "build the rows again"
            )

    def _close_retired(self) -> None:
        while self._retired:
            os.close(self._retired.pop())

    def __del__(self) -> None:
        for shard in self._open:
            os.close(int(self._descriptors[shard]))
        self._close_retired()


@kernel
def _following(begin, count):
    """Where the chunk after that of a row with `count` measurements begins."""
    return riegeli.chunk_end(begin, riegeli.data_size(8 * codec.record_words(np.int64(count))))


@kernel
def _fill_marks(counts, marks):
    """Positions of every 64th row. Returns where the last one ends, -1 if a row has no measurements."""
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
    """Fill the last three from place `done` on.

    Returns:
      how many are done, and the shard that must be opened to go on, or -1.
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
