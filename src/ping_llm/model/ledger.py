"""Checkpoints on disk: listing them, checking them, and moving damaged ones aside.

Orbax writes a checkpoint under a temporary name and renames it when it is complete, so a kill leaves no
incomplete checkpoint with a number as its name. It does not detect files that are damaged later, so the sizes
and checksums of each complete checkpoint are kept in `checkpoints.json` next to them.
"""

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.files import write_json

_ASIDE = "aside"
_BLOCK = 1 << 20


def steps(folder: Path) -> list[int]:
    """Numbers of the complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit() and entry.is_dir())


class Ledger:
    """The checksums of a run's checkpoints, in checkpoints.json."""

    def __init__(self, run: Path):
        self._folder = run / "checkpoints"
        self._path = run / "checkpoints.json"

    def _read(self) -> dict[str, dict[str, list[int]]]:
        try:
            content = json.loads(self._path.read_bytes())
            for files in content.values():
                for size, checksum in files.values():
                    int(size), int(checksum)
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise PingError(
                f"{self._path} is damaged ({error}); it may be removed: it only holds checksums"
            ) from error
        return dict(content)

    def enter_new(self) -> None:
        """Add checkpoints that were completed since the last call; remove those that no longer exist."""
        known, there = self._read(), [str(step) for step in steps(self._folder)]
        entries = {step: known.get(step) or _checksums(self._folder / step) for step in there}
        if entries != known:
            write_json(self._path, entries)

    def newest_whole(self) -> int | None:
        """Return the newest undamaged checkpoint; newer, damaged ones are moved aside with a warning."""
        for step in reversed(steps(self._folder)):
            fault = self.fault(step)
            if fault is None:
                return step
            kept = self._put_aside(step)
            print(f"warning: checkpoint {step} is damaged ({fault}); moved to {kept}", file=sys.stderr)
        return None

    def holds(self, step: int) -> bool:
        """Whether the checksums of a checkpoint are known."""
        return str(step) in self._read()

    def fault(self, step: int) -> str | None:
        """Return the fault of a damaged checkpoint, or None. One without an entry is read completely."""
        folder = self._folder / str(step)
        known = self._read().get(str(step))
        if known is None:
            return _unreadable(folder)
        for name, (size, checksum) in known.items():
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size:,} bytes instead of {size:,}"
            if _checksum(file) != checksum:
                return f"the checksum of {name} differs"
        return None

    def _put_aside(self, step: int) -> Path:
        aside = self._folder.parent / _ASIDE
        aside.mkdir(exist_ok=True)
        target = aside / str(step)
        while target.exists():
            target = target.with_name(target.name + "-again")
        shutil.move(self._folder / str(step), target)
        return target


class Streams:
    """Positions of the data stream at each checkpoint, in streams.json.

    It replaces MaxText's file per process: the state is the same for all processes, so two processes can
    continue where one stopped.
    """

    def __init__(self, run: Path):
        self._folder = run / "checkpoints"
        self._path = run / "streams.json"

    def keep(self, step: int, state: dict[str, Any]) -> None:
        """Store the state before checkpoint `step` is written; remove those of checkpoints that are gone."""
        there = {str(kept) for kept in steps(self._folder)}
        states = {key: value for key, value in self._read().items() if key in there}
        write_json(self._path, states | {str(step): state})

    def at(self, step: int) -> dict[str, Any]:
        try:
            return dict(self._read()[str(step)])
        except KeyError:
            raise PingError(
                f"{self._path} does not say where the data was at checkpoint {step}; remove "
                f"{self._folder / str(step)} to go on from an earlier one"
            ) from None

    def _read(self) -> dict[str, Any]:
        return json.loads(self._path.read_bytes()) if self._path.exists() else {}


def _checksums(folder: Path) -> dict[str, list[int]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _checksum(path)] for path in files}


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def _unreadable(folder: Path) -> str | None:
    """Return Orbax's error for a checkpoint without checksums, completed just before a kill; None: none.

    It is read in a separate process: with several processes, Orbax would wait for all of them to read.
    """
    program = f"from {__name__} import read_whole; import sys; read_whole(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.resolve())],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines() or ["Orbax cannot read it"]
    return said[-1][:200]


def read_whole(folder: str) -> None:
    """Read all arrays of a checkpoint, to check that this is possible."""
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as reader:
        reader.restore(Path(folder) / "items")
