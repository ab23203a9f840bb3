"""Rows restricted to measurements of some kinds (`network_kinds`).

Contexts are planned by the number of measurements of each row, but the index has this number only for all
kinds together. So rows with other kinds than pings are read once when they are opened, at 7.5 million
measurements per second of processor time; rows with only pings are not.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ping_llm.contexts.units import Rows
from ping_llm.errors import PingError
from ping_llm.measurements.schema import KINDS, PING
from ping_llm.rows.block import RowBlock
from ping_llm.rows.manifest import RowIndex

#: Number of measurements read at a time: 80 MB.
_READ = 1_000_000


class RowsOfKinds:
    """A store of rows with only the measurements of the given kinds; rows without any are left out.

    It is pickled as the store from which it was made.

    Args:
      kinds: names of `schema.KINDS`.

    Raises:
      PingError: no measurement is of these kinds.
    """

    def __init__(self, rows: Rows, kinds: Sequence[str]):
        self._rows, self._kinds = rows, tuple(kinds)
        self._codes = np.array([KINDS.index(name) for name in kinds], np.uint8)
        index = rows.index
        counts = np.array(index.counts) if PING in self._codes else np.zeros(len(index.counts), np.int32)
        first, last = np.array(index.first_time), np.array(index.last_time)
        others = np.flatnonzero(index.other_kinds)
        for part in _parts(np.asarray(index.counts)[others]):
            read = others[part]
            block = self._taken(rows.read(read))
            counts[read] = np.diff(block.offsets)
            left = read[counts[read] > 0]
            begins, ends = block.offsets[:-1], block.offsets[1:]
            full = ends > begins
            first[left], last[left] = block.time[begins[full]], block.time[ends[full] - 1]
        self._kept = np.flatnonzero(counts)
        if not len(self._kept):
            raise PingError(f"the rows hold no measurement of kind {' or '.join(kinds)}")
        self.index = RowIndex(
            first[self._kept],
            last[self._kept],
            np.asarray(index.src)[self._kept],
            counts[self._kept],
            np.asarray(index.flags)[self._kept],
        )

    def __reduce__(self) -> tuple[type["RowsOfKinds"], tuple[Rows, tuple[str, ...]]]:
        return RowsOfKinds, (self._rows, self._kinds)

    @property
    def fingerprint(self) -> str:
        text = f"{self._rows.fingerprint} {','.join(self._kinds)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        return self._taken(self._rows.read(self._kept[np.asarray(indices, np.int64)]))

    def _taken(self, block: RowBlock) -> RowBlock:
        return block.taken(np.isin(block.kind, self._codes))


def of_kinds(rows: Rows, kinds: Sequence[str]) -> Rows:
    """The rows with the measurements of these kinds; `rows` itself if these are all of its measurements."""
    wanted = [name for name in KINDS if name in kinds]
    only_pings = not rows.index.other_kinds.any()
    if not wanted or len(wanted) == len(KINDS) or (only_pings and KINDS[PING] in wanted):
        return rows
    return RowsOfKinds(rows, wanted)


def _parts(counts: np.ndarray) -> list[slice]:
    """Ranges of rows with about _READ measurements."""
    step = np.cumsum(counts, dtype=np.int64) // _READ
    edges = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(counts)]
    return [slice(begin, end) for begin, end in pairwise(edges) if end > begin]
