"""Earlier measurements of a source: reading them from the rows, and choosing the context of a question.

Measurements of the same pair are chosen first, newest first, because on real data the last value of a pair
is a strong predictor. Then come those to the same destination prefix, then the newest of each other
destination, then the rest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.context import Context, Question
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.measurements.schema import THROUGHPUT
from ping_llm.measurements.throughput import stored_mbps
from ping_llm.recent import Recent

if TYPE_CHECKING:
    from ping_llm.contexts.memory_rows import MemoryRows
    from ping_llm.rows.block import RowBlock
    from ping_llm.rows.store import RowStore

#: Leading bytes that a neighbour shares with a destination: /24 of IPv4 (packed at 12), /48 of IPv6.
_NEIGHBOUR_BYTES = {4: 15, 6: 6}
#: Largest share of the context that measurements of the pair itself may take.
PAIR_SHARE = 1.0


def relevance(
    dst: np.ndarray, wanted: Prefix | None, most: int, pair_share: float = PAIR_SHARE
) -> np.ndarray:
    """Choose the measurements of a context; returns their indices, the most relevant first.

    Args:
      dst: uint8 [n, 16], destinations of a source's measurements, oldest first.
      wanted: the question's destination.
      most: largest number of measurements.
      pair_share: largest share of measurements of the pair itself, as long as there are others.
    """
    words = np.ascontiguousarray(dst).view(np.uint64).reshape(-1, 2)
    is_pair = is_near = np.zeros(len(dst), bool)
    if wanted is not None:
        pair_bytes = wanted.packed_length
        is_pair = _alike(words, wanted, pair_bytes)
        is_near = _alike(words, wanted, min(_NEIGHBOUR_BYTES[wanted.version], pair_bytes)) & ~is_pair
    pair = np.flatnonzero(is_pair)[::-1]
    own = pair[: max(1, round(most * pair_share))]
    near = np.flatnonzero(is_near)[::-1][: max(most - len(own), 0) // 2]
    is_other = ~is_pair
    is_other[near] = False
    others = _each_once(np.flatnonzero(is_other)[::-1], words, max(most - len(own) - len(near), 0))
    # Without other measurements, the pair fills the context.
    return np.concatenate([own, near, others, pair[len(own) :]])[:most]


def pair_last(context: Context, wanted: Prefix) -> Context:
    """Move the results of the destination and of its network to the end of a context.

    The network uses best what it reads last. On pairs that were measured before, this gains the packaged
    network 0.08 to 0.36 bits and 4 to 18 % of CRPS, on three simulated worlds and on v6-path-inflation, which
    was left out of its training.
    """
    words = np.ascontiguousarray(context.dst).view(np.uint64).reshape(-1, 2)
    near = _alike(words, wanted, min(_NEIGHBOUR_BYTES[wanted.version], wanted.packed_length))
    return context.take(np.concatenate([np.flatnonzero(~near), np.flatnonzero(near)]))


def _alike(words: np.ndarray, wanted: Prefix, known: int) -> np.ndarray:
    """Whether each destination (two uint64) shares the first `known` bytes with `wanted`; bool [n]."""
    mask = np.frombuffer(b"\xff" * known + bytes(16 - known), np.uint64)
    differs = (words ^ np.frombuffer(wanted.packed, np.uint64)) & mask
    out: np.ndarray = (differs[:, 0] | differs[:, 1]) == 0
    return out


def _each_once(newest: np.ndarray, words: np.ndarray, most: int) -> np.ndarray:
    """First `most` indices in an order where every destination occurs once before any occurs again."""
    # The newest few usually hold enough destinations; sorting all of 4,000 takes 20 times as long.
    look = min(len(newest), 8 * most)
    while True:
        is_first = np.zeros(len(newest), bool)
        is_first[first_of_each(words[newest[:look]])] = True
        if look == len(newest) or np.count_nonzero(is_first) >= most:
            return np.concatenate([newest[is_first], newest[~is_first]])[:most]
        look = min(len(newest), 4 * look)


def first_of_each(words: np.ndarray) -> np.ndarray:
    """Index of the first occurrence of each distinct row of `words`, uint64 [n, 2], ascending."""
    order = np.lexsort((words[:, 1], words[:, 0]))  # stable
    is_new = np.ones(len(order), bool)
    is_new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    return np.sort(order[is_new])


#: Number of rows of a source that are read, the newest ones. A long history is split into rows of 8 MiB.
_MOST_ROWS = 4
#: Measurements of the most recently queried sources that stay in memory, 32 bytes each. A quarter as many are
#: also kept sorted by pair, which takes four times as much per measurement.
_KEPT = 2_000_000


class Data:
    """Probe rows (`ping-llm rows build`), looked up by source through their index.

    Args:
      also: optional columns to keep, for networks that were trained on them.
    """

    def __init__(
        self, path: str | Path, store: "RowStore | MemoryRows | None" = None, also: Sequence[str] = ()
    ):
        from ping_llm.rows.store import RowStore  # imported late: questions with a context need no rows

        self.path, self._also = Path(path), tuple(also)
        self.store = store or RowStore(path)
        self._read: Recent[bytes, Columns] = Recent(_KEPT, len)
        self._histories: Recent[bytes, History] = Recent(_KEPT // 4, lambda known: 256 + len(known))

    @classmethod
    def of(cls, measurements: Columns, also: Sequence[str] = ()) -> "Data":
        """Make data from measurements in memory."""
        from ping_llm.contexts.memory_rows import rows_of_columns

        return cls("memory", rows_of_columns(measurements), also)

    @property
    def fingerprint(self) -> str:
        return self.store.fingerprint

    def history(self, questions: Sequence[Question]) -> History:
        """Read all measurements of the questions' sources; `History` selects those before each question.

        Questions about one source prefix must have the same time.
        """
        sources = {question.src: question.time for question in questions}
        # A prefix is represented by the source that was measured last before the question.
        rows = {src: self._newest_rows(src, time) for src, time in sources.items()}

        def read() -> History:
            parts = [self._columns(src, of_src) for src, of_src in rows.items()]
            return History(Columns.concatenate([Columns.empty(), *parts]))

        key = b"".join(src.packed + of_src.tobytes() for src, of_src in rows.items())
        # Only the history of a single source is kept: the same set of several is seldom queried again.
        return self._histories.get_or(key, read) if len(rows) == 1 else read()

    def past(self, question: Question) -> Context:
        """Context of all measurements that `history` reads for this question alone."""
        past = self._past(question.src, question.time)
        return Context.of_columns(past)

    def context(self, question: Question, most: int) -> Context:
        """Context of the `most` most relevant earlier measurements of a question's source, with ranks."""
        past = self._past(question.src, question.time)
        if question.time is not None:
            past = past.take(past.time < question.time)
        past = past.sorted_by_time()
        chosen = relevance(past.dst, question.dst, most)
        return Context.of_columns(past.take(chosen), np.arange(len(chosen)))

    def _past(self, src: Prefix, time: int | None) -> Columns:
        return self._columns(src, self._newest_rows(src, time))

    def _newest_rows(self, src: Prefix, time: int | None) -> np.ndarray:
        """Numbers of the newest rows of a source; for a prefix, of its source that was measured last."""
        index = self.store.index
        rows = self.rows_of(src)
        if not src.is_whole and time is not None:
            rows = rows[index.first_time[rows] < time]
        if not len(rows):
            return rows
        newest = rows[np.argmax(index.last_time[rows])]
        same = (index.src[rows] == index.src[newest]).all(axis=1)
        return np.sort(rows[same][np.argsort(index.last_time[rows[same]])[-_MOST_ROWS:]])

    def _columns(self, src: Prefix, rows: np.ndarray) -> Columns:
        if not len(rows):
            return Columns.empty()

        def read() -> Columns:
            block = self.store.read(rows)
            own = np.broadcast_to(np.frombuffer(src.packed, np.uint8), block.dst.shape)
            return Columns(block.time, own, block.dst, block.rtt, **self._optional(block))

        return self._read.get_or(src.packed + rows.tobytes(), read)

    def rows_of(self, src: Prefix) -> np.ndarray:
        """Numbers of the rows of a source, or of all sources of a prefix."""
        known = src.packed_length
        index = self.store.index.src
        if not known:
            return np.arange(len(index))
        # Compare the last byte first: it differs most, so few rows are left to compare in full.
        rows = np.flatnonzero(index[:, known - 1] == src.packed[known - 1])
        wanted = np.frombuffer(src.packed, np.uint8)[:known]
        out: np.ndarray = rows[(index[rows, :known] == wanted).all(axis=1)]
        return out

    def columns(self) -> Columns:
        """Return every measurement, ordered by time, for fitting a simple method."""
        block = self.store.read(np.arange(len(self.store)))
        counts = np.diff(block.offsets)
        kind = block.kind if block.kind.any() else None
        numbers = self._optional(block)
        if (block.probe_id != UNKNOWN).any():
            numbers["probe_id"] = block.probe_id
        src = np.repeat(block.src, counts, axis=0)
        return Columns(block.time, src, block.dst, block.rtt, kind=kind, **numbers).sorted_by_time()

    def _optional(self, block: "RowBlock") -> dict[str, np.ndarray]:
        out = {name: getattr(block, name).astype(np.int64) for name in self._also if name != THROUGHPUT}
        if THROUGHPUT in self._also:
            out[THROUGHPUT] = stored_mbps(block.throughput)
        return out
