"""Addresses, pairs and networks by 64-bit hashes: as small integers (`Ids`), or as a set (`Filter`).

A row of bytes is known by a hash of it: a number is found by binary search, and eight bytes per address are
all that has to be kept. Two of ten million rows share a hash with a probability of 3 · 10⁻⁶.
"""

from functools import cache

import numpy as np

from ping_llm.hashing import GOLDEN_INT, MASK, mix
from ping_llm.measurements.addresses import is_ipv4


def hashed(rows: np.ndarray, seed: int = 0, after: np.ndarray | None = None) -> np.ndarray:
    """uint64 [n]: a hash of each row of bytes, uint8 [n, w].

    Args:
      after: uint64 [n], the hashes of what stands before each row (a multiple of eight bytes).
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
      keys: uint64 [distinct], ascending.
      of_rows: int64 [n], the number of each row that was given.
    """

    def __init__(self, packed: np.ndarray):
        self.keys, numbers = np.unique(hashed(packed), return_inverse=True)
        self.of_rows = numbers.astype(np.int64)

    #: What a stored copy does without: it is only asked for numbers.
    NOT_KEPT = ("of_rows",)

    def check(self) -> None:
        """Refuse stored keys that cannot be searched."""
        if self.keys.dtype != np.uint64 or self.keys.ndim != 1 or (self.keys[1:] <= self.keys[:-1]).any():
            raise ValueError("keys must be ascending 64-bit numbers")

    def __len__(self) -> int:
        return len(self.keys)

    def has(self, packed: np.ndarray) -> np.ndarray:
        """bool [n]: whether each row is one of them."""
        return self.find(packed) >= 0

    def find(self, packed: np.ndarray) -> np.ndarray:
        """int64 [n]: the number of each row, -1 where it is new."""
        return place_in(self.keys, hashed(packed))


def place_in(ascending: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """int64 [n]: where each of the wanted stands in an ascending array, -1 where it is not there."""
    if not len(ascending):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[at] == wanted, at, -1).astype(np.int64)


def pairs_of(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """uint8 [n, 32]: source and destination side by side, to number pairs with."""
    return np.concatenate([src, dst], axis=1)


def prefixes_of(packed: np.ndarray, ipv4_bits: int, ipv6_bits: int) -> np.ndarray:
    """uint8 [n, 17]: the leading bits of each address, zeros up to 16 bytes, and whether it is IPv4."""
    ipv4 = is_ipv4(packed)
    masks = np.stack([_mask(ipv6_bits), _mask(96 + ipv4_bits)])
    return np.concatenate([packed & masks[ipv4.astype(np.int64)], ipv4[:, None].astype(np.uint8)], axis=1)


@cache
def _mask(bits: int) -> np.ndarray:
    ones = np.zeros(128, np.uint8)
    ones[:bits] = 1
    return np.packbits(ones)


def networks_of(packed: np.ndarray) -> np.ndarray:
    """uint8 [n, 16]: the network of each address, /16 of IPv4 and /48 of IPv6, with zeros after it."""
    return prefixes_of(packed, 16, 48)[:, :16]


#: Bits of one filter at most, and of one member.
_MOST_BITS = 4 << 23
_MOST_PER_MEMBER = 32


class Filter:
    """Membership of rows of bytes, uint8 [n, w]: it never denies a member, and rarely claims a stranger.

    A Bloom filter (Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970). Up to 32
    bits per member while the set is small, which claims one stranger in five million; no filter is larger
    than 4 MiB, so a set of three million gets 11 bits each and claims 0.5 %.

    Attributes:
      words: uint64 [m], the bits.
      probes: bits that are set for a member.
      members: how many distinct rows are in it.
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
        """bool [n]: whether each row is a member, as far as the filter can tell."""
        word, bit = self._places(hashed(packed))
        out: np.ndarray = ((self.words[word] & bit) != 0).all(axis=1) & (self.members > 0)
        return out

    @property
    def false_positive_rate(self) -> float:
        """The share of strangers that are taken for members."""
        bits = 64 * len(self.words)
        return float((1 - np.exp(-self.probes * self.members / bits)) ** self.probes)

    def check(self) -> None:
        """Refuse stored values that cannot be a filter."""
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
