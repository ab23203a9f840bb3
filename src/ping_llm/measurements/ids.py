"""Addresses, pairs and networks by 64-bit hashes: as small integers (`Ids`), or as a set (`Filter`).

A row of bytes is identified by its hash: its number is found by binary search, and only eight bytes per
address have to be kept. Two of ten million rows share a hash with a probability of 3 · 10⁻⁶.
"""

from functools import cache

import numpy as np

from ping_llm.hashing import GOLDEN_INT, MASK, mix
from ping_llm.measurements.addresses import is_ipv4


def hashed(rows: np.ndarray, seed: int = 0, after: np.ndarray | None = None) -> np.ndarray:
    """Hash each row of bytes, uint8 [n, w], to uint64 [n].

    Args:
      after: uint64 [n], hashes of the bytes that precede each row (a multiple of eight bytes).
    """
    missing = -rows.shape[1] % 8
    if missing:
        rows = np.concatenate([rows, np.zeros((len(rows), missing), np.uint8)], axis=1)
    words = np.ascontiguousarray(rows, np.uint8).view("<u8")
    state = np.full(len(words), (seed * GOLDEN_INT) & MASK, np.uint64) if after is None else after
    for column in range(words.shape[1]):
        state = mix(state ^ words[:, column])
    return state


class Ids:
    """Numbers 0, 1, 2 … for the distinct rows of a table, in the order of their hashes.

    Attributes:
      keys: uint64 [distinct], hashes, ascending.
      of_rows: int64 [n], the number of each row of the table.
    """

    def __init__(self, packed: np.ndarray):
        self.keys, numbers = np.unique(hashed(packed), return_inverse=True)
        self.of_rows = numbers.astype(np.int64)

    #: Attributes that a stored copy omits; it is used only to look numbers up.
    NOT_KEPT = ("of_rows",)

    def check(self) -> None:
        """Raise ValueError if stored keys cannot be searched."""
        if self.keys.dtype != np.uint64 or self.keys.ndim != 1 or (self.keys[1:] <= self.keys[:-1]).any():
            raise ValueError("keys must be ascending 64-bit numbers")

    def __len__(self) -> int:
        return len(self.keys)

    def has(self, packed: np.ndarray) -> np.ndarray:
        """Whether each row has a number, bool [n]."""
        return self.find(packed) >= 0

    def find(self, packed: np.ndarray) -> np.ndarray:
        """The number of each row, int64 [n]; -1 if it has none."""
        return place_in(self.keys, hashed(packed))


def place_in(ascending: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index of each wanted value in an ascending array, int64 [n]; -1 if it is not in the array."""
    if not len(ascending):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[at] == wanted, at, -1).astype(np.int64)


def pairs_of(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Source and destination of each pair in one row, uint8 [n, 32], to number pairs."""
    return np.concatenate([src, dst], axis=1)


def prefixes_of(packed: np.ndarray, ipv4_bits: int, ipv6_bits: int) -> np.ndarray:
    """The leading bits of each address, zeros up to 16 bytes, and whether it is IPv4; uint8 [n, 17]."""
    ipv4 = is_ipv4(packed)
    masks = np.stack([_mask(ipv6_bits), _mask(96 + ipv4_bits)])
    return np.concatenate([packed & masks[ipv4.astype(np.int64)], ipv4[:, None].astype(np.uint8)], axis=1)


@cache
def _mask(bits: int) -> np.ndarray:
    ones = np.zeros(128, np.uint8)
    ones[:bits] = 1
    return np.packbits(ones)


def networks_of(packed: np.ndarray) -> np.ndarray:
    """The network of each address (/16 for IPv4, /48 for IPv6), padded with zeros; uint8 [n, 16]."""
    return prefixes_of(packed, 16, 48)[:, :16]


#: Largest number of bits per filter, and per member.
_MOST_BITS = 4 << 23
_MOST_PER_MEMBER = 32


class Filter:
    """A set of rows of bytes, uint8 [n, w], without false negatives and with rare false positives.

    A Bloom filter (Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970). Small
    sets get 32 bits per member, with one false positive in five million; no filter is larger than 4 MiB, so
    a set of three million gets 11 bits per member, with 0.5 % false positives.

    Attributes:
      words: uint64 [m], the bits.
      probes: Number of bits that are set per member.
      members: Number of distinct rows in the set.
    """

    def __init__(self, packed: np.ndarray):
        keys = np.unique(hashed(packed))
        self.members = len(keys)
        per_member = min(_MOST_PER_MEMBER, max(_MOST_BITS // max(self.members, 1), 1))
        self.probes = max(1, round(per_member * np.log(2)))
        self.words = np.zeros(max(1, -(-self.members * per_member // 64)), np.uint64)
        word, bit = self._places(keys)
        np.bitwise_or.at(self.words, word.ravel(), bit.ravel())

    def has(self, packed: np.ndarray) -> np.ndarray:
        """Whether each row is a member, bool [n]; False is certain, True is not."""
        word, bit = self._places(hashed(packed))
        out: np.ndarray = ((self.words[word] & bit) != 0).all(axis=1) & (self.members > 0)
        return out

    @property
    def false_positive_rate(self) -> float:
        """The expected share of non-members for which `has` is True."""
        bits = 64 * len(self.words)
        return float((1 - np.exp(-self.probes * self.members / bits)) ** self.probes)

    def check(self) -> None:
        """Raise ValueError if stored values cannot be a filter."""
        if self.words.dtype != np.uint64 or self.words.ndim != 1 or not len(self.words):
            raise ValueError("a filter needs 64-bit words")
        if not (1 <= self.probes <= 64 and self.members >= 0):
            raise ValueError("a filter has 1 to 64 probes")

    def _places(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Word and bit of each probe, [n, probes]: double hashing (Kirsch and Mitzenmacher, 2006)."""
        step = (keys >> np.uint64(32)) | np.uint64(1)
        probe = np.arange(self.probes, dtype=np.uint64)
        place = ((keys & np.uint64(0xFFFFFFFF))[:, None] + probe * step[:, None]) % np.uint64(
            64 * len(self.words)
        )
        return (place >> np.uint64(6)).astype(np.int64), np.uint64(1) << (place & np.uint64(63))
