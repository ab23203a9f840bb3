"""manifest.json: what a folder of probe rows is made of, written last, so that its presence means "whole"."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError

FORMAT = "ping-llm probe rows"
FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.bin"


def shard_name(part: int, parts: int) -> str:
    return f"rows-{part:05d}-of-{parts:05d}.arrayrecord"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(options: dict[str, Any], shard_checksums: Sequence[str], index_checksum: str) -> str:
    """Names the content of a dataset: equal exactly when its bytes are."""
    described = json.dumps([FORMAT_VERSION, options, list(shard_checksums), index_checksum], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with a checksum of itself."""
    return manifest | {"checksum": hashlib.sha256(manifest_bytes(manifest | {"checksum": ""})).hexdigest()}


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The bytes of manifest.json, as `files.write_json` writes them."""
    return (json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def load_manifest(directory: Path) -> dict[str, Any]:
    """Read and check manifest.json.

    Raises:
      PingError: no manifest, or not one of this version.
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
    if manifest.get("version") != FORMAT_VERSION:
        raise PingError(
            f"{path} has format version {manifest.get('version')}, this program reads {FORMAT_VERSION}; "
            "build the rows again"
        )
    return manifest


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
