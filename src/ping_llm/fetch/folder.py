"""A folder of downloads, and the record of its complete downloads.

The record is a hidden file, so that `ping-llm ingest FOLDER` reads only the downloads.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import publish, remove_unfinished, write_json
from ping_llm.locks import only_writer

RECORD = ".fetch.json"
_FORMAT = 1


class Folder:
    """A folder of downloads that is being written."""

    def __init__(self, path: Path, made_with: dict[str, Any]):
        self.path = path
        self._record = _read(path / RECORD, made_with)

    def is_done(self, name: str) -> bool:
        """Whether a download is recorded, and its file has the right size (an empty one has no file)."""
        entry = self._record["files"].get(name)
        if entry is None:
            return False
        if not entry["bytes"]:
            return True
        try:
            return bool((self.path / name).stat().st_size == entry["bytes"])
        except OSError:
            return False

    def aside(self, name: str) -> Path:
        return self.path / f".{name}.part"

    def finish(self, name: str, **about: Any) -> None:
        """Rename a finished temporary file to its final name, and record it."""
        part = self.aside(name)
        size = part.stat().st_size
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        publish(part, self.path / name)
        self.record(name, bytes=size, sha256=digest, **about)

    def record(self, name: str, **about: Any) -> None:
        self._record["files"][name] = about
        self._record["files"] = dict(sorted(self._record["files"].items()))
        write_json(self.path / RECORD, self._record)

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        return dict(self._record["files"])


@contextmanager
def writing(path: Path, made_with: dict[str, Any]) -> Iterator[Folder]:
    """Open and lock a folder for writing by this process only.

    Args:
      made_with: Options that all its downloads share; a folder made with other options is refused.
    """
    with only_writer(path, "fetch"):
        remove_unfinished(path, RECORD, ".*.part.json")
        yield Folder(path, made_with)


def _read(path: Path, made_with: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return {"format": _FORMAT, "made_with": made_with, "files": {}}
    try:
        record = json.loads(path.read_bytes())
        entries = record["files"].values()
        if record["format"] != _FORMAT or not all(isinstance(one["bytes"], int) for one in entries):
            raise ValueError("it has another format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PingError(f"{path} is damaged ({error}): name another folder, or remove it") from None
    if record["made_with"] != made_with:
        raise UsageError(
            f"{path.parent} holds downloads made with {_text(record['made_with'])}, not {_text(made_with)}: "
            "name another folder"
        )
    return dict(record)


def _text(made_with: Any) -> str:
    pairs = made_with.items() if isinstance(made_with, dict) else ()
    return ", ".join(f"{name} {value}" for name, value in pairs) or "nothing"
