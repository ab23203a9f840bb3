"""Batches of stored contexts (`ping-llm pretokenize`), packed as fast as they can be read.

The contexts of a row group (those of one unit when they were written) are packed one after the other. The
order of the groups is drawn again for each epoch; the contexts themselves are always the same. The stream is
a function of (files, seed, global batch size, length, epochs), so resuming costs packing one group again.
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.compiled import kernel
from ping_llm.contexts.batches import Stages, check_share
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.pretokenized import DESCRIPTION, FILE, SCHEMA
from ping_llm.contexts.units import Spent
from ping_llm.errors import PingError, UsageError
from ping_llm.files import read_object
from ping_llm.hashing import GOLDEN_INT, MASK, mix
from ping_llm.tokens.vocab import TOKENS_FORMATS, VOCABULARY_SIZE

#: First index of a packed array.
_TARGETS, _INPUTS, _POSITIONS, _SEGMENTS = range(4)


@dataclass(frozen=True)
class Stored:
    """Stored contexts, open for reading.

    Attributes:
        length: largest number of tokens of a context.
        options: options with which the contexts were drawn.
        fingerprint: digest of the file's footer and of the stream's identity.
    """

    path: Path
    contexts: int
    tokens: int
    groups: int
    length: int
    options: ContextOptions
    fingerprint: str

    @classmethod
    def open(cls, folder: str | Path) -> "Stored":
        """Open a folder and check its files, without reading the tokens.

        Raises:
            PingError: there are no such files, or they differ from the description.
        """
        folder = Path(folder)
        path = folder / FILE
        if not path.is_file() or not (folder / DESCRIPTION).is_file():
            raise PingError(
                f"{folder} holds no stored contexts; `ping-llm pretokenize ROWS --out DIR` makes them"
            )
        about = read_object(folder / DESCRIPTION)
        if about.get("version") not in TOKENS_FORMATS:
            raise PingError(
                f"{folder / DESCRIPTION} has version {about.get('version')}, this program reads "
                f"{TOKENS_FORMATS[0]} to {TOKENS_FORMATS[-1]}"
            )
        try:
            with pq.ParquetFile(path) as file:
                if not file.schema_arrow.equals(SCHEMA):
                    raise PingError(f"{path} does not have the columns tokens and length")
                footer, rows, groups = file.metadata, file.metadata.num_rows, file.metadata.num_row_groups
                # The footer has position, size and extremes of every column of every group.
                digest = hashlib.sha256(json.dumps(footer.to_dict(), sort_keys=True, default=str).encode())
            options = ContextOptions(**about["options"])
            digest.update(json.dumps(about["stream"], sort_keys=True).encode())
            if rows != about["contexts"] or not rows:
                raise PingError(f"{path} has {rows:,} contexts, its description {about['contexts']:,}")
            length = int(about["stream"]["length"])
            return cls(path, rows, int(about["tokens"]), groups, length, options, digest.hexdigest())
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise PingError(
                f"cannot read {folder}: {error}; write it again with `ping-llm pretokenize`"
            ) from None

    def check(self, options: ContextOptions | None, length: int) -> None:
        """Raise a UsageError if the contexts do not fit into sequences, or were drawn with other options.

        A model keeps the options that it was trained with, because prompts are made with them.
        """
        folder = self.path.parent
        if self.length > length:
            raise UsageError(
                f"the contexts of {folder} have up to {self.length} tokens: max_target_length must be at "
                f"least that, not {length}, or they must be written with --length {length}"
            )
        for name, wanted in (options.as_dict() if options else {}).items():
            if (drawn := self.options.as_dict()[name]) != wanted:
                raise UsageError(
                    f"the contexts of {folder} were drawn with {name}={drawn}: give network_{name}={drawn}, "
                    f"or write them with --set {name}={wanted}"
                )

    def read(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The token ids of a group's contexts, uint16, and the offset of each, int64 [contexts + 1]."""
        try:
            with pq.ParquetFile(self.path) as file:
                column = file.read_row_group(group, ["tokens"])["tokens"].combine_chunks()
            offsets = column.offsets.to_numpy().astype(np.int64)
            ids = column.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise PingError(f"{self.path}: row group {group} cannot be read: {error}") from None
        counts = np.diff(offsets)
        if column.null_count or not len(counts) or counts.min() < 1 or counts.max() > self.length:
            raise PingError(f"{self.path}: row group {group} has a context that is empty or too long")
        if ids.min() < 1 or ids.max() >= VOCABULARY_SIZE:
            raise PingError(f"{self.path}: row group {group} has ids outside 1 to {VOCABULARY_SIZE - 1}")
        return ids, offsets - offsets[0]


@kernel
def sequences_of(offsets: np.ndarray, length: int, most: int) -> np.ndarray:
    """Pack contexts in order, as many as fit; returns the first of each sequence, int64 [sequences + 1]."""
    first = np.empty(len(offsets), np.int64)
    count = 0
    begin = 0
    for context in range(len(offsets) - 1):
        too_long = offsets[context + 1] - offsets[begin] > length
        if context == 0 or too_long or context - begin >= most:
            first[count] = begin = context
            count += 1
    first[count] = len(offsets) - 1
    return first[: count + 1]


