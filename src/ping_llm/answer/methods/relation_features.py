"""Input of the network of the method `relations`: results that are informative about the pair of a question.

A question is about a source and a destination. The input has results of other sources to the destination (its
column of the matrix of pairs), of the source to other destinations (its row), of other sources to
destinations near by address, and the pair's own newest results. Each result comes with numbers that describe
how its ends are related to those of the question: the longest common prefix, and how well both ends agree on
shared measurements. No number depends on an address itself, so the network can be trained on other data.
"""

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS, medians
from ping_llm.answer.methods.known_pairs import Ends
from ping_llm.answer.methods.relation_kernels import (
    CLASSES,
    QUESTION,
    RESULT,
    SHOWN,
    AskedPairs,
    Features,
    Shown,
    Side,
    relate,
    show_pair,
)
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import Ranges


class PairMatrix:
    """The medians of all pairs that replied, by source and by destination.

    Attributes:
      source, destination: int32 [pairs], numbers of the ends; `value`: float64 [pairs], log RTT.
    """

    #: Not stored: computed again from the pairs.
    NOT_KEPT = ("rows", "columns")

    def __init__(self, replies: Columns):
        self.sources, self.destinations = Ends(replies.src), Ends(replies.dst)
        source, destination = (ids.levels[-1].of_rows for ids in (self.sources, self.destinations))
        ends = max(len(self.destinations), 1)
        cells, of_rows = np.unique(source * ends + destination, return_inverse=True)
        self.value = np.log(medians(of_rows, replies.rtt, len(cells)) + FLOOR_MS)
        self.source, self.destination = (each.astype(np.int32) for each in np.divmod(cells, ends))
        self.spread = float(self.value.std()) if len(cells) else 1.0
        self._index()

    def check(self) -> None:
        """Refuse stored pairs of ends that do not exist."""
        for ends, number in ((self.sources, self.source), (self.destinations, self.destination)):
            if len(number) != len(self.value) or not ((number >= 0) & (number < len(ends))).all():
                raise ValueError("the known pairs do not fit their ends")
        self._index()

    def _index(self) -> None:
        self.rows = _side(self.sources, self.source, self.destination, self.value)
        self.columns = _side(self.destinations, self.destination, self.source, self.value)


def _side(ends: Ends, own: np.ndarray, other: np.ndarray, value: np.ndarray) -> Side:
    order = np.lexsort((other, own))
    of_table = ends.of_each[:, :CLASSES].ravel()
    members = np.argsort(of_table, kind="stable")
    return Side(
        np.searchsorted(own[order], np.arange(len(ends) + 1)),
        other[order].astype(np.int64),
        value[order],
        np.bincount(own, value, len(ends)).astype(np.float64),
        ends.of_each,
        members // CLASSES,
        np.searchsorted(of_table[members], np.arange(ends.table_rows + 1)),
    )


def of_matrix(side: Side, end: np.ndarray) -> Shown:
    """Show all results of each end in the matrix; none for -1."""
    at = np.maximum(end, 0)
    low = np.where(end >= 0, side.start[at], 0)
    high = np.where(end >= 0, side.start[np.minimum(at + 1, len(side.start) - 1)], 0)
    none = np.zeros(len(end), bool)
    return Shown(low, high, none, np.zeros(0, np.int64), np.zeros(0), none)


def features(
    matrix: PairMatrix, asked: AskedPairs, row: Shown, column: Shown, past: Ranges, time: np.ndarray
) -> Features:
    """Compute the features of each question.

    Args:
      row, column: results of the source, and to the destination, that may be shown.
      past: earlier replies of the pair; `time`: int64 [n], time of the question, or NO_TIME.
    """
    count = len(asked.source)
    out = Features(
        np.zeros((count, SHOWN, RESULT), np.float32),
        np.zeros((count, SHOWN), np.bool_),
        np.zeros((count, QUESTION), np.float32),
    )
    if len(matrix.value):
        relate(asked, row, column, matrix.rows, matrix.columns, matrix.spread, out)
    show_pair(past.low, past.high, past.columns.rtt, past.columns.time, time, out)
    return out
