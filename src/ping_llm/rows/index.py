"""The index: what planning needs to know of every row, mapped, so that nobody reads the shards to plan.

One little-endian file: a header of 64 bytes (magic, rows), then one array after another, each for all rows.
7 million rows take 259 MB on disk, and opening them costs a mapping.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ping_llm.errors import PingError
from ping_llm.files import whole_file

MAGIC = b"PINGROWS-INDEX-1"
HEADER_BYTES = 64
FLAG_IPV4 = 1

# Widest first, so that every array is aligned.
COLUMNS: tuple[tuple[str, np.dtype], ...] = (
    ("first_time", np.dtype("<i8")),
    ("last_time", np.dtype("<i8")),
    ("src", np.dtype((np.uint8, 16))),
    ("counts", np.dtype("<i4")),
    ("flags", np.dtype("u1")),
)
ROW_BYTES = sum(kind.itemsize for _, kind in COLUMNS)


@dataclass(frozen=True)
class RowIndex:
    """Arrays of one value a row, in the order of the records."""

    first_time: np.ndarray  # int64, microseconds
    last_time: np.ndarray  # int64
    src: np.ndarray  # uint8 [R, 16]
    counts: np.ndarray  # int32, measurements
    flags: np.ndarray  # uint8, bit 0: IPv4

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def ipv4(self) -> np.ndarray:
        return (self.flags & FLAG_IPV4).astype(bool)


def open_index(path: Path) -> RowIndex:
    """Map an index file; only its header is read."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise PingError(f"cannot read the row index {path}: {error}; build the rows again") from error
    rows = int.from_bytes(header[16:24], "little")
    if header[:16] != MAGIC or size != HEADER_BYTES + rows * ROW_BYTES:
        raise PingError(f"{path} is not a whole row index (version 1); build the rows again")
    arrays = {}
    start = HEADER_BYTES
    mapped = np.memmap(path, np.uint8, "r")
    for name, kind in COLUMNS:
        end = start + rows * kind.itemsize
        base = kind.base if kind.subdtype else kind
        arrays[name] = mapped[start:end].view(base).reshape((rows, *kind.shape))
        start = end
    return RowIndex(**arrays)


def write_index(path: Path, pieces: Sequence[RowIndex]) -> None:
    """Write the rows of all pieces, in order, as one whole file. Pieces may be mapped: they are streamed."""
    with whole_file(path) as aside, aside.open("wb") as file:
        _write(file, pieces)


def _write(file: BinaryIO, pieces: Sequence[RowIndex]) -> None:
    rows = sum(map(len, pieces))
    file.write((MAGIC + rows.to_bytes(8, "little")).ljust(HEADER_BYTES, b"\0"))
    for name, kind in COLUMNS:
        base = kind.base if kind.subdtype else kind
        for piece in pieces:
            file.write(np.ascontiguousarray(getattr(piece, name), base).tobytes())
