"""`kernel`: the one way in which this package compiles a function.

Compiled code is cached on disk, since compiling the loader's kernels takes tens of seconds. Numba looks only at
the file a function is defined in: after an upgrade that changes a function which a kernel of *another* file calls,
it would go on using the stale code. So the cache folder carries a digest of every file that holds
kernels, and any change to one of them compiles afresh.
"""

import hashlib
import os
from pathlib import Path

import numba

_PACKAGE = Path(__file__).parent

#: Numba freezes these files' constants and tables into the kernels.
_CONSTANTS = ("tokens/vocab.py", "tokens/rtt.py")


def _digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if b"import kernel" in text or path.relative_to(_PACKAGE).as_posix() in _CONSTANTS:
            digest.update(text)
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """Beside the package where that is writable (a checkout), else below the user's cache folder."""
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.is_dir() else _PACKAGE, os.W_OK):
        return beside / f"kernels-{_digest()}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "ping-llm" / f"kernels-{_digest()}"


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(_cache_folder())

#: Compiled ahead of nothing, cached on disk, and without the GIL, so that threads run side by side.
kernel = numba.njit(cache=True, nogil=True)
