"""How a run is asked about a measurement: in the light of which earlier ones, and in how many ways.

A context is chosen for its question: earlier measurements of the same pair first, then of the destination's
neighbours, then of other destinations, the newest of each.

An end that was not trained on is cut to a prefix, unless the pair has a past. Of a whole address, a model
believes what it learned of others that look like it; of a prefix it knows what its addresses have in common,
and reads the context for the rest. A strange source, of which not even the prefix was trained on, is not
named: the context alone tells where it is, if the run was trained on such contexts. Such a run is asked about
a known source in both ways.
"""

from dataclasses import dataclass

import numpy as np

from ping_llm.addresses import Prefix, is_ipv4, unnamed
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.splits import Novelty
from ping_llm.query.context import Context, Question
from ping_llm.query.model import Model
from ping_llm.query.select import PAIR_SHARE, relevance

#: Looked through for a question: older measurements of a busy source are hardly ever the better choice.
_LOOK_BACK = 4000

#: Instead of a number of bytes: nothing is told of the address.
UNNAMED = -1

#: One more kind of question than `Novelty` has.
STRANGE_SOURCE = Novelty.COUNT


@dataclass(frozen=True)
class Asking:
    """How a run is asked.

    Attributes:
      size: measurements of context at most; those that do not fit the model's length are left out.
      pair_share: of these at most for the pair itself, as long as others are known.
      known_bytes: so many bytes are told of a source that was trained on (three times as many of IPv6); 0 is
        all, UNNAMED none; of several numbers, the answers are mixed. On held-out training pings of MENOG
        5.15 ms CRPS and 3.11 bits with both, 5.26 and 3.13 with its address, 5.12 and 3.13 without.
      source_bytes: the same for a source that was not trained on. There 14.5 and 5.64 with two, 19.3 and 5.86
        with none.
      strange_bytes: the same for one whose first two bytes (six of IPv6) no trained source has.
      destination_bytes: the same for new destinations. There 35.7 and 6.71 with all, one and two mixed, 36.6
        and 6.75 with one and two.
      typical_share: the one number for a known pair is the middle of the densest 30 %. There 0.72 ms median,
        7.17 mean error; 0.87 and 7.06 with the median. For all others the median is better in both.
    """

    size: int = 30
    pair_share: float = PAIR_SHARE
    known_bytes: tuple[int, ...] = (0,)
    source_bytes: tuple[int, ...] = (2,)
    strange_bytes: tuple[int, ...] = (2,)
    destination_bytes: tuple[int, ...] = (0, 1, 2)
    typical_share: float = 0.3

    @classmethod
    def of(cls, model: Model) -> "Asking":
        """For a run: without a name only if it was trained on such contexts."""
        return ALSO_UNNAMED if model.knows_unnamed_sources else cls()


ALSO_UNNAMED = Asking(known_bytes=(0, UNNAMED), strange_bytes=(UNNAMED,))


def ways(
    queries: Queries, context: History, asking: Asking, trained: Novelty | None = None
) -> list[list[Question]]:
    """For each query, the questions whose answers are mixed; without `trained`, all was trained on."""
    past = context.of_source(queries)
    of_src = [asking.known_bytes] * len(queries)
    of_dst: list[tuple[int, ...]] = [(0,)] * len(queries)
    if trained is not None:
        of_src = [
            asking.strange_bytes if strange else asking.source_bytes if new else asking.known_bytes
            for new, strange in zip(
                trained.sources.find(queries.src) < 0, strange_sources(queries.src, trained), strict=True
            )
        ]
        of_dst = [
            asking.destination_bytes if new else (0,) for new in trained.destinations.find(queries.dst) < 0
        ]
    return [
        _ways(
            queries,
            index,
            past.columns,
            max(low, high - _LOOK_BACK),
            high,
            asking,
            of_src[index],
            of_dst[index],
        )
        for index, (low, high) in enumerate(zip(past.low, past.high, strict=True))
    ]


def strange_sources(src: np.ndarray, trained: Novelty) -> np.ndarray:
    """bool [n]: whether no trained source has the first two bytes (six of IPv6)."""
    strange, version = np.empty(len(src), bool), is_ipv4(src)
    for ipv4, end in trained.NETWORK_END.items():
        rows = version == ipv4
        strange[rows] = trained.networks[ipv4].find(src[rows, :end]) < 0
    return strange


def kinds(queries: Queries, trained: Novelty) -> np.ndarray:
    """int64 [n]: the class of `Novelty`, or STRANGE_SOURCE."""
    classes = trained.classes(queries.src, queries.dst)
    strange = (classes == Novelty.NEW_SOURCE) & strange_sources(queries.src, trained)
    return np.where(strange, STRANGE_SOURCE, classes)


def _ways(
    queries: Queries,
    index: int,
    past: Columns,
    low: int,
    high: int,
    asking: Asking,
    of_src: tuple[int, ...],
    of_dst: tuple[int, ...],
) -> list[Question]:
    src, dst = queries.src[index], queries.dst[index]
    seconds = int(queries.time[index] // 1_000_000)
    chosen = relevance(past.dst[low:high], Prefix.of(dst), asking.size, asking.pair_share) + low
    known = past.take(chosen)
    context = Context.of(src, known.dst, known.time, known.rtt, np.arange(len(chosen)))
    if (known.dst == dst).all(axis=1).any():
        of_src, of_dst = tuple(dict.fromkeys(min(count, 0) for count in of_src)), (0,)
    return [
        Question(_prefix(src, src_bytes), _prefix(dst, dst_bytes), seconds, context if len(chosen) else None)
        for src_bytes in of_src
        for dst_bytes in of_dst
    ]


def _prefix(packed: np.ndarray, count: int) -> Prefix:
    """The first `count` bytes of an IPv4 address, three times as many of IPv6; 0: the whole; or UNNAMED."""
    if count == UNNAMED:
        return unnamed(4 if is_ipv4(packed[None])[0] else 6)
    known, whole = (count, 4) if is_ipv4(packed[None])[0] else (3 * count, 16)
    return Prefix.of(packed, known if 0 < known < whole else None)
