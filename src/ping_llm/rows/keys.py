"""Where a row belongs: the hash of its key, and the part (shard) that this hash falls into.

The hash is part of the format: it orders the rows and must stay the same for ever and on every engine, so it
is specified here and not borrowed from a library. Spreading keys by a hash makes parts of equal size without
looking at the data, and sorting by it is 2.4 times faster than sorting by the text of addresses.
"""

from dataclasses import dataclass

import numpy as np
from numpy import uint64

from ping_llm.compiled import kernel
from ping_llm.rows.options import RowOptions
from ping_llm.rows.sortable import PROBE_ID, SRC_HIGH, SRC_LOW, WORDS

#: A part of this many measurements sorts within 400 MB and makes a shard of about 300 MB.
PART_MEASUREMENTS = 1 << 22
#: Small inputs are cut too, down to this size and up to this many parts: workers need something to share.
SMALL_PART_MEASUREMENTS = 1 << 18
SMALL_PARTS = 16


def parts_for(measurements: int) -> int:
    """The number of parts: a function of the input's size alone, never of workers or memory."""
    small = min(SMALL_PARTS, -(-measurements // SMALL_PART_MEASUREMENTS))
    return max(1, small, -(-measurements // PART_MEASUREMENTS))


@dataclass(frozen=True)
class Split:
    """A sub-folder, which owns the keys whose hash has its upper 32 bits in [begin, end)."""

    name: str
    begin: int
    end: int
    parts: int
    first_part: int

    def contains(self, part: int) -> bool:
        return self.first_part <= part < self.first_part + self.parts


def layout(options: RowOptions, measurements: int) -> list[Split]:
    """The splits with their parts. Parts are numbered through all splits."""
    splits: list[Split] = []
    cumulative, begin, first_part = 0.0, 0, 0
    fractions = options.fractions()
    for place, (name, fraction) in enumerate(fractions):
        cumulative += fraction
        end = 1 << 32 if place == len(fractions) - 1 else round(cumulative * (1 << 32))
        parts = parts_for(int(measurements * fraction))
        splits.append(Split(name, begin, end, parts, first_part))
        begin, first_part = end, first_part + parts
    return splits


def layout_table(splits: list[Split], buckets: int = 1) -> np.ndarray:
    """The layout for `part_of`: uint64 [splits, 4] of begin, end, parts, first part, with every part cut into
    `buckets` of consecutive hashes."""
    return np.array([[s.begin, s.end, s.parts * buckets, s.first_part * buckets] for s in splits], np.uint64)


@kernel
def mix(value):
    """The finalizer of splitmix64: a bijection; every bit of the input moves all of the output."""
    value = uint64(value) + uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> uint64(27))) * uint64(0x94D049BB133111EB)
    return value ^ (value >> uint64(31))


@kernel
def hash_source(high, low):
    """Hash of 16 packed bytes, given as two big-endian words."""
    return mix(mix(high) + low)


@kernel
def hash_key(words, row, by_probe):
    """Hash of a measurement's key. By probe, a measurement without a probe counts by its source."""
    if by_probe and words[row, PROBE_ID] != 0:
        return mix(words[row, PROBE_ID])
    return hash_source(words[row, SRC_HIGH], words[row, SRC_LOW])


@kernel
def part_of(hashed, table):
    """The part of a hash. The last split takes what is left, so there always is one."""
    upper = hashed >> uint64(32)
    split = 0
    while upper >= table[split, 1]:
        split += 1
    begin, end, parts = table[split, 0], table[split, 1], table[split, 2]
    return np.int64(table[split, 3] + (upper - begin) * parts // (end - begin))


def _content_factors() -> np.ndarray:
    """mix(0) | 1, mix(1) | 1, …: odd, so that no change of one word is lost."""
    mask, factors = 2**64 - 1, []
    for value in range(WORDS):
        value = (value + 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        factors.append((value ^ (value >> 31)) | 1)
    return np.array(factors, np.uint64)


_FACTORS = _content_factors()


@kernel
def content(words, row):
    """A hash of a whole measurement. Its sums (mod 2^64) tell whether two sets of measurements are equal."""
    value = uint64(0)
    for word in range(WORDS):
        value += words[row, word] * _FACTORS[word]
    return mix(value)
