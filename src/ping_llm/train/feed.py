"""Batches as MaxText takes them: global arrays over the mesh, from an iterator that remembers its error."""

import time
from typing import Any, Protocol, Self

import jax
import numpy as np


class Source(Protocol):
    """What a feed draws from: `contexts.batches.Batches`."""

    bad_rows: set[int]

    def __next__(self) -> dict[str, np.ndarray]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class Feed:
    """Hands each local batch to the devices as its share of one global array.

    MaxText turns any exception of its data iterator into a quiet stop with exit code 0. So the exception
    is kept in `error`, and whoever started the training raises it.

    Attributes:
        taken: batches handed out since the start of the training, resumed ones included.
        waited: seconds spent in here, which is all that a step waits for data.
        error: what ended the feed, if anything did; StopIteration means that the data ran out.
    """

    def __init__(self, source: Source, sharding: Any, finite: bool = False):
        self._source, self._sharding, self._finite = source, sharding, finite
        self._beginning = source.get_state()
        self.taken = 0
        self.waited = 0.0
        self.error: BaseException | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        started = time.perf_counter()
        try:
            local = next(self._source)
            batch = {
                key: jax.make_array_from_process_local_data(self._sharding, value)
                for key, value in local.items()
            }
        except StopIteration as end:
            if self._finite and self.taken:
                raise
            self.error = end
            raise
        except Exception as error:
            self.error = error
            raise
        self.taken += 1
        self.waited += time.perf_counter() - started
        return batch

    @property
    def bad_rows(self) -> set[int]:
        """Rows that were skipped so far."""
        return self._source.bad_rows

    def state(self) -> dict[str, Any]:
        return self._source.get_state()

    def skip_to(self, state: dict[str, Any], taken: int) -> None:
        """Go on from `state`, which is that after `taken` batches."""
        self._source.set_state(state)
        self.taken = taken

    def reset(self) -> None:
        """Start the set again; MaxText calls this before each evaluation."""
        self.skip_to(self._beginning, 0)

    def close(self) -> None:
        self._source.close()
