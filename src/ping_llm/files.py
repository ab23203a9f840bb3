"""Files that appear whole or not at all: write aside, fsync, rename."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def sync_directory(directory: Path) -> None:
    """Make renames inside `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(aside: Path, path: Path) -> None:
    """Move a finished file from `aside` to `path`, durably."""
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.replace(path)
    sync_directory(path.parent)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path aside to write to; on success it becomes `path`, on an error it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        publish(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Stable JSON: indented, keys in the order given, a newline at the end."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
