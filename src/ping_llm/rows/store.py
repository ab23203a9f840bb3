"""Random access to the rows of a finished folder.

Opening costs a manifest and a mapping; shards are opened when first read. Many rows are read by one call of a
kernel, without the GIL: it knows the place of each from the index, reads, checks and decodes it.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.rows import codec, riegeli
from ping_llm.rows.block import RowBlock
from ping_llm.rows.index import RowIndex, open_index
from ping_llm.rows.manifest import load_manifest

__all__ = ["RowBlock", "RowStore"]

# Each open shard holds a descriptor and 8 bytes a row; most systems allow 1,024 descriptors.
_MAX_OPEN_SHARDS = 256
_REASONS = {
    riegeli.TOO_SHORT: "the file ends before it",
    riegeli.BAD_CHUNK: "it is not of the length that the index says",
    riegeli.BAD_HASH: "its checksum differs",
}


class RowStore:
    """The rows of one folder. Safe to read from several threads; pickles as its path."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.manifest: dict[str, Any] = load_manifest(self.path)
        self.index: RowIndex = open_index(self.path / self.manifest["index"]["file"])
        shards = self.manifest["shards"]
        self._files = [self.path / shard["file"] for shard in shards]
        self._ends = np.cumsum([shard["rows"] for shard in shards], dtype=np.int64)
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        self._lock = threading.Lock()
        if len(self.index) != (self._ends[-1] if len(shards) else 0):
            raise PingError(
                f"{self.path}: index and manifest disagree on the number of rows; build them again"
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
        """Measurements of each row, int32, mapped."""
        return self.index.counts

    @property
    def ipv4(self) -> np.ndarray:
        """Whether each row's source is IPv4."""
        return self.index.ipv4

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        """The rows with these numbers, in the order given, repeats allowed."""
        rows = np.asarray(indices, np.int64).ravel()
        shards, descriptors, begins, counts = self._places(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        block = RowBlock.empty(len(rows), int(offsets[-1]))
        block.offsets[:] = offsets
        place, fault, reason = _read(descriptors, begins, counts, offsets, *codec.columns(block))
        del shards  # held until now, lest one be closed
        if fault:
            raise self._error(int(rows[place]), _REASONS[fault])
        if reason:
            raise self._error(int(rows[place]), codec.REASONS[reason])
        return block

    def read_records(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """The raw records of the rows, in the order given. For looking at them: `read` is made for many."""
        rows = np.asarray(indices, np.int64).ravel()
        shards, descriptors, begins, counts = self._places(rows)
        records = []
        for row, descriptor, begin, count in zip(rows, descriptors, begins, counts, strict=True):
            size = codec.record_bytes(int(count))
            end = riegeli.chunk_end(begin, riegeli.data_size(size))
            chunk = np.empty(riegeli.RECORD_AT + size, np.uint8)
            fault = riegeli.read_chunk(descriptor, begin, size, np.empty(end - begin, np.uint8), chunk)
            if fault:
                raise self._error(int(row), _REASONS[fault])
            records.append(chunk[riegeli.RECORD_AT :].tobytes())
        del shards
        return records

    def _places(self, rows: np.ndarray) -> tuple[list["_Shard"], np.ndarray, np.ndarray, np.ndarray]:
        """The shards of rows; and of each row its descriptor, the position of its chunk, its measurements."""
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            bad = rows[(rows < 0) | (rows >= len(self))][0]
            raise IndexError(f"row {bad} of {self.path}, which has {len(self)}")
        numbers = np.searchsorted(self._ends, rows, side="right")
        descriptors, begins = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
        shards = []
        for number in np.unique(numbers).tolist():
            shards.append(self._shard(number))
            mine = np.flatnonzero(numbers == number)
            descriptors[mine] = shards[-1].descriptor
            begins[mine] = shards[-1].begins[rows[mine] - self._first_row(number)]
        return shards, descriptors, begins, self.index.counts[rows].astype(np.int64)

    def _first_row(self, shard: int) -> int:
        return int(self._ends[shard - 1]) if shard else 0

    def _error(self, row: int, reason: str) -> PingError:
        file = self._files[int(np.searchsorted(self._ends, row, side="right"))]
        return PingError(
            f"row {row} in {file} is malformed: {reason}; `ping-llm rows verify {self.path}` checks them all"
        )

    def _shard(self, number: int) -> "_Shard":
        with self._lock:
            shard = self._shards.get(number)
            if shard is None:
                counts = self.index.counts[self._first_row(number) : self._ends[number]]
                shard = _Shard(self._files[number], self.manifest["shards"][number]["bytes"], counts)
                self._shards[number] = shard
                while len(self._shards) > _MAX_OPEN_SHARDS:
                    # Dropped, not closed: another thread may be reading from it.
                    self._shards.popitem(last=False)
            else:
                self._shards.move_to_end(number)
            return shard


class _Shard:
    """An open file, and where the chunks of its rows begin. Closed when nobody holds it any more."""

    def __init__(self, path: Path, size: int, counts: np.ndarray):
        self.descriptor = -1
        self.begins = np.empty(len(counts) + 1, np.int64)
        if not _fill_begins(counts, self.begins) or self.begins[-1] > size:
            raise PingError(
                f"the index says more of {path} than its {size:,} bytes hold; build the rows again"
            )
        try:
            self.descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise PingError(f"cannot read {path}: {error.strerror}") from error

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


@kernel
def _fill_begins(counts, begins):
    """Where each chunk begins, and the last one ends. False if a row has no measurements."""
    begins[0] = riegeli.SIGNATURE_END
    for row in range(len(counts)):
        if counts[row] < 1:
            return False
        size = 8 * codec.record_words(np.int64(counts[row]))
        begins[row + 1] = riegeli.chunk_end(begins[row], riegeli.data_size(size))
    return True


@kernel
def _read(
    descriptors, begins, counts, offsets, src, time, dst, rtt, msm_id, probe_id, size, errors
):  # fmt: skip
    """Fill the columns. Returns the first bad row, and its fault as a chunk or as a record."""
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
