"""The known ends of measurements and their known pairs, as used by `embeddings` and `relations`."""

import numpy as np

from ping_llm.answer.methods.embedding_network import LEVELS
from ping_llm.compiled import kernel
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import Ranges
from ping_llm.measurements.ids import Ids, prefixes_of

#: Number of results of the source, and of the destination, that are shown for a question.
SHOWN = 24

#: Lengths of the prefixes with a vector, in bits.
_IPV4_BITS, _IPV6_BITS = (8, 16, 24, 32), (32, 48, 64, 128)
#: Largest number of ends per side to learn from; those with the fewest measurements are left out.
MOST_ENDS = 20_000


class Ends:
    """The ends of one side and their prefixes, as rows of a table of vectors.

    The first row of each level is for all prefixes that are not known.
    """

    def __init__(self, packed: np.ndarray):
        self.levels = [Ids(_prefix(packed, level)) for level in range(LEVELS)]
        sizes = [len(ids) + 1 for ids in self.levels]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        finest = self.levels[-1]
        some = np.zeros(len(finest), np.int64)
        some[finest.of_rows] = np.arange(len(packed))
        #: int32 [ends, LEVELS], in the order of the finest level's numbers.
        self.of_each = self.rows(packed[some])

    def check(self) -> None:
        """Refuse stored rows that are not in the table."""
        rows, ends = self.of_each, len(self.levels[-1])
        if rows.shape != (ends, LEVELS) or not ((rows >= 0) & (rows < self.table_rows)).all():
            raise ValueError("an end's prefix does not exist")

    def __len__(self) -> int:
        return len(self.of_each)

    @property
    def table_rows(self) -> int:
        return int(self.starts[-1])

    def find(self, packed: np.ndarray) -> np.ndarray:
        """Number of each end, int64 [n]; -1: not known."""
        return self.levels[-1].find(_prefix(packed, LEVELS - 1))

    def rows(self, packed: np.ndarray) -> np.ndarray:
        """Rows of the table for the prefixes of each end, int32 [n, LEVELS]."""
        found = [ids.find(_prefix(packed, level)) + 1 for level, ids in enumerate(self.levels)]
        out: np.ndarray = (np.stack(found, axis=1) + self.starts[:-1]).astype(np.int32)
        return out

    def shares_of_others(self) -> np.ndarray:
        """Share of other ends among the ends in each prefix of an end, float64 [ends, LEVELS]."""
        sizes = np.bincount(self.of_each.ravel(), minlength=self.table_rows)[self.of_each]
        out: np.ndarray = 1.0 - 1.0 / sizes
        return out


def _prefix(packed: np.ndarray, level: int) -> np.ndarray:
    return prefixes_of(packed, _IPV4_BITS[level], _IPV6_BITS[level])


