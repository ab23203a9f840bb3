"""`kernel`: the one way in which this package compiles a function.

Compiled code is cached on disk, since compiling the loader's kernels takes tens of seconds. Numba looks only
at the file that a function is defined in: after a change to a function or a constant that a kernel takes from
*another* file, it would go on running the stale code. So each file's kernels have a cache folder that is
named after a digest of the file and of all files of this package that it imports, directly or not.
"""

import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (ping_llm[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first call, cache on disk, and run without the GIL, so that threads run side by side."""
    if not os.environ.get("NUMBA_CACHE_DIR"):
        numba.config.CACHE_DIR = str(_cache_root() / _digest(Path(function.__code__.co_filename)))
    return numba.njit(cache=True, nogil=True)(function)


@cache
def _cache_root() -> Path:
    """Beside the package where that is writable (a checkout), else below the user's cache folder."""
    if os.access(_PACKAGE, os.W_OK):
        return _PACKAGE / "__pycache__" / "kernels"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "ping-llm" / "kernels"


@cache
def _digest(path: Path) -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for needed in sorted(_with_imports(path)):
        digest.update(needed.read_bytes())
    return digest.hexdigest()[:16]


def _with_imports(path: Path) -> set[Path]:
    found, waiting = set(), [path]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file)
    return found


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """The package's files that a file imports; `from ping_llm.tokens import vocab` names two."""
    files = []
    for module, names in _IMPORT.findall(path.read_text()):
        folder = _PACKAGE.joinpath(*module.split(".")[1:])
        files += [folder.with_suffix(".py"), folder / "__init__.py"]
        files += [folder / f"{name}.py" for name in re.findall(r"\w+", names)]
    return tuple(file for file in files if file.is_file())
