"""Filling of planned units: read the rows that this host needs in few calls, and run the kernel on them."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from ping_llm.contexts.crossing import Crossing
from ping_llm.contexts.draws import filler_keys
from ping_llm.contexts.fill import GROUP, NOTES, fill, groups_of
from ping_llm.contexts.options import Parameters
from ping_llm.contexts.plan import Unit
from ping_llm.errors import PingError
from ping_llm.rows.block import RowBlock
from ping_llm.rows.manifest import RowIndex

#: Number of measurements in memory at a time: 2^19 take 36 MB. A group's rows are read together even if they
#: have more.
READ_MEASUREMENTS = 1 << 19

#: Allocation size in bytes from which NumPy uses huge pages.
HUGE_PAGES = 1 << 22

STOP, SKIP = "stop", "skip"

_log = logging.getLogger(__name__)


class Rows(Protocol):
    """Interface of the rows from which contexts are drawn: rows.store.RowStore, or rows held in memory."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def index(self) -> RowIndex: ...
    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock: ...


@dataclass(frozen=True)
class Spent:
    """Time spent on a unit, in seconds, and when it was ready (time.monotonic, the same in all processes)."""

    plan: float
    read: float
    fill: float
    ready_at: float


@dataclass(frozen=True)
class FilledUnit:
    """This host's share of a unit.

    Attributes:
        unit: the plan of the unit.
        inputs, targets, positions, segments: int32 [batches, local batch, length].
        notes: int32 [batches, local batch, max_segments, NOTES], notes on each context (see fill.py).
        bad_rows: numbers of the rows that were skipped.
        spent: time spent on the unit.
    """

    unit: Unit
    inputs: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    notes: np.ndarray
    bad_rows: tuple[int, ...]
    spent: Spent

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """A batch with MaxText's names. Positions and segments are shared: do not write to them."""
        return {
            "inputs": self.inputs[index],
            "targets": self.targets[index],
            "inputs_position": self.positions[index],
            "targets_position": self.positions[index],
            "inputs_segmentation": self.segments[index],
            "targets_segmentation": self.segments[index],
        }


