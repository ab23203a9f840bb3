"""Measurements as NumPy columns: what every method of the evaluation learns from and is asked about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ping_llm import addresses
from ping_llm.errors import PingError
from ping_llm.schema import NO_REPLY


@dataclass(frozen=True)
class Queries:
    """What a method is told of the measurements it has to predict: everything but the result."""

    time: np.ndarray  # int64 [n], µs since 1970
    src: np.ndarray  # uint8 [n, 16]
    dst: np.ndarray  # uint8 [n, 16]

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: np.ndarray | slice) -> "Queries":
        return Queries(self.time[index], self.src[index], self.dst[index])


@dataclass(frozen=True)
class Columns:
    """Measurements with their results."""

    time: np.ndarray  # int64 [n], µs since 1970
    src: np.ndarray  # uint8 [n, 16], packed as ping_llm.addresses does
    dst: np.ndarray  # uint8 [n, 16]
    rtt: np.ndarray  # float64 [n], ms; NO_REPLY where there was none

    def __len__(self) -> int:
        return len(self.time)

    @property
    def replied(self) -> np.ndarray:
        return self.rtt != NO_REPLY

    def take(self, index: np.ndarray | slice) -> "Columns":
        return Columns(self.time[index], self.src[index], self.dst[index], self.rtt[index])

    def queries(self) -> Queries:
        return Queries(self.time, self.src, self.dst)

    def sorted_by_time(self) -> "Columns":
        return self.take(np.argsort(self.time, kind="stable"))

    @classmethod
    def empty(cls) -> Self:
        none = np.zeros((0, 16), np.uint8)
        return cls(np.zeros(0, np.int64), none, none, np.zeros(0))

    @classmethod
    def concatenate(cls, parts: Sequence["Columns"]) -> Self:
        return cls(
            *(np.concatenate([getattr(p, name) for p in parts]) for name in ("time", "src", "dst", "rtt"))
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Columns of a table with the measurements' schema (event_time, src_addr, dst_addr, rtt)."""
        packed = []
        for name in ("src_addr", "dst_addr"):
            values, valid = addresses.pack(table[name].combine_chunks())
            if not valid.all():
                row = int(np.flatnonzero(~valid)[0])
                raise PingError(f"row {row}: {name} {table[name][row]} is not an IP address")
            packed.append(values)
        time = pc.cast(table["event_time"], pa.timestamp("us", tz="UTC")).cast(pa.int64())
        return cls(time.to_numpy(), packed[0], packed[1], table["rtt"].cast(pa.float64()).to_numpy())


def read_measurements(path: Path) -> Columns:
    """Read a Parquet file, or every Parquet file below a folder, ordered by time."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    # Ingest puts what it rejected beside the measurements; names with _ or . are other programs' notes.
    files = [
        file
        for file in files
        if not any(part == "rejects" or part[0] in "_." for part in file.relative_to(path).parts)
    ]
    if not path.exists() or not files:
        raise PingError(
            f"{path}: no Parquet files here; `ping-llm ingest` or `ping-llm simulate` writes them"
        )
    try:
        table = ds.dataset(files, format="parquet").to_table(
            columns=["event_time", "src_addr", "dst_addr", "rtt"]
        )
    except (pa.ArrowInvalid, KeyError) as error:
        raise PingError(f"{path}: not a table of measurements: {error}") from None
    return Columns.from_table(table).sorted_by_time()
