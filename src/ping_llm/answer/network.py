"""The network's own answer to many questions, as curves over `GRID`: the prompts, and their average.

A context is chosen for its question (`past.relevance`): earlier measurements of the same pair first, then of
the destination's neighbours, then of other destinations, the newest of each.

An address that was not trained on is cut to a prefix, unless the pair has earlier measurements. For a whole
address the network falls back on addresses that look similar; for a prefix it knows what its addresses have
in common, and takes the rest from the context. A source in an unseen /16 is not named at all, if the run was
trained on unnamed sources: then the context alone locates it. Such a run is prompted for a known source both
with and without its address, and the answers are averaged.

A run that was trained on scrambled contexts alone knows no address: all addresses of its prompts are
pseudonyms, under several keys, and the answers are averaged.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.conditions import COLUMNS, LARGEST, Conditions
from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import GRID
from ping_llm.answer.past import PAIR_SHARE, relevance
from ping_llm.answer.prompts import Prompt
from ping_llm.measurements.addresses import Prefix, is_ipv4, unnamed
from ping_llm.measurements.columns import NO_TIME, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import hashed
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.splits.novelty import Novelty

if TYPE_CHECKING:
    from ping_llm.answer.rtt_model import RttModel


#: Newest measurements of a source that are considered for a context.
LOOK_BACK = 4000

#: Keys of pseudonyms whose answers are averaged: 7.75, 7.72 and 7.72 bits with 1, 2 and 4 of them (held-out
#: questions about new destinations of menog-2019, by a network with 40 % of scrambled contexts).
KEYS = 2

#: Instead of a number of bytes: the address is not named.
UNNAMED = -1


@dataclass(frozen=True)
class Asking:
    """How prompts are made.

    Attributes:
      size: largest number of context measurements; those that do not fit the model's length are left out.
      pair_share: largest share of the pair itself, as long as there are others.
      known_bytes: bytes stated of a source that was trained on (three times as many for IPv6). 0: all,
        UNNAMED: none. With several numbers, the answers are averaged. On held-out training pings of MENOG:
        5.15 ms CRPS and 3.11 bits with both, 5.26 and 3.13 with the address, 5.12 and 3.13 without.
      source_bytes: the same for a source that was not trained on. There 14.5 and 5.64 with two, 19.3 and 5.86
        with none.
      unseen_bytes: the same for one whose first two bytes (six of IPv6) no trained source has.
      destination_bytes: the same for new destinations. There 35.7 and 6.71 with all, one and two averaged,
        36.6 and 6.75 with one and two.
      keys: number of prompts in which pseudonyms replace all addresses; 0: addresses are stated as above.
    """

    size: int = 30
    pair_share: float = PAIR_SHARE
    known_bytes: tuple[int, ...] = (0,)
    source_bytes: tuple[int, ...] = (2,)
    unseen_bytes: tuple[int, ...] = (2,)
    destination_bytes: tuple[int, ...] = (0, 1, 2)
    keys: int = 0


ALSO_UNNAMED = Asking(known_bytes=(0, UNNAMED), unseen_bytes=(UNNAMED,))


def ways(
    queries: Queries,
    history: History,
    asking: Asking,
    trained: Novelty | None = None,
    optional: Collection[str] = (),
) -> list[list[Question]]:
    """The questions whose answers are averaged for each query; without `trained`, all ends are known.

    They state what a query has of the `optional` fields.
    """
    past = history.of_source(queries)
    count = len(queries)
    of_src: list[tuple[int, ...]] = [asking.known_bytes] * count
    of_dst: list[tuple[int, ...]] = [(0,)] * count
    if trained is not None and not asking.keys:
        new, unseen = ~trained.sources.has(queries.src), trained.unseen_source_networks(queries.src)
        of_src = [
            asking.unseen_bytes if new[i] and unseen[i] else asking.source_bytes if new[i] else of_src[i]
            for i in range(count)
        ]
        of_dst = [asking.destination_bytes if new else (0,) for new in ~trained.destinations.has(queries.dst)]
    keys = keys_of(queries, asking.keys)
    out = []
    for index, (first, high) in enumerate(zip(past.low, past.high, strict=True)):
        low = max(first, high - LOOK_BACK)
        src, dst = end(queries.src, queries.src_bits, index), end(queries.dst, queries.dst_bits, index)
        chosen = relevance(past.columns.dst[low:high], dst, asking.size, asking.pair_share) + low
        known = past.columns.take(chosen)
        ranks = np.arange(len(chosen))
        context = Context.of(
            queries.src[index],
            known.dst,
            known.time,
            known.rtt,
            ranks,
            known.optional() if optional else None,
        )
        src_bytes, dst_bytes = of_src[index], of_dst[index]
        if (known.dst == queries.dst[index]).all(axis=1).any():
            src_bytes, dst_bytes = tuple(dict.fromkeys(min(count, 0) for count in src_bytes)), (0,)
        time = int(queries.time[index])
        out.append(
            [
                Question(
                    _cut(src, queries.src[index], bytes_of_src),
                    _cut(dst, queries.dst[index], bytes_of_dst),
                    None if time == NO_TIME else time,
                    context if len(chosen) else None,
                    _conditions(queries, index, optional),
                )
                for bytes_of_src in (src_bytes if src.is_whole else (0,))
                for bytes_of_dst in (dst_bytes if dst.is_whole else (0,))
            ]
        )
        if keys:
            out[-1] = [question.scrambled(int(key[index])) for key in keys for question in out[-1]]
    return out


def keys_of(queries: Queries, count: int) -> list[np.ndarray]:
    """So many keys of pseudonyms for each query, uint64 [n] each. They depend on its two ends alone."""
    ends = np.concatenate([queries.src, queries.dst], axis=1)
    return [hashed(ends, number + 1) for number in range(count)]


def _conditions(queries: Queries, index: int, optional: Collection[str]) -> Conditions:
    given = ((name, getattr(queries, COLUMNS[name])) for name in optional)
    stated = {name: column[index].item() for name, column in given if column is not None}
    return Conditions(**{n: value for n, value in stated.items() if UNKNOWN < value <= LARGEST[COLUMNS[n]]})


def end(packed: np.ndarray, bits: np.ndarray | None, index: int) -> Prefix:
    """The source or destination of a query, which may be a prefix."""
    if bits is None or not bits[index]:
        return Prefix.of(packed[index])
    return Prefix(packed[index].tobytes(), int(bits[index]))


def _cut(whole: Prefix, packed: np.ndarray, count: int) -> Prefix:
    """The first `count` bytes of an IPv4 address, three times as many of IPv6; 0: the whole; or UNNAMED."""
    if count == 0:
        return whole
    if count == UNNAMED:
        return unnamed(whole.version)
    known, size = (count, 4) if is_ipv4(packed[None])[0] else (3 * count, 16)
    return Prefix.of(packed, known if known < size else None)


@dataclass(frozen=True)
class Curves:
    """Answers to n questions.

    Attributes:
      levels: float64 [n, GRID], P(RTT < GRID | reply).
      failure: float64 [n], P(no reply).
      used: int64 [n], context measurements in the prompt.
    """

    levels: np.ndarray
    failure: np.ndarray
    used: np.ndarray

    def __len__(self) -> int:
        return len(self.failure)

    def distributions(self) -> RttDistributions:
        return RttDistributions(np.broadcast_to(GRID, self.levels.shape), self.levels, self.failure)

    @classmethod
    def concatenate(cls, parts: Sequence["Curves"]) -> "Curves":
        return cls(
            np.concatenate([part.levels for part in parts]),
            np.concatenate([part.failure for part in parts]),
            np.concatenate([part.used for part in parts]),
        )


def asking_of(model: "RttModel") -> Asking:
    """The prompts of a run, which depend on the contexts that it was trained on.

    Pseudonyms only if it was trained on nothing else. After 40 % of scrambled contexts, prompts with
    pseudonyms gain nothing over parts of the addresses, nor over unnamed sources (docs/contexts.md).
    """
    if model.knows_only_pseudonyms:
        return Asking(keys=KEYS)
    return ALSO_UNNAMED if model.knows_unnamed_sources else Asking()


def curves(
    model: "RttModel",
    queries: Queries,
    history: History,
    trained: Novelty | None = None,
    asking: Asking | None = None,
) -> Curves:
    """The network's answers, averaged over all prompts of a query."""
    asked = ways(queries, history, asking or asking_of(model), trained, model.optional_fields)
    owner = np.array([index for index, several in enumerate(asked) for _ in several], np.int64)
    prompts = model.prompts([question for several in asked for question in several])
    return averaged(model, prompts, owner, len(queries))


