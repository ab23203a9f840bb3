"""Sources and destinations of data, for resolving names, for the page's completions and for the map."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from ping_llm.answer.past import Data
from ping_llm.measurements.addresses import Prefix, is_ipv4, is_ipv4_one, unpack
from ping_llm.measurements.ids import hashed
from ping_llm.measurements.times import moment_text

#: Largest number of measurements read to find the destinations; reading them takes 2 s. Rows are ordered by a
#: hash of their source, so the first ones are a fair sample.
_MOST_MEASUREMENTS = 2_000_000
#: Largest number of sources, and of destinations, that are kept: the most measured ones.
_MOST_ENDS = 100_000


@dataclass(frozen=True)
class Ends:
    """Addresses, the most measured first.

    Attributes:
      packed: uint8 [n, 16].
      counts: int64 [n], number of measurements.
      texts: the same addresses as text.
    """

    packed: np.ndarray
    counts: np.ndarray
    texts: list[str]

    @classmethod
    def of(cls, packed: np.ndarray, counts: np.ndarray) -> "Ends":
        """Make ends from addresses: the distinct ones, with the sums of their counts."""
        _, first, inverse = np.unique(hashed(packed), return_index=True, return_inverse=True)
        sums = np.bincount(inverse, weights=counts, minlength=len(first)).astype(np.int64)
        order = np.argsort(-sums, kind="stable")[:_MOST_ENDS]
        chosen = packed[first[order]]
        return cls(chosen, sums[order], unpack(chosen).to_pylist())

    def __len__(self) -> int:
        return len(self.texts)

    def starting(self, text: str, version: int | None, limit: int) -> list[dict[str, Any]]:
        """Ends whose text starts with `text`, then ends that contain it, at most `limit`."""
        ipv4 = is_ipv4(self.packed) if version is not None else None
        begins: list[int] = []
        contains: list[int] = []
        for place, one in enumerate(self.texts):
            if ipv4 is not None and ipv4[place] != (version == 4):
                continue
            if one.startswith(text):
                begins.append(place)
                if len(begins) == limit:
                    break
            elif len(contains) < limit and text in one:
                contains.append(place)
        return [
            {"address": self.texts[place], "measurements": int(self.counts[place])}
            for place in [*begins, *contains][:limit]
        ]


class KnownEnds:
    """The ends of a model's data. Safe to use from several threads, but not from the event loop: it reads
    files.
    """

    def __init__(self, data: Data):
        self._store = data.store
        index = self._store.index
        self.sources = Ends.of(np.asarray(index.src), np.asarray(index.counts))
        self.first_time = int(index.first_time.min()) if len(index) else None
        self.last_time = int(index.last_time.max()) if len(index) else None
        total = np.cumsum(np.asarray(index.counts, np.int64))
        read = int(np.searchsorted(total, _MOST_MEASUREMENTS, side="right"))
        #: Whether all rows were read, so that every destination is known.
        self.complete = read >= len(index)
        block = self._store.read(np.arange(min(max(read, 1), len(index))))
        self.destinations = Ends.of(block.dst, np.ones(len(block.dst)))
        self._probe_ids, self._offsets, self._sources_read = block.probe_id, block.offsets, block.src

    def of_probe(self, number: int) -> list[Prefix]:
        """Sources of a RIPE Atlas probe."""
        places = np.flatnonzero(self._probe_ids == number)
        rows = np.unique(np.searchsorted(self._offsets, places, side="right") - 1)
        return [Prefix.of(one) for one in np.unique(self._sources_read[rows], axis=0)]

    def of_source(self, src: Prefix) -> Ends:
        """Destinations of one source, from its last four rows."""
        rows = np.flatnonzero((self._store.index.src == np.frombuffer(src.packed, np.uint8)).all(axis=1))
        dst = self._store.read(rows[-4:]).dst
        return Ends.of(dst, np.ones(len(dst)))

    def as_dict(self) -> dict[str, Any]:
        return {
            "sources": len(self.sources),
            "destinations": len(self.destinations),
            "complete": self.complete,
            "first_time": None if self.first_time is None else moment_text(self.first_time),
            "last_time": None if self.last_time is None else moment_text(self.last_time),
        }


class EndsOfData:
    """The ends of the data that the model uses at present, read on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[str, KnownEnds] | None = None

    def of(self, data: Data) -> KnownEnds:
        with self._lock:
            if self._known is None or self._known[0] != data.fingerprint:
                self._known = (data.fingerprint, KnownEnds(data))
            return self._known[1]


def network_of(packed: bytes) -> Prefix:
    """Prefix by which tables group an address: /16 of IPv4, /32 of IPv6."""
    return Prefix.of(np.frombuffer(packed, np.uint8), 2 if is_ipv4_one(packed) else 4)