@dataclass(frozen=True)
class UnitFiller:
    """Fills units for one host. It has no mutable state, so threads can share it."""

    rows: Rows
    parameters: Parameters
    seed: int
    length: int
    batch_size: int
    process_index: int
    process_count: int
    fillers: bool
    on_bad_row: str = STOP
    crossing: Crossing = field(default_factory=Crossing.empty)

    def with_crossing(self) -> "UnitFiller":
        """A copy with all measurements in memory, which crossed contexts need."""
        counts = self.rows.index.counts
        Crossing.check(int(counts.sum()))
        return replace(self, crossing=Crossing.of(self._read(np.arange(len(counts)), [])))

    def sequences_of(self, unit: Unit) -> np.ndarray:
        """Numbers of this host's sequences, [batches, local batch]; the batches of a unit are consecutive."""
        batches = -(-unit.used // self.batch_size)
        local = self.batch_size // self.process_count
        lanes = np.arange(local) + self.process_index * local
        return np.arange(batches)[:, None] * self.batch_size + lanes

    def fill(self, unit: Unit, planning: float = 0.0) -> FilledUnit:
        """Fill a unit, whose planning took `planning` seconds."""
        begun, reading = time.monotonic(), [0.0]
        mine = self.sequences_of(unit)
        sequences = mine.ravel()
        arrays, notes = _allocate(len(sequences), self.length, self.parameters.max_segments)
        bad: list[int] = []
        for begin, end in self._portions(unit, sequences):
            self._fill(unit, sequences[begin:end], arrays[:, begin:end], notes[begin:end], bad, reading)
        inputs, targets, positions, segments = arrays.reshape(4, *mine.shape, self.length)
        return FilledUnit(
            unit,
            inputs,
            targets,
            positions,
            segments,
            notes.reshape(*mine.shape, -1, NOTES),
            tuple(sorted(set(bad))),
            Spent(planning, reading[0], (now := time.monotonic()) - begun - reading[0], now),
        )

    def _portions(self, unit: Unit, sequences: np.ndarray) -> list[tuple[int, int]]:
        """Split the sequences between groups, so that no portion reads much more than READ_MEASUREMENTS."""
        before = np.concatenate([[0], np.cumsum(self.rows.index.counts[unit.row], dtype=np.int64)])
        if before[-1] <= READ_MEASUREMENTS or len(sequences) == 0:
            return [(0, len(sequences))]
        begins, ends, _ = groups_of(sequences, unit.first)
        groups = [*np.flatnonzero(np.diff(sequences // GROUP, prepend=-1)).tolist(), len(sequences)]
        portions, begin, read = [], 0, 0
        for group, following in pairwise(groups):
            size = int(before[ends[group]] - before[begins[group]])
            if group > begin and read + size > READ_MEASUREMENTS:
                portions.append((begin, group))
                begin, read = group, 0
            read += size
            if following == len(sequences):
                portions.append((begin, following))
        return portions

    def _fill(
        self,
        unit: Unit,
        sequences: np.ndarray,
        arrays: np.ndarray,
        notes: np.ndarray,
        bad: list[int],
        reading: list[float],
    ) -> None:
        group_begin, group_end, needed = groups_of(sequences, unit.first)
        context_row = np.full(len(unit.row), -1, np.int64)
        rows, context_row[needed] = np.unique(unit.row[needed], return_inverse=True)
        begun = time.monotonic()
        block = self._read(rows, bad)
        reading[0] += time.monotonic() - begun
        inputs, targets, positions, segments = arrays
        fill(
            targets,
            inputs,
            positions,
            segments,
            notes,
            sequences,
            unit.first,
            group_begin,
            group_end,
            context_row,
            unit.key,
            filler_keys(self.seed, unit.start.epoch, unit.start.position, sequences),
            self.fillers,
            block.src,
            block.offsets,
            rows,
            (
                block.time,
                block.dst.view(np.int64),
                block.rtt,
                block.size,
                block.packet_error_count,
                block.msm_id,
                block.probe_id,
                block.throughput,
                block.dst,
            ),
            self.crossing.arrays(),
            self.parameters,
        )

    def _read(self, rows: np.ndarray, bad: list[int]) -> RowBlock:
        """Read rows; a bad row raises an error or is empty, depending on `on_bad_row`."""
        try:
            return self._read_checked(rows)
        except PingError as error:
            blocks = [self._read_one(row, bad) for row in rows.tolist()]
            if not any(block.measurements for block in blocks):
                raise PingError(f"none of {len(rows)} rows can be read: {error}") from error
        return _join(blocks)

    def _read_checked(self, rows: np.ndarray) -> RowBlock:
        block = self.rows.read(rows)
        counts, expected = np.diff(block.offsets), self.rows.index.counts[rows]
        for place in np.flatnonzero(counts != expected).tolist():
            raise PingError(
                f"row {int(rows[place])} has {int(counts[place])} measurements, but the index has "
                f"{int(expected[place])}; build the rows again"
            )
        return block

    def _read_one(self, row: int, bad: list[int]) -> RowBlock:
        """Read a single row. Whether it is bad depends on the data alone, so all hosts skip the same rows."""
        try:
            return self._read_checked(np.array([row]))
        except PingError as error:
            if self.on_bad_row == STOP:
                raise PingError(f"{error} (on_bad_row=skip leaves such rows out)") from error
            _log.warning("skipped a bad row: %s", error)
        bad.append(row)
        empty = RowBlock.empty(1, 0)
        empty.src[:] = 0
        return empty


def _allocate(sequences: int, length: int, max_segments: int) -> tuple[np.ndarray, np.ndarray]:
    """Allocate int32 [4, sequences, length] and [sequences, max_segments, NOTES] as one block of memory.

    NumPy requests huge pages from 4 MiB on. Four arrays of 1 MiB cost 2.2 ms of page faults, a fifth of the
    total time of a unit; one of 4 MiB costs 0.1 ms.
    """
    tokens, notes = 4 * sequences * length, sequences * max_segments * NOTES
    memory = np.empty(max(tokens + notes, HUGE_PAGES // 4), np.int32)
    return (
        memory[:tokens].reshape(4, sequences, length),
        memory[tokens : tokens + notes].reshape(sequences, max_segments, NOTES),
    )


def _join(blocks: list[RowBlock]) -> RowBlock:
    offsets = np.concatenate([[0], np.cumsum([block.measurements for block in blocks])]).astype(np.int64)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(block, name) for block in blocks])

    return RowBlock(
        joined("src"),
        offsets,
        joined("time"),
        joined("dst"),
        joined("rtt"),
        joined("msm_id"),
        joined("probe_id"),
        joined("size"),
        joined("packet_error_count"),
        joined("kind"),
        joined("throughput"),
    )
