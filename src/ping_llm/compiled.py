"""The decorator `kernel`, with which this package compiles all its Numba functions.

Compiled code is cached on disk, since compiling the loader's kernels takes tens of seconds. Numba's own cache
checks only the file in which a function is defined: after a change to a function or constant that a kernel
imports from *another* file, it would keep running stale code. So the kernels of each file have a cache folder
named after a digest of that file and of all files of this package that it imports, directly or indirectly.
Installations of the same source share this cache. Processes that need the same kernel at the same time wait
for the first one to compile it; otherwise each worker of a loader would compile all of them (31 s for
`batches stats`). Where no folder is writable, kernels are compiled at each start, which is slow but correct.
Numba's global configuration is not changed, because the process may have kernels of its own.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

from ping_llm.files import cache_folder, can_write, say_compiling, say_no_cache

#: Whether kernels are compiled. The runner of an edge export does not compile them.
COMPILED = True

_THIS = Path(__file__)
_PACKAGE = _THIS.parent
#: Longest wait for another process, in seconds. No kernel takes longer to compile; a process that has waited
#: this long compiles the kernel itself.
_WAIT_S = 120
#: Seconds of compiling without a word.
_QUIET_S = 2.0
#: Import statements at the top level of a file. Kernels cannot use names that a function imports in its body.
_IMPORT = re.compile(r"^from (ping_llm[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first call, cache on disk, and run without the GIL, so that threads run in parallel."""
    compiled = numba.njit(nogil=True)(function)
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen and _cache_root() is None:
        say_no_cache()
        return compiled
    try:
        # numba.njit(cache=True) does the same with Numba's own cache class.
        compiled._cache = _Cache(function) if chosen else _OwnCache(function)  # type: ignore[attr-defined]
    except (RuntimeError, OSError):
        say_no_cache(f"the cache folder {chosen or _cache_root()} cannot be written")
    return compiled


class _Notice:
    """Calls `say_compiling` after kernels were compiled for two seconds in all; one kind of question takes
    1 to 2 s, the first one after an installation 15 to 20 s.
    """

    def __init__(self) -> None:
        self._depth, self._spent, self._began = 0, 0.0, 0.0
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began = time.monotonic()
            self._timer = threading.Timer(max(_QUIET_S - self._spent, 0.0), say_compiling)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spent += time.monotonic() - self._began


_notice = _Notice()


class _Cache(FunctionCache):
    """Numba's cache, with errors handled and a lock: a damaged entry is compiled again.

    Numba loads an entry, or compiles and saves it if it is missing. The lock is held from the failed load
    until the save. The calls between kernels have no cycles, so processes cannot wait for each other in a
    cycle.
    """

    _lock: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._load(sig, target_context)
        if found is None and self._lock is None:
            self._wait_for_others()
            found = self._load(sig, target_context)
            if found is not None:
                self._unlock()
        if found is None:
            _notice.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # most likely a full disk
            say_no_cache(f"compiled code cannot be kept in {self.cache_path} ({error})")
        finally:
            self._unlock()
            _notice.end()

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling a truncated file can raise any exception
            with contextlib.suppress(Exception):
                self.flush()
            return None

    def _wait_for_others(self) -> None:
        with contextlib.suppress(OSError):  # without file locks, each process compiles for itself
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
                )  # closing is not enough while a forked child also has it open
            self._lock.close()
            self._lock = None


class _Locator(UserProvidedCacheLocator):
    """Cache folder below `_cache_root()`, named by the file's digest, so the same for all installations."""

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
    """The `kernels` folder in the user's cache folder, else in the package's; None if neither is writable."""
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
            if file != _THIS:  # this file uses nothing from its imports that changes compiled code
                waiting += _imported(file)
    return found


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """The files of this package that a file imports; `from ping_llm.tokens import vocab` names two."""
    files = []
    for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        folder = _PACKAGE.joinpath(*module.split(".")[1:])
        files += [folder.with_suffix(".py"), folder / "__init__.py"]
        files += [folder / f"{name}.py" for name in re.findall(r"\w+", names)]
    return tuple(file for file in files if file.is_file())
