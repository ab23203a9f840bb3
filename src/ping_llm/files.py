"""Atomic file writes (write to a temporary file, fsync, rename), and the user's cache folder."""

import errno
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError

#: File name suffixes of pictures.
PICTURES = (".png", ".svg", ".pdf")


def sync_directory(directory: Path) -> None:
    """Make renames inside `directory` survive a power failure."""
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
    """Yield a temporary path to write to; on success it is renamed to `path`, on an error it is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # the parent is a file; NotADirectoryError says so more clearly
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from None
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        publish(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def remove_unfinished(folder: Path, *names: str) -> None:
    """Remove the temporary files that killed processes left; call it only as the only writer of the folder.

    Args:
      names: File names or patterns, of the final files.
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
    """Write reproducible JSON: indented, keys in the order given, a newline at the end."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a YAML file such as a run's config.yml.

    Raises:
      PingError: the file cannot be read, or does not hold a mapping.
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
    """The folder `ping-llm/NAME` in the user's cache folder, or None if it is not writable."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # HOME is not set, and the user has no passwd entry
        return None
    folder = Path(base) / "ping-llm" / name
    return folder if can_write(folder) else None


def can_write(folder: Path) -> bool:
    """Whether files can be written to a folder, which is created if missing.

    This writes a temporary file, because permissions alone do not decide it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def say_no_cache(why: str = "no cache folder can be written") -> None:
    """Warn, once for this process and its child processes, that each start compiles all kernels again."""
    if not os.environ.get(_NO_CACHE_SAID):
        os.environ[_NO_CACHE_SAID] = "1"
        print(
            f"note: {why}, so each start compiles anew, which takes up to a minute; "
            "set XDG_CACHE_HOME to a folder that can be written",
            file=sys.stderr,
        )


_NO_CACHE_SAID = "PING_LLM_NO_CACHE_SAID"

#: Process that says when it compiles kernels for seconds; 0: none. The command line sets it, for itself but
#: not for its child processes.
process_that_says_compiling = 0


def say_compiling() -> None:
    """Explain a first question that takes 15 s, once, if this process should."""
    global process_that_says_compiling
    if process_that_says_compiling == os.getpid():
        process_that_says_compiling = 0
        if sys.stderr is not None:
            with suppress(OSError, ValueError):  # closed: the work continues without the note
                print("compiling, once per installation …", file=sys.stderr, flush=True)


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PingError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise PingError(f"{path} must hold a JSON object")
    return content
