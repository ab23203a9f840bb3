"""Which past measurements to tell the model for a question, from the rows of a dataset.

The rows' index finds those of a source without reading anything else. Of its earlier measurements come
first those of the same pair, the newest first: on real data the last value of a pair is hard to beat. Then
those to the same destination prefix, then the newest of each other destination, then what is left. An
evaluation asks in the same way (`evaluate/asking.py`), so what it measures is what a question gets.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ping_llm.addresses import Prefix
from ping_llm.query.context import Context, Question
from ping_llm.rows.store import RowStore

#: A neighbour of a destination shares these first bytes with it: /24 of IPv4 (packed at 12), /48 of IPv6.
_NEIGHBOUR_BYTES = {4: 15, 6: 6}
#: At most this share of the context is the pair's own.
PAIR_SHARE = 1.0
#: A longer history is split into rows of 8 MiB; the newest of them are plenty.
_MOST_ROWS = 4


class History:
    """The measurements of a dataset by source."""

    def __init__(self, path: str | Path):
        self._store = RowStore(path)

    def context(self, question: Question, most: int = 64) -> Context:
        """The most relevant earlier measurements for a question, at most `most`, with their ranks."""
        rows = self.rows_of(question.src)
        if question.seconds is not None:
            rows = rows[self._store.index.first_time[rows] < question.seconds * 1_000_000]
        if not len(rows):
            return Context.empty()
        # One source at a time: of a prefix, the one that was measured last.
        newest = rows[np.argmax(self._store.index.last_time[rows])]
        same = (self._store.index.src[rows] == self._store.index.src[newest]).all(axis=1)
        rows = rows[same][np.argsort(self._store.index.last_time[rows[same]])[-_MOST_ROWS:]]
        block = self._store.read(rows)
        time, dst, rtt = block.time, block.dst, block.rtt
        if question.seconds is not None:
            earlier = time < question.seconds * 1_000_000
            time, dst, rtt = time[earlier], dst[earlier], rtt[earlier]
        order = np.argsort(time, kind="stable")
        time, dst, rtt = time[order], dst[order], rtt[order]
        chosen = relevance(dst, question.dst, most)
        ranks = np.arange(len(chosen))
        return Context.of(block.src[:1], dst[chosen], time[chosen], rtt[chosen], ranks)

    def rows_of(self, src: Prefix) -> np.ndarray:
        """Numbers of the rows of a source, or of all sources of a prefix."""
        known = len(src.known_bytes) + (12 if src.version == 4 else 0)
        index = self._store.index.src
        # The last bytes differ most: comparing them first leaves few rows for the rest.
        rows = np.flatnonzero(index[:, known - 1] == src.packed[known - 1])
        wanted = np.frombuffer(src.packed, np.uint8)[:known]
        return rows[(index[rows, :known] == wanted).all(axis=1)]

    def add_to(self, questions: Sequence[Question], most: int = 64) -> list[Question]:
        """The questions, each with a context from the data."""
        return [
            Question(question.src, question.dst, question.seconds, self.context(question, most))
            for question in questions
        ]


def relevance(
    dst: np.ndarray, wanted: Prefix | None, most: int, pair_share: float = PAIR_SHARE
) -> np.ndarray:
    """Indices of the measurements to tell, the most relevant first.

    Args:
      dst: uint8 [n, 16], destinations of a source's measurements, oldest first.
      wanted: the question's destination.
      most: how many may be told.
      pair_share: of these at most for the pair itself, as long as there are others.
    """
    newest = np.arange(len(dst))[::-1]
    pair = near = newest[:0]
    left = newest
    if wanted is not None:
        pair_bytes = len(wanted.known_bytes) + (12 if wanted.version == 4 else 0)
        pair, left = _parted(newest, dst, wanted, pair_bytes)
        near, left = _parted(left, dst, wanted, min(_NEIGHBOUR_BYTES[wanted.version], pair_bytes))
    own = pair[: max(1, round(most * pair_share))]
    near, further = np.split(near, [max(most - len(own), 0) // 2])
    others = _each_once(np.sort(np.concatenate([further, left]))[::-1], dst)
    # Where nothing else is known, the pair may have it all.
    return np.concatenate([own, near, others[: max(most - len(own) - len(near), 0)], pair[len(own) :]])[:most]


def _parted(newest: np.ndarray, dst: np.ndarray, wanted: Prefix, known: int) -> tuple[np.ndarray, np.ndarray]:
    """Those whose destinations begin with the same `known` bytes, and the rest."""
    alike = (dst[newest, :known] == np.frombuffer(wanted.packed, np.uint8)[:known]).all(axis=1)
    return newest[alike], newest[~alike]


def _each_once(newest: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """An order in which every destination comes once before any comes again."""
    _, first = np.unique(dst[newest], axis=0, return_index=True)
    is_first = np.zeros(len(newest), bool)
    is_first[first] = True
    return np.concatenate([newest[is_first], newest[~is_first]])
