"""How new a question is to the training data."""

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
    """What was trained on, and the classes of questions in which methods are about equally good."""

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
        """int64 [n], one of the five."""
        new_source, new_destination = ~self.sources.has(src), ~self.destinations.has(dst)
        out = np.where(self.pairs.has(pairs_of(src, dst)), self.KNOWN_PAIR, self.NEW_PAIR)
        out = np.where(new_destination, self.NEW_DESTINATION, out)
        return np.where(new_source, np.where(new_destination, self.NEW_ENDS, self.NEW_SOURCE), out)

    def unseen_source_networks(self, src: np.ndarray) -> np.ndarray:
        """bool [n]: no trained source is in the same /16 (IPv6: /48)."""
        return ~self.source_networks.has(networks_of(src))
