"""Random access to the rows of a finished folder.

Opening costs a manifest and a mapping; shards are opened when first read. Many rows are read by one call of a
kernel, without the GIL: it knows the place of each from the index, reads, checks and decodes it.
"""

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
from ping_llm.rows.places import Places

__all__ = ["RowBlock", "RowStore"]

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
        rows = [shard["rows"] for shard in shards]
        if len(self.index) != sum(rows):
            raise PingError(
                f"{self.path}: index and manifest disagree on the number of rows; build them again"
            )
        self._places = Places(
            [self.path / shard["file"] for shard in shards],
            [shard["bytes"] for shard in shards],
            rows,
            self.index.counts,
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
        rows = self._checked(indices)
        with self._places.of(rows) as (descriptors, begins, counts):
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            block = RowBlock.empty(len(rows), int(offsets[-1]))
            block.offsets[:] = offsets
            place, fault, reason = _read(descriptors, begins, counts, offsets, *codec.columns(block))
        if fault:
            raise self._error(int(rows[place]), _REASONS[fault])
        if reason:
            raise self._error(int(rows[place]), codec.REASONS[reason])
        return block

    def read_records(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """The raw records of the rows, in the order given. For looking at them: `read` is made for many."""
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
