"""How a run is asked about a measurement: in the light of which earlier ones, and in how many ways.

A context is chosen for its question: earlier measurements of the same pair first, then of the destination's
neighbours, then of other destinations, the newest of each.

A pair without a past can also be asked about with the source cut to a prefix. Of a whole source a model
remembers what it was trained on; of a prefix it knows little, and has to read the context. The same goes for
destinations that were not trained on: of a whole one, a model may believe what it learned of a neighbour.
"""

from dataclasses import dataclass

import numpy as np

from ping_llm.addresses import Prefix, is_ipv4
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids
from ping_llm.query.context import Context, Question

#: Looked through for a question: older measurements of a busy source are hardly ever the better choice.
_LOOK_BACK = 4000


@dataclass(frozen=True)
class Asking:
    """How a run is asked.

    Attributes:
      size: measurements of context at most; those that do not fit the model's length are left out.
      pair_share: of these at most for the pair itself: what else the source sees now says how it fares now.
      source_bytes: where nothing of the pair is known, it is asked about once with each so many bytes of the
        source, and the answers are mixed; 0 is the whole source.
      destination_bytes: the same for a destination that was not trained on.
    """

    size: int = 30
    pair_share: float = 2 / 3
    source_bytes: tuple[int, ...] = (0,)
    destination_bytes: tuple[int, ...] = (0,)


def ways(
    queries: Queries, context: History, asking: Asking, trained_destinations: Ids | None = None
) -> list[list[Question]]:
    """For each query, the questions whose answers are mixed.

    Without `trained_destinations`, all destinations count as trained on.
    """
    past = context.of_source(queries)
    new = np.zeros(len(queries), bool)
    if trained_destinations is not None:
        new = trained_destinations.find(queries.dst) < 0
    return [
        _ways(queries, index, past.columns, max(low, high - _LOOK_BACK), high, asking, bool(new[index]))
        for index, (low, high) in enumerate(zip(past.low, past.high, strict=True))
    ]


def _ways(
    queries: Queries, index: int, past: Columns, low: int, high: int, asking: Asking, new: bool
) -> list[Question]:
    src, dst = queries.src[index], queries.dst[index]
    seconds = int(queries.time[index] // 1_000_000)
    chosen = choose(past.dst[low:high], dst, asking.size, asking.pair_share) + low
    known = past.take(chosen)
    context = Context.of(src, known.dst, known.time, known.rtt, np.arange(len(chosen)))
    has_past = bool((known.dst == dst).all(axis=1).any())
    return [
        Question(_prefix(src, of_src), _prefix(dst, of_dst), seconds, context if len(chosen) else None)
        for of_src in ((0,) if has_past else asking.source_bytes)
        for of_dst in (asking.destination_bytes if new and not has_past else (0,))
    ]


def choose(past_dst: np.ndarray, dst: np.ndarray, size: int, pair_share: float = 2 / 3) -> np.ndarray:
    """Positions of `size` earlier measurements (given oldest first), the most relevant first."""
    newest_first = np.arange(len(past_dst))[::-1]
    if not size or not len(past_dst):
        return newest_first[:0]
    same = (past_dst == dst).all(axis=1)[newest_first]
    near_bytes = 15 if is_ipv4(dst[None])[0] else 6  # an IPv4 /24 or an IPv6 /48
    near = ~same & (past_dst[:, :near_bytes] == dst[:near_bytes]).all(axis=1)[newest_first]
    pair = newest_first[same][: max(1, round(size * pair_share))]
    neighbours = newest_first[near][: max(size - len(pair), 0) // 2]
    rest = newest_first[~same & ~np.isin(newest_first, neighbours)]
    rest = rest[_each_once(past_dst[rest])]
    chosen = np.concatenate([pair, neighbours, rest[: size - len(pair) - len(neighbours)]])
    if len(chosen) < size:  # nothing else is known: the pair may have it all
        chosen = np.concatenate([chosen, newest_first[same][len(pair) : len(pair) + size - len(chosen)]])
    return chosen


def _each_once(addresses: np.ndarray) -> np.ndarray:
    """An order in which every address comes once before any comes again."""
    _, first = np.unique(addresses, axis=0, return_index=True)
    is_first = np.zeros(len(addresses), bool)
    is_first[first] = True
    return np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])


def _prefix(packed: np.ndarray, count: int) -> Prefix:
    """The first `count` bytes of an address, or the whole."""
    start = 12 if is_ipv4(packed[None])[0] else 0
    if not count or start + count >= 16:
        return Prefix(packed.tobytes(), 8 * (16 - start))
    cut = packed.copy()
    cut[start + count :] = 0
    return Prefix(cut.tobytes(), 8 * count)
