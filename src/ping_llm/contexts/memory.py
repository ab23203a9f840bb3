"""Rows held in memory: what small data and tests are drawn from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from ping_llm.addresses import is_ipv4
from ping_llm.rows.block import MEASUREMENT_COLUMNS, RowBlock
from ping_llm.rows.index import FLAG_IPV4, RowIndex


@dataclass(frozen=True)
class MemoryRows:
    """A block as a store: the same interface as rows.store.RowStore, as far as contexts need it."""

    block: RowBlock

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(b"memory rows 1")
        for field in fields(self.block):
            digest.update(np.ascontiguousarray(getattr(self.block, field.name)))
        return digest.hexdigest()

    @cached_property
    def index(self) -> RowIndex:
        offsets = self.block.offsets
        return RowIndex(
            first_time=self.block.time[offsets[:-1]],
            last_time=self.block.time[offsets[1:] - 1],
            src=self.block.src,
            counts=np.diff(offsets).astype(np.int32),
            flags=(is_ipv4(self.block.src) * FLAG_IPV4).astype(np.uint8),
        )

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        rows = np.asarray(indices, np.int64)
        counts = np.diff(self.block.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(self.block.offsets[rows] - offsets[:-1], counts)
        columns = {name: getattr(self.block, name)[places] for name in MEASUREMENT_COLUMNS}
        return RowBlock(self.block.src[rows], offsets, **columns)
