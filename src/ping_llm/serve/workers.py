"""Several worker processes that answer on one socket, each with its own model.

The parent only supervises: it loads no model and has no threads, so that it can fork. It forwards signals,
and restarts a worker that ended by itself.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ping_llm.errors import PingError

#: Seconds until an ended worker is restarted, doubled each time one ends within _STEADY seconds of its start;
#: largest such pause; and _STEADY.
_PAUSE, _LONGEST_PAUSE, _STEADY = 1.0, 30.0, 60.0

Work = Callable[[int, Callable[[], None]], None]


@dataclass(frozen=True)
class _Worker:
    """Number of a worker, and the monotonic time of its start."""

    slot: int
    began: float


def supervise(count: int, work: Work, started: Callable[[], None]) -> None:
    """Run `count` processes until SIGTERM or SIGINT.

    Args:
      work: function of a worker. It gets the worker's number, from 0, and a function to call when the
        worker can answer.
      started: called when all workers can answer.

    Raises:
      PingError: a worker ended before it could answer; it has printed the reason.
    """
    ended = False

    def forward(number: int, frame: object) -> None:
        nonlocal ended
        ended = ended or number != signal.SIGHUP
        for worker in running:
            _send(worker, signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)

    running: dict[int, _Worker] = {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    pauses = 0
    try:
        for _ in range(count):
            if not _start(count, work, running) and not ended:
                raise PingError("a worker ended before it could answer")
        started()
        while running or not ended:
            if len(running) == count or ended:
                worker, _ = os.wait()
                gone = running.pop(worker, None)
                began = 0.0 if gone is None else gone.began
                pauses = 0 if time.monotonic() - began > _STEADY else pauses + 1
            if not ended:
                # The other workers answer meanwhile, even if the run cannot be loaded.
                time.sleep(min(_PAUSE * 2 ** min(pauses, 5), _LONGEST_PAUSE))
                pauses += not _start(count, work, running)
    finally:
        for worker in running:
            _send(worker, signal.SIGTERM)
        for worker in running:
            _wait(worker)


def _start(count: int, work: Work, running: dict[int, _Worker]) -> bool:
    """Fork a worker and wait until it can answer; return False if it ended before that."""
    slot = min(set(range(count)) - {worker.slot for worker in running.values()})
    reading, writing = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(reading)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _work(work, slot, writing)
    os.close(writing)
    running[worker] = _Worker(slot, time.monotonic())
    with os.fdopen(reading, "rb") as pipe:
        if pipe.read(1):
            return True
    running.pop(worker, None)
    _wait(worker)
    return False


def _work(work: Work, slot: int, writing: int) -> NoReturn:
    code = 1
    try:
        work(slot, lambda: _say_ready(writing))
        code = 0
    except PingError as error:
        os.write(2, f"ping-llm: {error}\n".encode())
    except BaseException as error:
        os.write(2, f"ping-llm: a worker failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)  # skips the parent's cleanup at exit


def _say_ready(writing: int) -> None:
    os.write(writing, b"1")
    os.close(writing)


def _send(worker: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, number)


def _wait(worker: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(worker, 0)
