"""A planned unit becomes arrays: read the rows that this host needs in few calls, run the kernel on them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ping_llm.contexts.draws import filler_keys
from ping_llm.contexts.fill import GROUP, NOTES, fill
from ping_llm.contexts.options import Parameters
from ping_llm.contexts.plan import Unit
from ping_llm.errors import PingError
from ping_llm.rows.block import RowBlock
from ping_llm.rows.index import RowIndex

#: Measurements in memory at a time: 2^19 take 36 MB. A group's rows are read together even if they are more.
READ_MEASUREMENTS = 1 << 19

STOP, SKIP = "stop", "skip"

_log = logging.getLogger(__name__)


class Rows(Protocol):
    """What contexts are drawn from: rows.store.RowStore, or rows held in memory."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def index(self) -> RowIndex: ...
    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock: ...


@dataclass(frozen=True)
class FilledUnit:
    """This host's share of a unit.

    Attributes:
        unit: its plan.
        inputs, targets, positions, segments: int32 [batches, local batch, length].
        notes: int32 [batches, local batch, max_segments, NOTES], what each context is (see fill.py).
        bad_rows: the rows that were skipped.
    """

    unit: Unit
    inputs: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    notes: np.ndarray
    bad_rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """A batch by MaxText's names for its parts. Positions and segments are shared: never write."""
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
    """Fills units for one host. Holds no state that changes: threads share it."""

    rows: Rows
    parameters: Parameters
    seed: int
    length: int
    batch_size: int
    process_index: int
    process_count: int
    fillers: bool
    on_bad_row: str = STOP

    def sequences_of(self, unit: Unit) -> np.ndarray:
        """This host's sequences, [batches, local batch]; a unit's batches lie side by side."""
        batches = -(-unit.used // self.batch_size)
        local = self.batch_size // self.process_count
        lanes = np.arange(local) + self.process_index * local
        return np.arange(batches)[:, None] * self.batch_size + lanes

    def fill(self, unit: Unit) -> FilledUnit:
        mine = self.sequences_of(unit)
        sequences = mine.ravel()
        shape = (len(sequences), self.length)
        targets, inputs, positions, segments = (np.empty(shape, np.int32) for _ in range(4))
        notes = np.zeros((len(sequences), self.parameters.max_segments, NOTES), np.int32)
        bad: list[int] = []
        for begin, end in self._portions(unit, sequences):
            portion = slice(begin, end)
            self._fill(
                unit,
                sequences[portion],
                (targets[portion], inputs[portion], positions[portion], segments[portion]),
                notes[portion],
                bad,
            )
        whole = (*mine.shape, self.length)
        return FilledUnit(
            unit,
            inputs.reshape(whole),
            targets.reshape(whole),
            positions.reshape(whole),
            segments.reshape(whole),
            notes.reshape(*mine.shape, -1, NOTES),
            tuple(sorted(set(bad))),
        )

    def _portions(self, unit: Unit, sequences: np.ndarray) -> list[tuple[int, int]]:
        """Cut the sequences between groups, so that no portion reads much more than READ_MEASUREMENTS."""
        counts = np.concatenate([[0], np.cumsum(self.rows.index.counts[unit.row], dtype=np.int64)])
        if len(sequences) == 0:
            return []
        if counts[-1] <= READ_MEASUREMENTS:
            return [(0, len(sequences))]
        groups = sequences // GROUP
        edges = [*np.flatnonzero(np.diff(groups, prepend=-1)).tolist(), len(sequences)]
        portions, begin, read = [], 0, 0
        for edge, following in pairwise(edges):
            of_group, to_group = _contexts_of_group(unit, groups[edge])
            size = int(counts[to_group] - counts[of_group])
            if edge > begin and read + size > READ_MEASUREMENTS:
                portions.append((begin, edge))
                begin, read = edge, 0
            read += size
            if following == len(sequences):
                portions.append((begin, following))
        return portions

    def _fill(
        self,
        unit: Unit,
        sequences: np.ndarray,
        arrays: tuple[np.ndarray, ...],
        notes: np.ndarray,
        bad: list[int],
    ) -> None:
        limits = np.array([_contexts_of_group(unit, group) for group in sequences // GROUP], np.int64)
        group_begin, group_end = np.ascontiguousarray(limits[:, 0]), np.ascontiguousarray(limits[:, 1])
        needed = np.zeros(len(unit.row), bool)
        for begin, end in np.unique(limits, axis=0):
            needed[begin:end] = True
        context_row = np.full(len(unit.row), -1, np.int64)
        rows, context_row[needed] = np.unique(unit.row[needed], return_inverse=True)
        block = self._read(rows, bad)
        targets, inputs, positions, segments = arrays
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
            (
                block.time,
                block.dst.view(np.int64),
                block.rtt,
                block.size,
                block.packet_error_count,
                block.msm_id,
                block.dst,
            ),
            self.parameters,
        )

    def _read(self, rows: np.ndarray, bad: list[int]) -> RowBlock:
        """The rows, each with as many measurements as the index says; bad ones stop us, or are empty."""
        try:
            block = self.rows.read(rows)
            wrong = np.flatnonzero(np.diff(block.offsets) != self.rows.index.counts[rows])
            if len(wrong):
                row = int(rows[wrong[0]])
                raise PingError(
                    f"row {row} has {int(np.diff(block.offsets)[wrong[0]])} measurements, "
                    f"its index says {int(self.rows.index.counts[row])}; build the rows again"
                )
            return block
        except PingError as error:
            if self.on_bad_row == STOP:
                raise PingError(f"{error} (on_bad_row=skip goes on without such rows)") from error
        return self._read_good(rows, bad)

    def _read_good(self, rows: np.ndarray, bad: list[int]) -> RowBlock:
        """Read row by row, and leave empty what cannot be read: which that is depends on the data alone."""
        blocks = []
        for row in rows.tolist():
            try:
                block = self.rows.read([row])
                if block.measurements != int(self.rows.index.counts[row]):
                    raise PingError(f"row {row} has another number of measurements than its index says")
            except PingError as error:
                _log.warning("skipped a bad row: %s", error)
                bad.append(row)
                block = RowBlock.empty(1, 0)
                block.src[:] = 0
            blocks.append(block)
        return _join(blocks)


def _contexts_of_group(unit: Unit, group: int) -> tuple[int, int]:
    sequences = len(unit.first) - 1
    return int(unit.first[group * GROUP]), int(unit.first[min((group + 1) * GROUP, sequences)])


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
    )
