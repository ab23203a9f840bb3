"""The Python workers of Spark, for tests that kill one."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def a_worker_killed(begun: Callable[[], object]) -> Iterator[None]:
    """Kills one worker of the Spark that the block starts, once `begun` is true."""
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        limit = time.monotonic() + 300
        while not killed and not ended.is_set() and time.monotonic() < limit:
            if begun():
                killed.extend(spark_workers())
                for one in killed:
                    os.kill(one, signal.SIGKILL)
            time.sleep(0.01)

    watcher = threading.Thread(target=kill)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert killed


def spark_workers() -> list[int]:
    """A Python worker of Spark below this process: a child of a daemon, which is a Python too."""
    parents, python = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (path / "cmdline").read_bytes():
                python.add(int(path.name))
        except OSError:
            continue

    def is_below(one: int) -> bool:
        while one in parents and one != os.getpid():
            one = parents[one]
        return one == os.getpid()

    return [one for one in python if parents[one] in python and is_below(one)][:1]
