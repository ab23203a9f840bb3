"""Which past measurements to tell the model for a question, from the rows of a dataset.

The rows' index finds those of a source without reading anything else. Of its earlier measurements come
first those of the same pair, the newest first: on real data the last value of a pair is hard to beat. Then
those to the same destination prefix, then recent ones spread over scales: the last, the one before, four
ago, eight ago …
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ping_llm.addresses import Prefix
from ping_llm.query.context import Context, Question
from ping_llm.rows.store import RowStore

#: A neighbour of a destination shares these first bytes with it: /24 of IPv4 (packed at 12), /48 of IPv6.
_NEIGHBOUR_BYTES = {4: 15, 6: 6}
#: At most this share of the context is the pair's own: a few others tell how the source is doing today.
_PAIR_SHARE = 0.75
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
        chosen = relevance(time, dst, question.dst, most)
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


def relevance(time: np.ndarray, dst: np.ndarray, wanted: Prefix | None, most: int) -> np.ndarray:
    """Indices of the measurements to tell, the most relevant first."""
    newest = np.argsort(time, kind="stable")[::-1]
    chosen: list[int] = []
    left = newest
    if wanted is not None:
        known = len(wanted.known_bytes) + (12 if wanted.version == 4 else 0)
        packed = np.frombuffer(wanted.packed, np.uint8)
        near = min(_NEIGHBOUR_BYTES[wanted.version], known)
        for length, share in ((known, _PAIR_SHARE), (near, (1 + _PAIR_SHARE) / 2)):
            match = (dst[left, :length] == packed[:length]).all(axis=1)
            take = left[match][: max(int(most * share) - len(chosen), 0)]
            chosen += take.tolist()
            left = left[~np.isin(left, take)]
    scales = _scales(len(left), most - len(chosen))
    return np.array(chosen + left[scales].tolist(), np.int64)


def _scales(available: int, wanted: int) -> np.ndarray:
    """Positions 0, 1, 2, 4, 8 …, then the gaps, newest first: at most `wanted` of `available`."""
    if available <= wanted:
        return np.arange(available)
    powers = [0] + [
        1 << power for power in range(max(available - 1, 1).bit_length()) if 1 << power < available
    ]
    powers = powers[:wanted]
    rest = [position for position in range(available) if position not in set(powers)][: wanted - len(powers)]
    return np.array([*powers, *rest], np.int64)
