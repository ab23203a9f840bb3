"""`kernel`: the one way in which this package compiles a function.

Compiled code is cached on disk, since compiling the loader's kernels takes tens of seconds. Numba looks only
at the file that a function is defined in: after a change to a function or a constant that a kernel takes from
*another* file, it would go on running the stale code. So each file's kernels have a cache folder that is
named after a digest of the file and of all files of this package that it imports, directly or not, so that
installations of the same source share what one of them compiled. Processes that need the same kernel at the
same time wait for the first: without that, each worker of a loader compiles all of them (31 s for `batches
stats`). Where no folder can be written, kernels are compiled at each start: slow, and still right. Numba's
configuration stays as it is: the process may have kernels of its own.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

from ping_llm.files import cache_folder, can_write, say_no_cache

#: Whether kernels are compiled. In an edge export's runner they are not.
COMPILED = True

_THIS = Path(__file__)
_PACKAGE = _THIS.parent
#: Longer than any kernel takes to compile: whoever has waited for so long compiles by itself.
_WAIT_S = 120
#: At the top of a file only: what a function imports late, no kernel can name.
_IMPORT = re.compile(r"^from (ping_llm[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first call, cache on disk, and run without the GIL, so that threads run side by side."""
    compiled = numba.njit(nogil=True)(function)
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen and _cache_root() is None:
        say_no_cache()
        return compiled
    try:
        # What numba.njit(cache=True) does, with its own class.
        compiled._cache = _Cache(function) if chosen else _OwnCache(function)  # type: ignore[attr-defined]
    except (RuntimeError, OSError):
        say_no_cache(f"the cache folder {chosen or _cache_root()} cannot be written")
    return compiled


class _Cache(FunctionCache):
    """Numba's cache, whose troubles are not the caller's: a damaged entry is compiled anew.

    Numba loads, compiles what is not there and saves it. From the first to the last a lock is held. Kernels
    call each other without circles, so those who wait for each other do not either.
    """

    _lock: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._load(sig, target_context)
        if found is None and self._lock is None:
            self._wait_for_others()
            found = self._load(sig, target_context)
            if found is not None:
                self._unlock()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, most likely
            say_no_cache(f"compiled code cannot be kept in {self.cache_path} ({error})")
        finally:
            self._unlock()

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling half a file raises whatever it likes
            with contextlib.suppress(Exception):
                self.flush()
            return None

    def _wait_for_others(self) -> None:
        with contextlib.suppress(OSError):  # a file system without locks: each compiles by itself
            path = Path(self.cache_path, f"{self._impl.filename_base}.lock")
            self._lock = path.open("wb")
            limit = time.monotonic() + _WAIT_S
            while time.monotonic() < limit:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(0.02)

    def _unlock(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(
                    self._lock, fcntl.LOCK_UN
                )  # closing is not enough while a forked child has it too
            self._lock.close()
            self._lock = None


class _Locator(UserProvidedCacheLocator):
    """Below our root, in the folder of the function's digest: the same wherever the package is installed."""

    def __init__(self, function: Callable[..., Any], file: str):
        super().__init__(function, file)
        root = _cache_root()
        assert root is not None
        self._cache_path = str(root / _digest(Path(file)) / Path(file).parent.name)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "_Locator | None":
        located = cls(function, file)
        try:
            located.ensure_cache_path()
        except OSError:
            return None
        return located


class _OwnCacheImpl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _OwnCache(_Cache):
    _impl_class: Any = _OwnCacheImpl


@cache
def _cache_root() -> Path | None:
    """Below the user's cache folder, else beside the package; None where neither can be written."""
    beside = _PACKAGE / "__pycache__" / "kernels"
    return cache_folder("kernels") or (beside if can_write(beside) else None)


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
            if file != _THIS:  # which decides how to compile, and uses nothing of others for that
                waiting += _imported(file)
    return found


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """The package's files that a file imports; `from ping_llm.tokens import vocab` names two."""
    files = []
    for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        folder = _PACKAGE.joinpath(*module.split(".")[1:])
        files += [folder.with_suffix(".py"), folder / "__init__.py"]
        files += [folder / f"{name}.py" for name in re.findall(r"\w+", names)]
    return tuple(file for file in files if file.is_file())
