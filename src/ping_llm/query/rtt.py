"""From prompts that end in RTT to exact distributions of the RTT.

One pass over the context (one for all questions that share it) gives the choice between RTT and FAILED and
the first byte. A two-byte encoding then takes one more token for each possible first byte, all of which
share the context's cache, and every one of its 65,536 codes has its probability. Bits and single quantiles
need only the one to three first bytes that decide them. An eight-byte encoding is a tree of bytes: see
`bytetree`.

The next token could also be another field or a new measurement; the question is what the result is, so the
probabilities are those given that it comes next. RTTs above the hour that the schema allows are impossible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ping_llm.model.engine import Engine, Prefix, padded_length
from ping_llm.query.bytetree import grow
from ping_llm.query.distribution import WORST_BITS, RttDistribution
from ping_llm.schema import MAX_RTT_MS, NO_REPLY
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.vocab import BYTE0, FAILED, RTT

#: Contexts that are read together. 64 took 33 % more CPU a token at 192 tokens, as much at 384 (one run, busy
#: machine), and four times the memory.
ROWS = 16
#: So many prompts that begin alike, and their beginning is read once for all of them.
FEWEST_ALIKE = 3


@dataclass(frozen=True)
class Grid:
    """The codes of a two-byte encoding that a measurement can have."""

    edges: np.ndarray  # float64 [codes + 1], ms

    @property
    def codes(self) -> int:
        return len(self.edges) - 1

    @property
    def first_bytes(self) -> int:
        return -(-self.codes // 256)


@cache
def grid_of(encoding: RttEncoding) -> Grid:
    last = min(encoding.encode(MAX_RTT_MS), encoding.largest_code)
    edges = np.array([encoding.lower_edge(code) for code in range(last + 1)])
    # The last code holds all above, too. It is given the width of its neighbour.
    return Grid(np.append(edges, 2 * edges[-1] - edges[-2]))


@dataclass(frozen=True)
class RttScores:
    """What is asked most often about many results at once.

    Attributes:
      failure: float64 [n].
      bits: float64 [n], of the observed result over its millisecond bin; NaN where none was given.
      quantiles: float64 [n, levels], ms.
    """

    failure: np.ndarray
    bits: np.ndarray
    quantiles: np.ndarray


def distributions(
    engine: Engine, encoding: RttEncoding, prompts: Sequence[np.ndarray]
) -> Iterator[tuple[int, RttDistribution]]:
    """The distribution after each prompt (which ends in RTT), as (index, distribution) in order of length."""
    for batch, prefix in _read(engine, prompts):
        failure = _failure(prefix)
        if encoding.bytes > 2:
            for row, index in enumerate(batch):
                yield index, grow(engine, encoding, prefix, row, failure[row])
            continue
        grid = grid_of(encoding)
        mass = _grid_mass(engine, grid, prefix)
        for row, index in enumerate(batch):
            yield index, RttDistribution(grid.edges, mass[row], float(failure[row]))


def scores(
    engine: Engine,
    encoding: RttEncoding,
    prompts: Sequence[np.ndarray],
    observed: np.ndarray | None,
    levels: Sequence[float],
) -> RttScores:
    """Failure, bits and quantiles, exact, from no more first bytes than decide them."""
    results = np.full(len(prompts), np.nan) if observed is None else np.asarray(observed, np.float64)
    wanted = np.asarray(levels, np.float64)
    out = RttScores(
        np.empty(len(prompts)), np.full(len(prompts), np.nan), np.empty((len(prompts), len(wanted)))
    )
    if encoding.bytes > 2:
        for index, distribution in distributions(engine, encoding, prompts):
            out.failure[index] = distribution.failure
            out.quantiles[index] = distribution.quantile(wanted)
            if not np.isnan(results[index]):
                out.bits[index] = distribution.bits(_within(encoding, results[index]))
        return out
    grid = grid_of(encoding)
    for batch, prefix in _read(engine, prompts):
        out.failure[batch] = failure = _failure(prefix)
        observed_here = np.array([_within(encoding, results[index]) for index in batch])
        inside, quantiles = _points(engine, grid, prefix, observed_here, wanted)
        out.quantiles[batch] = quantiles
        probability = np.where(observed_here == NO_REPLY, failure, (1 - failure) * inside)
        bits = -np.log2(np.clip(probability, 2.0**-WORST_BITS, 1.0))
        out.bits[batch] = np.where(np.isnan(observed_here), np.nan, bits)
    return out


def _within(encoding: RttEncoding, rtt: float) -> float:
    """Of `clipped`, an RTT above the limit counts as the limit: the model was told nothing else."""
    return min(rtt, encoding.clip_limit_ms) if encoding.clip_limit_ms and rtt > 0 else rtt


def _read(engine: Engine, prompts: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, Prefix]]:
    """Read all prompts, a few together: those that begin alike first, then the others by length."""
    alone = []
    for group in _groups(prompts):
        if len(group) < FEWEST_ALIKE:
            alone += group
            continue
        common = min(_common(prompts[group[0]], prompts[index]) for index in group)
        common = min(common, *(len(prompts[index]) - 2 for index in group))
        shared = engine.prefill([prompts[group[0]][:common]])
        for start in range(0, len(group), ROWS):
            batch = np.array(group[start : start + ROWS])
            yield batch, engine.extend(shared, [prompts[index][common:] for index in batch], tail=2)
    for batch in _batches(prompts, np.array(sorted(alone), np.int64)):
        yield batch, engine.prefill([prompts[index] for index in batch], tail=2)


def _groups(prompts: Sequence[np.ndarray]) -> Iterator[list[int]]:
    """Prompts that have their first three quarters in common with the first of their group."""
    group: list[int] = []
    for index in sorted(range(len(prompts)), key=lambda index: prompts[index].tobytes()):
        if group and 4 * _common(prompts[group[0]], prompts[index]) < 3 * len(prompts[index]):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many first tokens are the same."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _batches(prompts: Sequence[np.ndarray], indices: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of prompts that are padded to the same length, a few rows at a time."""
    lengths = np.array([padded_length(len(prompts[index]) + 1) for index in indices])
    for length in np.unique(lengths):
        same = indices[lengths == length]
        for start in range(0, len(same), ROWS):
            yield same[start : start + ROWS]


