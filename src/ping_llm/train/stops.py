"""Being asked to end: SIGTERM and SIGINT mean save after this step, then leave with exit code 75.

Schedulers warn before they take a machine away (Slurm's --signal, Modal's timeout, a preemption), and 75 is
what sysexits.h calls a temporary failure: run the same command again. A second signal ends the process
at once.
"""

import os
import signal
from types import FrameType, TracebackType
from typing import Self

import jax
from jax.experimental import multihost_utils

EXIT_CODE = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stops:
    """Listens while it is open; ask `requested` once after each step.

    Several processes must stop after the same step. JAX's preemption service agrees on one when any of them
    gets SIGTERM; it owns that signal, so SIGINT is passed on to it.
    """

    def __init__(self) -> None:
        self._several = jax.process_count() > 1
        self._asked = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if self._several and number == signal.SIGTERM:
                continue
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked = True
        if self._several:
            os.kill(os.getpid(), signal.SIGTERM)

    def requested(self, step: int) -> bool:
        if self._several:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._asked
