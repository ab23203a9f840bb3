"""Where a row belongs: the hash of its key, and the part (shard) that this hash falls into.

The hash is part of the format: it orders the rows and must stay the same for ever and on every engine, so it is
specified here and not borrowed from a library. Spreading sources by a hash makes parts of equal size without
looking at the data, and sorting by it is 2.4 times faster than sorting by the text of addresses.
"""

from numba import njit
from numpy import uint64

from ping_llm.rows.sortable import PROBE_ID, SRC_HIGH, SRC_LOW

#: A part of this many measurements sorts within 400 MB and makes a shard of about 250 MB.
PART_MEASUREMENTS = 1 << 22
#: Small inputs are cut too, down to this size and up to this many parts, so that workers have something to share.
SMALL_PART_MEASUREMENTS = 1 << 18
SMALL_PARTS = 16


def parts_for(measurements: int) -> int:
    """The number of parts: a function of the input's size alone, so that workers and memory cannot change bytes."""
    small = min(SMALL_PARTS, -(-measurements // SMALL_PART_MEASUREMENTS))
    return max(1, small, -(-measurements // PART_MEASUREMENTS))


@njit(cache=True, nogil=True)
def mix(value):
    """The finalizer of splitmix64: a bijection in which every bit of the input moves every bit of the output."""
    value = uint64(value) + uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> uint64(27))) * uint64(0x94D049BB133111EB)
    return value ^ (value >> uint64(31))


@njit(cache=True, nogil=True)
def hash_source(high, low):
    """Hash of 16 packed bytes, given as two big-endian words."""
    return mix(mix(high) + low)


@njit(cache=True, nogil=True)
def hash_key(words, row, by_probe):
    """Hash of a measurement's key. By probe, a measurement without a probe counts by its source."""
    if by_probe and words[row, PROBE_ID] != 0:
        return mix(words[row, PROBE_ID])
    return hash_source(words[row, SRC_HIGH], words[row, SRC_LOW])
