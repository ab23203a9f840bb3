"""Best-first search over the bytes of an address: exact, because a prefix is at least as probable as its
completions.

A node is a path of bytes. Its probability is a mixture over rows: one row for a completion, one row per RTT
of the range for an inverse search. The most probable open node is expanded until the requested number of
complete addresses has been found; no unexplored address can be more probable.

PREFIX_END is masked: all answers are whole addresses (or prefixes of one length), and their probabilities
sum to 1.
"""

import heapq
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.results import PASSES
from ping_llm.answer.results import Completion as Completion
from ping_llm.answer.results import Completions as Completions
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import MAPPED_PREFIX, Prefix
from ping_llm.tokens.vocab import BYTE0

if TYPE_CHECKING:
    from ping_llm.model.engine import Engine, Prefilled

#: Nodes expanded per pass through the network.
TOGETHER = 16


def _check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"count must be at least 1, not {count}")


def check_temperature(temperature: float) -> None:
    if not temperature >= 0:
        raise UsageError(
            f"temperature must be at least 0, not {temperature:g}; 1 is the model's distribution"
        )


def draw(log_weights: np.ndarray, temperature: float, generator: np.random.Generator) -> np.ndarray:
    """Draw one index per row, by the Gumbel trick; at temperature 0 the most probable index."""
    if temperature == 0:
        return np.argmax(log_weights, axis=1)
    return np.argmax(log_weights / temperature + generator.gumbel(size=log_weights.shape), axis=1)


class AddressTree:
    """Completions of `within` down to `depth` bytes.

    Args:
      cache: rows that have read everything up to and including the role and the whole bytes of `within`.
      weights: weights of the rows; they sum to 1.
      notes: notes on the context, copied to the answers.
    """

    def __init__(
        self,
        engine: "Engine",
        cache: "Prefilled",
        weights: np.ndarray,
        within: Prefix,
        depth: int,
        notes: tuple[str, ...] = (),
    ):
        self._engine, self._cache, self._weights, self._notes = engine, cache, weights, notes
        self._within, self._depth = within, depth
        self._known = within.known_bytes

    def top(self, count: int, passes: int = PASSES) -> Completions:
        """Return the `count` most probable completions, or those found after `passes` network passes."""
        _check_count(count)
        if passes < 1:
            raise UsageError(f"passes must be at least 1, not {passes}")
        start = np.log(self._weights)
        heap: list[tuple[float, bytes, np.ndarray]] = []
        if len(self._known) == self._depth:
            return Completions((Completion(self._prefix(b""), 1.0),), 0.0, True, self._notes)
        self._push(heap, b"", start, self._cache.tail[:, -1], count)
        found: list[Completion] = []
        while heap and len(found) < count:
            nodes: list[tuple[bytes, np.ndarray]] = []
            while heap and len(nodes) < TOGETHER:
                negative, path, rows = heapq.heappop(heap)
                if len(self._known) + len(path) < self._depth:
                    nodes.append((path, rows))
                elif not nodes:
                    found.append(Completion(self._prefix(path), -negative))
                    if len(found) == count:
                        break
                else:  # complete, but a node that is not yet expanded is more probable
                    heapq.heappush(heap, (negative, path, rows))
                    break
            if not nodes:
                continue
            if not passes:
                best = max(float(np.exp(np.logaddexp.reduce(rows))) for _, rows in nodes)
                return Completions(tuple(found), best, False, self._notes)
            passes -= 1
            for (path, rows), after in zip(nodes, self._after([path for path, _ in nodes]), strict=True):
                self._push(heap, path, rows, after, count)
        return Completions(tuple(found), -heap[0][0] if heap else 0.0, True, self._notes)

    def sample(self, count: int, temperature: float, generator: np.random.Generator) -> list[Prefix]:
        """Sample completions; the cache must have one row."""
        _check_count(count)
        check_temperature(temperature)
        paths = [b""] * count
        if len(self._known) == self._depth:
            return [self._prefix(b"")] * count
        decoder = self._engine.start(self._cache, count, self._depth)
        after = decoder.log_probabilities
        for left in range(self._depth - len(self._known) - 1, -1, -1):
            masks = np.stack([self.allowed(path) for path in paths])
            drawn = draw(np.where(masks, after[:, BYTE0:], -np.inf), temperature, generator)
            paths = [path + bytes([byte]) for path, byte in zip(paths, drawn.tolist(), strict=True)]
            if left:
                after = decoder.step(BYTE0 + drawn)
        return [self._prefix(path) for path in paths]

    def _after(self, paths: list[bytes]) -> list[np.ndarray]:
        """Log-probabilities [rows, 272] after each path."""
        depth = 1 << (max(map(len, paths)) - 1).bit_length()
        suffixes = np.full((len(self._cache), len(paths), depth), BYTE0, np.int32)
        for way, path in enumerate(paths):
            suffixes[:, way, : len(path)] = [BYTE0 + byte for byte in path]
        out = self._engine.branch(self._cache, suffixes)
        return [out[:, way, len(path) - 1] for way, path in enumerate(paths)]

    def _push(
        self,
        heap: list[tuple[float, bytes, np.ndarray]],
        path: bytes,
        rows: np.ndarray,
        after: np.ndarray,
        count: int,
    ) -> None:
        mask = self.allowed(path)
        bytes_after = np.where(mask, after[:, BYTE0:].astype(np.float64), -np.inf)
        children = rows[:, None] + bytes_after - np.logaddexp.reduce(bytes_after, axis=1, keepdims=True)
        total = np.exp(np.logaddexp.reduce(children, axis=0))
        # At the last byte, at most `count` siblings can be among the best.
        last = len(self._known) + len(path) + 1 == self._depth
        order = np.argsort(-total, kind="stable")[: count if last else None]
        for byte in order[mask[order]].tolist():
            heapq.heappush(heap, (-float(total[byte]), path + bytes([byte]), children[:, byte]))

    def allowed(self, path: bytes) -> np.ndarray:
        """Mask of the bytes that may follow the path, bool [256]."""
        mask = np.ones(256, bool)
        rest = self._within.bits - 8 * len(self._known)
        if not path and rest > 0:  # a prefix that ends inside a byte
            start = 12 if self._within.version == 4 else 0
            fixed = self._within.packed[start + len(self._known)] >> (8 - rest)
            mask = np.arange(256) >> (8 - rest) == fixed
        if self._within.version == 6 and self._known + path == MAPPED_PREFIX[:-1]:
            mask[MAPPED_PREFIX[-1]] = False
        return mask

    def _prefix(self, path: bytes) -> Prefix:
        known = self._known + path
        packed = (MAPPED_PREFIX if self._within.version == 4 else b"") + known
        return Prefix(packed.ljust(16, b"\0"), 8 * len(known))
