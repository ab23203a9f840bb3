"""A file that a thread of its own writes and hashes, so that the next piece is made meanwhile."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ping_llm.rows.scratch import reused


class Output:
    """Write pieces made in `buffer`, then `close`. An error of the disk is raised by the next call."""

    def __init__(self, path: Path):
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, "output")
        self._pending: list[Future[None]] = []
        self._turn = 0

    def buffer(self, size: int) -> np.ndarray:
        """Bytes to fill for the next `write`: one of two; the other may be on its way out."""
        self._wait(1)
        self._turn ^= 1
        return reused(f"output {self._turn}", size, np.uint8)

    def write(self, piece: bytes | np.ndarray) -> None:
        self._wait(1)
        self._pending.append(self._thread.submit(self._put, piece))

    def close(self) -> str:
        """Wait until all is written, and close. Returns the checksum of the file."""
        try:
            self._wait(0)
        finally:
            self._thread.shutdown()
            self._file.close()
        return self._digest.hexdigest()

    def _wait(self, left: int) -> None:
        while len(self._pending) > left:
            self._pending.pop(0).result()

    def _put(self, piece: bytes | np.ndarray) -> None:
        view = memoryview(piece).cast("B")
        self._digest.update(view)
        while len(view):
            view = view[self._file.write(view) :]
