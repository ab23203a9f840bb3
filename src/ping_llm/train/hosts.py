"""Several processes as one training: who we are among them, and JAX's connection between them."""

import os
from dataclasses import dataclass

import jax

from ping_llm.errors import PingError, UsageError

_TIMEOUT_S = 300


@dataclass(frozen=True)
class Hosts:
    """This process among all: `index` of `count`, which meet at `coordinator` (host:port)."""

    coordinator: str = ""
    count: int = 1
    index: int = 0

    def __post_init__(self) -> None:
        if self.count > 1 and not self.coordinator:
            raise UsageError(
                f"{self.count} processes need a place to meet: --coordinator HOST:PORT, the same for all"
            )
        if not 0 <= self.index < self.count:
            raise UsageError(f"process {self.index} is not one of {self.count}")

    @classmethod
    def of(cls, coordinator: str, count: int | None, index: int | None) -> "Hosts":
        """What was said, else what Slurm says of this task, else alone."""
        if coordinator and count is None:
            count = int(os.environ.get("SLURM_NTASKS", "1"))
        if coordinator and index is None:
            index = int(os.environ.get("SLURM_PROCID", "0"))
        return cls(coordinator, count or 1, index or 0)

    def connect(self) -> None:
        """Before anything else touches JAX's devices."""
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