@kernel
def pack(ids: np.ndarray, offsets: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
    """Write sequences into int32 [4, sequences, length]: targets, inputs, positions and segments."""
    out[:] = 0
    for sequence in range(len(first) - 1):
        place = 0
        for context in range(first[sequence], first[sequence + 1]):
            before = 0
            for position in range(offsets[context + 1] - offsets[context]):
                token = ids[offsets[context] + position]
                out[_TARGETS, sequence, place] = token
                out[_INPUTS, sequence, place] = before
                out[_POSITIONS, sequence, place] = position
                out[_SEGMENTS, sequence, place] = context - first[sequence] + 1
                before = token
                place += 1


class StoredBatches:
    """An iterator of packed batches, with the interface of `contexts.batches.Batches`.

    Args:
        rows: the folder that `pretokenize` wrote.
        options: options with which the contexts must have been drawn; None: any.
        threads: number of groups packed ahead, each in a thread; 0: pack in the caller's thread.
        The other arguments are those of `Batches`.
    """

    bad_rows: set[int]

    def __init__(
        self,
        rows: str | Path,
        options: ContextOptions | None = None,
        *,
        batch_size: int,
        length: int,
        seed: int = 0,
        epochs: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
        threads: int = 1,
    ):
        check_share(batch_size, length, seed, epochs, process_index, process_count)
        if threads < 0:
            raise UsageError(f"threads is {threads}: it must be at least 0")
        self.stored = Stored.open(rows)
        self.stored.check(options, length)
        self._batch_size, self._length, self._seed, self._epochs = batch_size, length, seed, epochs
        local = batch_size // process_count
        self._mine = slice(process_index * local, (process_index + 1) * local)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._batch, self._epoch, self._position, self._within = 0, 0, 0, 0
        self._packed: Iterator[tuple[int, int, np.ndarray, Spent]] | None = None
        self._parts: list[tuple[int, int, int, np.ndarray]] = []
        self.bad_rows = set()
        self.stages = Stages()

    @property
    def lanes(self) -> int:
        return self._threads or 1

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        if self._packed is None:
            self._packed, self._parts = self._groups(), []
            self._take_group(skipped=self._within)
        parts, missing = [], self._batch_size
        while missing:
            if not self._parts and not self._take_group():
                break
            epoch, position, within, packed = self._parts[0]
            part = packed[:, within : within + missing]
            parts.append(part)
            missing -= part.shape[1]
            self._epoch, self._position, self._within = epoch, position, within + part.shape[1]
            self._parts = [(epoch, position, self._within, packed)]
            if self._within == packed.shape[1]:
                self._parts = []
        if not parts:
            raise StopIteration
        if missing:
            parts.append(np.zeros((4, missing, self._length), np.int32))
        self._batch += 1
        batch = (np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])[:, self._mine]
        return {
            "inputs": batch[_INPUTS],
            "targets": batch[_TARGETS],
            "inputs_position": batch[_POSITIONS],
            "targets_position": batch[_POSITIONS],
            "inputs_segmentation": batch[_SEGMENTS],
            "targets_segmentation": batch[_SEGMENTS],
        }

    def _take_group(self, skipped: int = 0) -> bool:
        assert self._packed is not None
        taken = next(self._packed, None)
        if taken is None:
            return False
        epoch, position, packed, spent = taken
        self.stages.add(spent)
        self._parts = [(epoch, position, skipped, packed)] if skipped < packed.shape[1] else []
        return True

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Yield (epoch, position in it, group) from the current position on."""
        epoch, position = self._epoch, self._position
        while self._epochs is None or epoch < self._epochs:
            order = self.order(epoch)
            yield from ((epoch, at, int(order[at])) for at in range(position, len(order)))
            epoch, position = epoch + 1, 0

    def order(self, epoch: int) -> np.ndarray:
        """The order of the groups in an epoch."""
        state = np.uint64((self._seed * GOLDEN_INT + epoch) & MASK)
        numbers = np.arange(self.stored.groups, dtype=np.uint64)
        return np.argsort(mix(mix(np.full(len(numbers), state)) ^ numbers), kind="stable")

    def _groups(self) -> Iterator[tuple[int, int, np.ndarray, Spent]]:
        if not self._threads:
            yield from (self._pack(place) for place in self._places())
            return
        self._pool = ThreadPoolExecutor(self._threads, "ping-llm-stored")
        waiting: deque[Future[tuple[int, int, np.ndarray, Spent]]] = deque()
        for place in self._places():
            waiting.append(self._pool.submit(self._pack, place))
            if len(waiting) > self._threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _pack(self, place: tuple[int, int, int]) -> tuple[int, int, np.ndarray, Spent]:
        epoch, position, group = place
        begun = time.monotonic()
        ids, offsets = self.stored.read(group)
        read = time.monotonic()
        first = sequences_of(offsets, self._length, self.stored.options.max_segments)
        packed = np.empty((4, len(first) - 1, self._length), np.int32)
        pack(ids, offsets, first, packed)
        now = time.monotonic()
        return epoch, position, packed, Spent(0.0, read - begun, now - read, now)

    def identity(self) -> dict[str, Any]:
        return {
            "stored": 1,
            "fingerprint": self.stored.fingerprint,
            "seed": self._seed,
            "batch_size": self._batch_size,
            "length": self._length,
            "epochs": self._epochs,
        }

    def get_state(self) -> dict[str, Any]:
        """Return the position and the identity of the stream, as a small dict for JSON."""
        place = {"epoch": self._epoch, "position": self._position, "within": self._within}
        return {"batch": self._batch, **place, **self.identity()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Resume from a state of the same stream, taken with any number of threads or hosts."""
        for name, mine in self.identity().items():
            if state.get(name) != mine:
                raise PingError(
                    f"the data state was taken with {name} {state.get(name)!r}, this stream has {mine!r}; "
                    "resume with what the run was started with, or start a new run"
                )
        self.close()
        self._batch, self._epoch = int(state["batch"]), int(state["epoch"])
        self._position, self._within = int(state["position"]), int(state["within"])

    def close(self) -> None:
        """Stop the threads. Iterating continues with new ones."""
        self._packed, self._parts = None, []
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