class Entries:
    """The known pairs by one of their ends: `start[i]:start[i + 1]` are those of end i.

    Attributes:
      other: int32, the number of the other end.
      value: float32 [pairs, 3]: the pair's median, the mean of the other end's pairs, the difference.
    """

    def __init__(self, own: np.ndarray, other: np.ndarray, median: np.ndarray, ends: int, others: int):
        order = np.lexsort((other, own))
        count = np.bincount(other, minlength=others)
        self.mean = (np.bincount(other, median, others) / np.maximum(count, 1)).astype(np.float32)
        self.start = np.searchsorted(own[order], np.arange(ends + 1))
        self.other = other[order].astype(np.int32)
        self.value = self.described(self.other, median[order])

    def described(self, other: np.ndarray, value: np.ndarray) -> np.ndarray:
        mean = self.mean[other]
        return np.stack([value, mean, value - mean], axis=-1).astype(np.float32)

    def check(self) -> None:
        """Refuse stored entries that point outside the arrays."""
        inside = (self.other >= 0) & (self.other < len(self.mean))
        ascending = (np.diff(self.start) >= 0).all() and self.start[0] == 0
        if not (inside.all() and ascending and self.start[-1] == len(self.other) == len(self.value)):
            raise ValueError("the known pairs are not consistent")

    def at(
        self, end: np.ndarray, offset: np.ndarray, shown: np.ndarray, excluded: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Other ends, values and whether they are shown, of the entries at these offsets, [n, k].

        Args:
          shown: int [n], largest number of entries to show.
          excluded: int [n], the other end of the question, which is not shown.
        """
        count = self.start[end + 1] - self.start[end]
        place = np.minimum(self.start[end][:, None] + offset, len(self.other) - 1)
        other = self.other[place]
        known = np.arange(offset.shape[1]) < np.minimum(count, shown)[:, None]
        return other, self.value[place], (known & (other != excluded[:, None])).astype(np.float32)


def of_most_ends(replies: Columns) -> Columns:
    """Drop the ends with the fewest measurements, if there are more than MOST_ENDS."""
    for packed in (replies.src, replies.dst):
        ids = Ids(packed)
        if len(ids) > MOST_ENDS:
            count = np.bincount(ids.of_rows, minlength=len(ids))
            kept = np.zeros(len(ids), bool)
            kept[np.argsort(-count, kind="stable")[:MOST_ENDS]] = True
            return of_most_ends(replies.take(kept[ids.of_rows]))
    return replies


def filled(size: int) -> int:
    """The next power of two, or three quarters of it."""
    power = 1 << max(size - 1, 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def padded(rows: np.ndarray) -> np.ndarray:
    out = np.zeros((filled(len(rows)), rows.shape[1]), rows.dtype)
    out[: len(rows)] = rows
    return out


def drawn(entries: Entries, end: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Random offsets of different entries of each end, [n, SHOWN]: a random start and a random stride."""
    count = np.maximum(entries.start[end + 1] - entries.start[end], 1)
    start = (random.random(len(end)) * count).astype(np.int64)
    stride = 1 + (random.random(len(end)) * (count - 1)).astype(np.int64)
    stride = np.where(np.gcd(stride, count) == 1, stride, 1)
    out: np.ndarray = (start[:, None] + stride[:, None] * np.arange(SHOWN)) % count[:, None]
    return out


def spaced(entries: Entries, end: np.ndarray) -> np.ndarray:
    """Offsets of all entries of each end, or of SHOWN evenly spaced ones, [n, SHOWN]."""
    count = entries.start[end + 1] - entries.start[end]
    place = np.arange(SHOWN)
    out: np.ndarray = np.where(count[:, None] > SHOWN, place * count[:, None] // SHOWN, place)
    return out


def looked_back(
    past: Ranges, rows: np.ndarray, destinations: Ends, excluded: np.ndarray, look_back: int, most: int
) -> tuple[Columns, np.ndarray, np.ndarray]:
    """Find the newest results of the sources of some queries, and choose one per known destination to show.

    Args:
      past: earlier measurements of the source of each query.
      rows: indices of the queries; `excluded`: int64, the destination of each that is not shown, or -1.
      look_back: number of newest results to search.
      most: largest number of results to show.

    Returns:
      the results; the number of the destination of each (-1: no reply, or not known); and the indices of the
      results to show, int64 [rows, most], as from `newest_of_each`.
    """
    low, high = np.maximum(past.low, past.high - look_back)[rows], past.high[rows]
    count = high - low
    start = np.cumsum(count) - count
    recent = past.columns.take(np.repeat(low - start, count) + np.arange(count.sum()))
    node = np.where(recent.replied, destinations.find(recent.dst), -1)
    return recent, node, newest_of_each(node, start, start + count, excluded, most)


@kernel
def newest_of_each(
    node: np.ndarray, low: np.ndarray, high: np.ndarray, excluded: np.ndarray, most: int
) -> np.ndarray:
    """Newest indices low <= p < high of different nodes, int64 [n, most]; -1 after the last.

    Nodes below 0 and the excluded node are left out.
    """
    out = np.full((len(low), most), -1, np.int64)
    for i in range(len(low)):
        found = 0
        for place in range(high[i] - 1, low[i] - 1, -1):
            if node[place] < 0 or node[place] == excluded[i]:
                continue
            seen = False
            for earlier in range(found):
                if node[out[i, earlier]] == node[place]:
                    seen = True
                    break
            if not seen:
                out[i, found] = place
                found += 1
                if found == most:
                    break
    return out
