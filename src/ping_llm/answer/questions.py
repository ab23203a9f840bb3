"""Groups of similar questions: kinds, and amounts of earlier measurements.

The quality of a method is about the same within a kind, so held-out questions of the same kind decide the
weight of each method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ping_llm.measurements.columns import Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import networks_of, pairs_of
from ping_llm.splits.novelty import Novelty

#: Names of the kinds: the classes of `Novelty`, and a new source in a network without a trained source.
NAMES = ("known pair", "new pair", "new source", "new destination", "new ends", "unseen network")
UNSEEN_NETWORK = Novelty.COUNT
KINDS = len(NAMES)

#: Least numbers of earlier measurements for an amount of 1, 2 and 3: of the pair for a known pair, of the
#: source for other kinds.
_PAIR_EDGES = np.array([1, 2, 8])
_SOURCE_EDGES = np.array([1, 5, 20])
AMOUNTS = 4
CELLS = KINDS * AMOUNTS


@dataclass(frozen=True)
class Evidence:
    """The measurements that each answer is based on, [n] each.

    Attributes:
      pair, source: number of earlier measurements of the pair, and of the source, that could be used.
      pair_trained, source_trained, destination_trained: whether the training data contain it.
      source_network_trained, destination_network_trained: whether they contain its /16 (IPv6: /48).
      kind: index into NAMES.
    """

    pair: np.ndarray
    source: np.ndarray
    pair_trained: np.ndarray
    source_trained: np.ndarray
    destination_trained: np.ndarray
    source_network_trained: np.ndarray
    destination_network_trained: np.ndarray
    kind: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def concatenate(cls, parts: Sequence["Evidence"]) -> "Evidence":
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    @property
    def amount(self) -> np.ndarray:
        """Amount of earlier measurements, 0 to 3, int64 [n]."""
        of_pair = np.searchsorted(_PAIR_EDGES, self.pair, side="right")
        of_source = np.searchsorted(_SOURCE_EDGES, self.source, side="right")
        return np.where(self.kind == Novelty.KNOWN_PAIR, of_pair, of_source)

    @property
    def cell(self) -> np.ndarray:
        """Kind and amount as one number, int64 [n]."""
        out: np.ndarray = self.kind * AMOUNTS + self.amount
        return out


def evidence(queries: Queries, history: History, trained: Novelty) -> Evidence:
    """Look up what is known of each question's ends. A pair with a past is a known pair, trained or not."""
    pair = history.results_of_pair(queries).count
    whole_src, whole_dst = _whole(queries.src_bits, len(queries)), _whole(queries.dst_bits, len(queries))
    source = trained.sources.has(queries.src) & whole_src
    destination = trained.destinations.has(queries.dst) & whole_dst
    both = trained.pairs.has(pairs_of(queries.src, queries.dst)) & source & destination
    source_network = trained.source_networks.has(networks_of(queries.src))
    kind = np.where(both | (pair > 0), Novelty.KNOWN_PAIR, Novelty.NEW_PAIR)
    kind = np.where(~destination & (pair == 0), Novelty.NEW_DESTINATION, kind)
    new_source = np.where(source_network, Novelty.NEW_SOURCE, UNSEEN_NETWORK)
    new_source = np.where(destination, new_source, Novelty.NEW_ENDS)
    return Evidence(
        pair,
        history.of_source(queries).count,
        both,
        source,
        destination,
        source_network,
        trained.destination_networks.has(networks_of(queries.dst)),
        np.where(~source & (pair == 0), new_source, kind),
    )


def _whole(bits: np.ndarray | None, count: int) -> np.ndarray:
    return np.ones(count, bool) if bits is None else bits == 0
