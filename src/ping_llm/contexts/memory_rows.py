"""Rows in memory, and `network_parquet`: rows made in memory from a table of measurements, for small data.

They take 80 bytes of memory per measurement, and nothing is written. For more than about ten million
measurements, build rows instead.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from ping_llm.errors import PingError
from ping_llm.measurements.addresses import is_ipv4
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.parquet import open_input, read_measurements
from ping_llm.measurements.schema import THROUGHPUT
from ping_llm.measurements.throughput_kernels import stored_codes
from ping_llm.rows.block import MEASUREMENT_COLUMNS, RowBlock
from ping_llm.rows.manifest import FLAG_IPV4, FLAG_OTHER_KINDS, FLAG_THROUGHPUT, RowIndex


@dataclass(frozen=True)
class MemoryRows:
    """A block of rows with the part of the interface of rows.store.RowStore that contexts need."""

    block: RowBlock

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(b"memory rows 1")
        for field in fields(self.block):
            if field.name in ("kind", "throughput") and not getattr(self.block, field.name).any():
                continue  # keeps the fingerprints of rows from before these columns existed
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
            flags=(
                is_ipv4(self.block.src) * FLAG_IPV4
                + self.block.has_other_kinds() * FLAG_OTHER_KINDS
                + self.block.has_throughput() * FLAG_THROUGHPUT
            ).astype(np.uint8),
        )

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        rows = np.asarray(indices, np.int64)
        counts = np.diff(self.block.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(self.block.offsets[rows] - offsets[:-1], counts)
        columns = {name: getattr(self.block, name)[places] for name in MEASUREMENT_COLUMNS}
        return RowBlock(self.block.src[rows], offsets, **columns)


#: Largest number of measurements, 80 bytes each: 4 GB.
MAX_MEASUREMENTS = 50_000_000


def rows_of_parquet(path: str | Path) -> MemoryRows:
    """Read measurements as one row per source, in time order; sources are in the order of their bytes."""
    count = open_input([path]).rows
    if not 0 < count <= MAX_MEASUREMENTS:
        raise PingError(
            f"{path} has {count:,} measurements; network_parquet takes 1 to {MAX_MEASUREMENTS:,}: "
            f"build rows (`ping-llm rows build {path} --out DIR`) and use probe_chunks"
        )
    return rows_of_columns(read_measurements(path, every_column=True))


def rows_of_columns(columns: Columns) -> MemoryRows:
    """Make rows of measurements in memory: one row per source."""
    numbers = {name: columns.column(name) for name in _NUMBERS}
    numbers["throughput"] = stored_codes(columns.column(THROUGHPUT))
    return MemoryRows(_sorted(columns.src, columns.dst, columns.time, columns.rtt, numbers))


_NUMBERS = ("msm_id", "probe_id", "size", "packet_error_count", "kind")


def _sorted(
    src: np.ndarray, dst: np.ndarray, time: np.ndarray, rtt: np.ndarray, numbers: dict[str, np.ndarray]
) -> RowBlock:
    # Sort by all columns, so that the result does not depend on the order of the files.
    words = np.ascontiguousarray(src).view(">u8").reshape(-1, 2)
    to = np.ascontiguousarray(dst).view(">u8").reshape(-1, 2)
    keys = (*reversed(list(numbers.values())), rtt, to[:, 1], to[:, 0], time, words[:, 1], words[:, 0])
    order = np.lexsort(keys)
    sorted_src = words[order]
    begins = np.flatnonzero(np.r_[True, (sorted_src[1:] != sorted_src[:-1]).any(axis=1)])
    counts = np.diff(np.r_[begins, len(order)])
    return RowBlock.from_columns(
        src[order][begins],
        counts,
        time[order],
        dst[order],
        rtt[order],
        **{name: values[order] for name, values in numbers.items()},
    )
