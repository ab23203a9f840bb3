"""Novelty of a question: which of its ends and pair are in the training data."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, networks_of, pairs_of


class Members(Protocol):
    """A set of rows of bytes: `Ids` (exact) or `Filter` (a few bits per row)."""

    def has(self, packed: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Novelty:
    """Ends, pairs and networks of the training data, and the classes of questions by their novelty.

    Within a class, methods are about equally good.
    """

    sources: Members
    destinations: Members
    pairs: Members
    source_networks: Members
    destination_networks: Members

    KNOWN_PAIR, NEW_PAIR, NEW_SOURCE, NEW_DESTINATION, NEW_ENDS = range(5)
    COUNT = 5

    @classmethod
    def of(cls, train: Columns, members: type = Ids) -> "Novelty":
        return cls(
            members(train.src),
            members(train.dst),
            members(pairs_of(train.src, train.dst)),
            members(networks_of(train.src)),
            members(networks_of(train.dst)),
        )

    def classes(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The class of each question, int64 [n]."""
        new_source, new_destination = ~self.sources.has(src), ~self.destinations.has(dst)
        out = np.where(self.pairs.has(pairs_of(src, dst)), self.KNOWN_PAIR, self.NEW_PAIR)
        out = np.where(new_destination, self.NEW_DESTINATION, out)
        return np.where(new_source, np.where(new_destination, self.NEW_ENDS, self.NEW_SOURCE), out)

    def unseen_source_networks(self, src: np.ndarray) -> np.ndarray:
        """Whether no source of the training data is in the same /16 (IPv6: /48), bool [n]."""
        return ~self.source_networks.has(networks_of(src))
