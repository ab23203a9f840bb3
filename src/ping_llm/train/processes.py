"""The processes of a training: their connection, and the signals that stop them.

On SIGTERM or SIGINT, a checkpoint is saved after the current step and the exit code is 75, a temporary
failure in sysexits.h: the same command resumes. Schedulers send such a signal before they take a machine away
(Slurm's --signal, Modal's timeout, a preemption). A second signal ends the process at once. SIGUSR1 requests
a view of the pipeline.
"""

import os
import signal
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

import jax
from jax.experimental import multihost_utils

from ping_llm.errors import PingError, UsageError

_TIMEOUT_S = 300


@dataclass(frozen=True)
class ProcessGroup:
    """One of several processes: number `index` of `count`, which connect to `coordinator` (host:port)."""

    coordinator: str = ""
    count: int = 1
    index: int = 0

    def __post_init__(self) -> None:
        if self.count > 1 and not self.coordinator:
            raise UsageError(f"{self.count} processes need --coordinator HOST:PORT, the same for all")
        if not 0 <= self.index < self.count:
            raise UsageError(f"the process index must be 0 to {self.count - 1}, not {self.index}")

    @classmethod
    def of(cls, coordinator: str, count: int | None, index: int | None) -> "ProcessGroup":
        """Make it from the arguments, else from the variables of Slurm, else for a single process."""
        if coordinator and count is None:
            count = int(os.environ.get("SLURM_NTASKS", "1"))
        if coordinator and index is None:
            index = int(os.environ.get("SLURM_PROCID", "0"))
        return cls(coordinator, count or 1, index or 0)

    def connect(self) -> None:
        """Connect the processes; must be called before any use of JAX's devices."""
        if self.count == 1 or jax.distributed.is_initialized():
            return
        try:
            jax.distributed.initialize(
                self.coordinator, self.count, self.index, initialization_timeout=_TIMEOUT_S
            )
        except Exception as error:
            raise PingError(
                f"process {self.index} of {self.count} did not reach the others at {self.coordinator} "
                f"within {_TIMEOUT_S} s: {str(error).splitlines()[0]}"
            ) from error


EXIT_CODE = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stops:
    """Handles signals while it is open; call `requested` once after each step.

    Several processes must stop after the same step. JAX's preemption service agrees on one when any of them
    gets SIGTERM; it handles that signal, so SIGINT is passed on to it.
    """

    def __init__(self) -> None:
        self._several = jax.process_count() > 1
        self._asked = self._look = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if self._several and number == signal.SIGTERM:
                continue
            self._before[number] = signal.signal(number, self._ask)
        self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._ask_to_look)
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

    def _ask_to_look(self, number: int, frame: FrameType | None) -> None:
        self._look = True

    def look(self) -> bool:
        """Whether SIGUSR1 has asked for a view of the pipeline since the last call."""
        asked, self._look = self._look, False
        return asked

    def requested(self, step: int) -> bool:
        if self._several:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._asked
