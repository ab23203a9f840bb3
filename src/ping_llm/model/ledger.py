"""Checkpoints on disk: which there are, whether they are whole, and putting bad ones aside.

Orbax writes a checkpoint under a temporary name and renames it when it is complete, so a kill leaves no
half of one behind under a number. What it does not see is a file that was damaged later. So the sizes and
checksums of each complete checkpoint are kept in `checkpoints.json` beside them.
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
        """Enter checkpoints that were completed since the last call; forget those that are gone."""
        known, there = self._read(), [str(step) for step in steps(self._folder)]
        entries = {step: known.get(step) or _checksums(self._folder / step) for step in there}
        if entries != known:
            write_json(self._path, entries)

    def newest_whole(self) -> int | None:
        """The newest checkpoint that can be trusted; worse ones are put aside with a warning."""
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
        """Why a checkpoint cannot be trusted. One that was not entered yet is read to see."""
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
    """Where the data stream was at each checkpoint, in streams.json.

    Ours rather than MaxText's own file for each process: the state is the same for all of them, which is
    what lets two processes go on where one stopped.
    """

    def __init__(self, run: Path):
        self._folder = run / "checkpoints"
        self._path = run / "streams.json"

    def keep(self, step: int, state: dict[str, Any]) -> None:
        """Note the state before checkpoint `step` is begun; forget those of checkpoints that are gone."""
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
    """Why Orbax cannot read a checkpoint that was completed just before a kill, so has no checksums.

    In a process of its own: among several processes Orbax would wait for all of them to read.
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
    """Read every array of a checkpoint, and keep none."""
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as reader:
        reader.restore(Path(folder) / "items")
