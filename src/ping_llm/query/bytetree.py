"""The exact distribution of an eight-byte RTT, byte by byte, only as deep as it matters.

2^64 codes cannot be listed. But codes are ordered, so all codes with the same first bytes are an interval of
RTTs, and its probability is exact. The interval with the most probability among those that still matter is
split into its 256 next bytes, until nothing that matters is left: an interval within one millisecond is fine
enough. What was not split is known exactly as a whole and spread evenly inside; its total bounds the error.
"""

import heapq

import numpy as np

from ping_llm.model.engine import Engine, Prefix
from ping_llm.query.distribution import RttDistribution
from ping_llm.schema import MAX_RTT_MS
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.vocab import BYTE0

#: Splitting ends when the intervals that are too wide hold less than this.
TOLERANCE = 1e-4
#: Or after so many splits: one costs about as much as a token.
MOST_SPLITS = 512
#: Splits that are computed together.
TOGETHER = 32
#: Finer than a tenth of a millisecond, or a thousandth of the RTT, is not needed for a picture.
FINE_MS, FINE_SHARE = 0.1, 1 / 1024


class ByteTree:
    """The intervals known so far. `edges` and masses of the leaves are the distribution."""

    def __init__(self, encoding: RttEncoding):
        self._encoding = encoding
        self._last = encoding.encode(MAX_RTT_MS)
        #: Per split: edges [k + 1] and masses [k] of its children. A child that is split in turn loses
        #: its mass.
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = []
        #: (-mass, path, piece, child) of the intervals that matter.
        self._open: list[tuple[float, bytes, int, int]] = []
        self.unresolved = 0.0

    def split(self, path: bytes, mass: float, log_probabilities: np.ndarray) -> None:
        """Divide the interval of `path` among its possible next bytes."""
        missing = 8 * (self._encoding.bytes - len(path) - 1)
        first = int.from_bytes(path, "big") << 8
        children = min((self._last >> missing) - first + 1, 256)
        codes = [min((first + child) << missing, self._last + 1) for child in range(children + 1)]
        edges = np.array([self._encoding.lower_edge(code) for code in codes])
        weights = np.exp(log_probabilities[BYTE0 : BYTE0 + children].astype(np.float64))
        masses = mass * weights / weights.sum()
        if missing:
            low, high = edges[:-1], edges[1:]
            crosses = np.floor(low) != np.ceil(high) - 1
            coarse = high - low > np.maximum(FINE_MS, FINE_SHARE * low)
            for child in np.flatnonzero(crosses | coarse).tolist():
                item = (-masses[child], path + bytes([child]), len(self._pieces), child)
                heapq.heappush(self._open, item)
                self.unresolved += masses[child]
        self._pieces.append((edges, masses))

    def largest(self, count: int) -> list[tuple[bytes, float]]:
        """Take out the open intervals with the most probability, to be split."""
        taken = []
        for _ in range(min(count, len(self._open))):
            negative, path, piece, child = heapq.heappop(self._open)
            self._pieces[piece][1][child] = np.nan  # its children stand for it
            self.unresolved += negative
            taken.append((path, -negative))
        return taken

    def leaves(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges [n + 1] and masses [n], ascending."""
        low = np.concatenate([edges[:-1] for edges, _ in self._pieces])
        mass = np.concatenate([masses for _, masses in self._pieces])
        leaf = ~np.isnan(mass)
        low, mass = low[leaf], mass[leaf]
        order = np.argsort(low, kind="stable")
        end = max(edges[-1] for edges, _ in self._pieces)
        return np.append(low[order], end), mass[order] / mass.sum()


def grow(engine: Engine, encoding: RttEncoding, prefix: Prefix, row: int, failure: float) -> RttDistribution:
    """The distribution of one row of a prefix whose tail ends in RTT."""
    alone = prefix.row(row)
    tree = ByteTree(encoding)
    tree.split(b"", 1.0, alone.tail[0, -1])
    splits = 1
    while splits < MOST_SPLITS and tree.unresolved > TOLERANCE:
        nodes = tree.largest(TOGETHER)
        if not nodes:
            break
        # Padding a shorter path at its end changes nothing before it: few depths fit all.
        depth = 1 << (max(len(path) for path, _ in nodes) - 1).bit_length()
        suffixes = np.full((1, len(nodes), depth), BYTE0, np.int32)
        for way, (path, _) in enumerate(nodes):
            suffixes[0, way, : len(path)] = [BYTE0 + byte for byte in path]
        out = engine.branch(alone, suffixes)[0]
        for way, (path, mass) in enumerate(nodes):
            tree.split(path, mass, out[way, len(path) - 1])
        splits += len(nodes)
    edges, masses = tree.leaves()
    return RttDistribution(edges, masses, float(failure), max(tree.unresolved, 0.0))