def _failure(prefix: Prefix) -> np.ndarray:
    """P(FAILED) given that a result comes next."""
    return 1.0 / (1.0 + np.exp(prefix.tail[:, -2, RTT].astype(np.float64) - prefix.tail[:, -2, FAILED]))


def _normalised(log_probabilities: np.ndarray) -> np.ndarray:
    weights = np.exp(log_probabilities.astype(np.float64))
    return weights / weights.sum(axis=-1, keepdims=True)


def _first_byte(grid: Grid, prefix: Prefix) -> np.ndarray:
    return _normalised(prefix.tail[:, -1, BYTE0 : BYTE0 + grid.first_bytes])


def _second_byte(engine: Engine, grid: Grid, prefix: Prefix, first: np.ndarray) -> np.ndarray:
    """P(second byte | first byte): first is int [rows, ways], the result float64 [rows, ways, 256]."""
    out = engine.branch(prefix, (BYTE0 + first[..., None]).astype(np.int32))[:, :, 0, BYTE0:].astype(
        np.float64
    )
    if grid.codes % 256:
        out[(first == grid.first_bytes - 1)[..., None] & (np.arange(256) >= grid.codes % 256)] = -np.inf
    return _normalised(out)


def _grid_mass(engine: Engine, grid: Grid, prefix: Prefix) -> np.ndarray:
    every = np.broadcast_to(np.arange(grid.first_bytes), (len(prefix), grid.first_bytes))
    joint = _first_byte(grid, prefix)[..., None] * _second_byte(engine, grid, prefix, every)
    return joint.reshape(len(prefix), -1)[:, : grid.codes]


def _points(
    engine: Engine, grid: Grid, prefix: Prefix, observed: np.ndarray, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """P(millisecond bin of the observed | reply) and quantiles."""
    rows = np.arange(len(prefix))
    first = _first_byte(grid, prefix)
    below = np.concatenate([np.zeros((len(prefix), 1)), np.cumsum(first, axis=1)], axis=1)
    below /= below[:, -1:]
    # Where each level is reached, and where the two ends of the bin lie.
    reached = np.stack([(below[:, 1:] < level).sum(axis=1) for level in levels], axis=1)
    reached = np.minimum(reached.reshape(len(prefix), len(levels)), grid.first_bytes - 1)
    low = np.where(observed >= 0, np.floor(observed), 0.0)
    ends = np.stack([low, low + 1], axis=1)
    codes = np.clip(np.searchsorted(grid.edges, ends, side="right") - 1, 0, grid.codes - 1)
    decisive = np.concatenate([codes // 256, reached], axis=1)
    second = _second_byte(engine, grid, prefix, decisive)
    # The distribution function at the 257 edges of each decisive byte.
    inside = np.concatenate([np.zeros((*decisive.shape, 1)), np.cumsum(second, axis=2)], axis=2)
    inside *= first[rows[:, None], decisive][..., None]
    inside += below[rows[:, None], decisive][..., None]

    def at_end(end: int) -> np.ndarray:
        code = codes[:, end]
        start, width = grid.edges[code], grid.edges[code + 1] - grid.edges[code]
        share = np.clip((ends[:, end] - start) / width, 0.0, 1.0)
        values = inside[rows, end, code % 256], inside[rows, end, code % 256 + 1]
        return values[0] + share * (values[1] - values[0])

    quantiles = np.empty((len(prefix), len(levels)))
    for column, level in enumerate(levels):
        curve = inside[:, 2 + column]
        place = np.clip((curve[:, 1:] < level).sum(axis=1), 0, 255)
        code = np.minimum(reached[:, column] * 256 + place, grid.codes - 1)
        left, right = curve[rows, place], curve[rows, place + 1]
        share = np.clip((level - left) / np.where(right > left, right - left, 1.0), 0.0, 1.0)
        quantiles[:, column] = grid.edges[code] + share * (grid.edges[code + 1] - grid.edges[code])
    return at_end(1) - at_end(0), quantiles