def averaged(model: "RttModel", prompts: Sequence[Prompt], owner: np.ndarray, count: int) -> Curves:
    """The answers to prompts, averaged over those of each of `count` queries; `owner` says whose each is."""
    each = np.empty((len(prompts), len(GRID)))
    failure, used = np.empty(len(prompts)), np.array([prompt.used for prompt in prompts], np.int64)
    for number, distribution in model.distributions(prompts):
        each[number], failure[number] = distribution.cdf(GRID), distribution.failure
    return _averaged(each, failure, used, owner, count)


def _averaged(
    each: np.ndarray, failure: np.ndarray, used: np.ndarray, owner: np.ndarray, count: int
) -> Curves:
    """Mixtures with equal weights, of failures and replies together."""
    levels, replies = np.zeros((count, len(GRID))), np.zeros(count)
    np.add.at(levels, owner, (1 - failure)[:, None] * each)
    np.add.at(replies, owner, 1 - failure)
    share = np.bincount(owner, minlength=count)
    levels /= np.maximum(replies, 1e-300)[:, None]
    levels[:, 0], levels[:, -1] = 0.0, 1.0
    most = np.zeros(count, np.int64)
    np.maximum.at(most, owner, used)
    return Curves(levels, 1 - replies / np.maximum(share, 1), most)
