"""Files that appear whole or not at all: write aside, fsync, rename. And the user's cache folder."""

import errno
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError

#: What the name of a picture may end in.
PICTURES = (".png", ".svg", ".pdf")


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # a file, which mkdir says in a way that nobody understands
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from None
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        publish(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def remove_unfinished(folder: Path, *names: str) -> None:
    """Remove what killed processes left aside of these files; only for the one writer of the folder.

    Args:
      names: of the files, or patterns.
    """
    for name in names:
        for left in folder.glob(f".{name}.*.part"):
            left.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Stable JSON: indented, keys in the order given, a newline at the end."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a YAML file such as a run's config.yml.

    Raises:
      PingError: it cannot be read, or holds something else.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PingError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict | None):
        raise PingError(f"{path} must hold keys and values")
    return content or {}


def cache_folder(name: str) -> Path | None:
    """`ping-llm/NAME` below the user's cache folder, or None where none can be written."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and a user without an entry
        return None
    folder = Path(base) / "ping-llm" / name
    return folder if can_write(folder) else None


def can_write(folder: Path) -> bool:
    """Whether a folder is there, or can be made, and takes files. Permissions alone do not tell."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def say_no_cache(why: str = "no cache folder can be written") -> None:
    """Say once, in this process and those that it starts, that each start compiles anew."""
    if not os.environ.get(_NO_CACHE_SAID):
        os.environ[_NO_CACHE_SAID] = "1"
        print(
            f"note: {why}, so each start compiles anew, which takes up to a minute; "
            "set XDG_CACHE_HOME to a folder that can be written",
            file=sys.stderr,
        )


_NO_CACHE_SAID = "PING_LLM_NO_CACHE_SAID"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PingError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise PingError(f"{path} must hold a JSON object")
    return content
