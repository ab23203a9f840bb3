"""The files beside the shards: `manifest.json`, and the index with source, times and length of each row."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ping_llm.errors import PingError
from ping_llm.files import whole_file

FORMAT = "ping-llm probe rows"
#: Format versions. Version 2 is written if a measurement is not a ping, version 3 if one has a throughput;
#: except for these they are read like version 1.
FORMAT_VERSION, FORMAT_WITH_KINDS, FORMAT_WITH_THROUGHPUT = 1, 2, 3
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.bin"


def shard_name(part: int, parts: int) -> str:
    return f"rows-{part:05d}-of-{parts:05d}.arrayrecord"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(options: dict[str, Any], shard_checksums: Sequence[str], index_checksum: str) -> str:
    """A hash of the content of a dataset, equal exactly if its bytes are equal."""
    described = json.dumps([FORMAT_VERSION, options, list(shard_checksums), index_checksum], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own checksum added."""
    return manifest | {"checksum": hashlib.sha256(manifest_bytes(manifest | {"checksum": ""})).hexdigest()}


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The bytes of manifest.json, as `files.write_json` writes them."""
    return (json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def load_manifest(directory: Path) -> dict[str, Any]:
    """Read and check manifest.json.

    Raises:
      PingError: the manifest is missing, has an unknown version, or was changed after it was written.
    """
    path = directory / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise PingError(_missing(directory)) from None
    except (OSError, ValueError) as error:
        raise PingError(f"cannot read {path}: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PingError(f"{path} does not describe probe rows; give a folder that `ping-llm rows build` made")
    if manifest.get("version") not in (FORMAT_VERSION, FORMAT_WITH_KINDS, FORMAT_WITH_THROUGHPUT):
        raise PingError(
            f"{path} has format version {manifest.get('version')}, this program reads {FORMAT_VERSION} to "
            f"{FORMAT_WITH_THROUGHPUT}; build the rows again"
        )
    # The first versions of this program wrote no checksum.
    if "checksum" in manifest and not _is_sealed(manifest):
        raise PingError(
            f"{path} was changed after it was written (its checksum differs); build the rows again"
        )
    return manifest


def _is_sealed(manifest: dict[str, Any]) -> bool:
    try:
        return sealed(manifest) == manifest
    except ValueError:  # NaN, which a valid manifest does not contain
        return False


def _missing(directory: Path) -> str:
    if not directory.exists():
        return f"{directory} does not exist; `ping-llm rows build IN --out {directory}` makes it"
    splits = sorted(path.parent.name for path in directory.glob(f"*/{MANIFEST_FILE}"))
    if splits:
        return f"{directory} holds splits ({', '.join(splits)}); name one, such as {directory / splits[0]}"
    return (
        f"{directory} has no {MANIFEST_FILE}: it is not a finished folder of probe rows; "
        "run its `ping-llm rows build` again"
    )


MAGIC = b"PINGROWS-INDEX-1"
HEADER_BYTES = 64
FLAG_IPV4, FLAG_OTHER_KINDS, FLAG_THROUGHPUT = 1, 2, 4

# The widest columns first, so that every array is aligned.
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
    """Arrays of one value per row, in the order of the records."""

    first_time: np.ndarray  # int64, microseconds
    last_time: np.ndarray  # int64
    src: np.ndarray  # uint8 [R, 16]
    counts: np.ndarray  # int32, measurements
    flags: np.ndarray  # uint8, bits: IPv4; some measurement is not a ping; one has a throughput

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def ipv4(self) -> np.ndarray:
        return (self.flags & FLAG_IPV4).astype(bool)

    @property
    def other_kinds(self) -> np.ndarray:
        return (self.flags & FLAG_OTHER_KINDS).astype(bool)

    @property
    def has_throughput(self) -> np.ndarray:
        return (self.flags & FLAG_THROUGHPUT).astype(bool)


def open_index(path: Path, sha256: str | None = None) -> RowIndex:
    """Memory-map an index file.

    Args:
      sha256: Expected checksum. None: only the header is checked.
    """
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
    # Hashed as a file: through the map, all of it would count as memory of this process (7 M rows: 217 MB).
    if sha256 is not None and file_sha256(path) != sha256:
        raise PingError(f"{path} is damaged (its checksum differs from the manifest's); build the rows again")
    mapped = np.memmap(path, np.uint8, "r")
    for name, kind in COLUMNS:
        end = start + rows * kind.itemsize
        base = kind.base if kind.subdtype else kind
        arrays[name] = mapped[start:end].view(base).reshape((rows, *kind.shape))
        start = end
    return RowIndex(**arrays)


def write_index(path: Path, pieces: Sequence[RowIndex]) -> None:
    """Write the rows of all pieces, in order, to one file, atomically. Mapped pieces are streamed."""
    with whole_file(path) as aside, aside.open("wb") as file:
        _write(file, pieces)


def _write(file: BinaryIO, pieces: Sequence[RowIndex]) -> None:
    rows = sum(map(len, pieces))
    file.write((MAGIC + rows.to_bytes(8, "little")).ljust(HEADER_BYTES, b"\0"))
    for name, kind in COLUMNS:
        base = kind.base if kind.subdtype else kind
        for piece in pieces:
            file.write(np.ascontiguousarray(getattr(piece, name), base).tobytes())
