"""The 64-bit hash of this package: the output function of SplitMix64 (Steele, Lea and Flood, 2014).

It is part of every format that orders, splits or draws by a hash, and must be the same on every machine and
in every version, so it is implemented here and not taken from a library. It has three forms with
bit-identical results: plain integers (the reference implementations), NumPy arrays, and scalars in compiled
kernels.

`finalize` is the final bijection of SplitMix64; `mix` adds the golden constant first, so that mix(0) is not
0. Output n of SplitMix64 from a state s is mix(s + n · GOLDEN).
"""

import numpy as np

from ping_llm.compiled import kernel

MASK = 2**64 - 1
GOLDEN_INT = 0x9E3779B97F4A7C15
_FACTOR1_INT = 0xBF58476D1CE4E5B9
_FACTOR2_INT = 0x94D049BB133111EB

GOLDEN = np.uint64(GOLDEN_INT)
_FACTOR1, _FACTOR2 = np.uint64(_FACTOR1_INT), np.uint64(_FACTOR2_INT)
_SHIFT30, _SHIFT27, _SHIFT31 = np.uint64(30), np.uint64(27), np.uint64(31)


def finalize_int(value: int) -> int:
    """`finalize` for one Python integer."""
    value = ((value ^ (value >> 30)) * _FACTOR1_INT) & MASK
    value = ((value ^ (value >> 27)) * _FACTOR2_INT) & MASK
    return value ^ (value >> 31)


def mix_int(value: int) -> int:
    """`mix` for one Python integer."""
    return finalize_int((value + GOLDEN_INT) & MASK)


def finalize(value):
    """Apply the 64-bit finalizer of SplitMix64, a bijection, to a uint64 array."""
    value = (value ^ (value >> _SHIFT30)) * _FACTOR1
    value = (value ^ (value >> _SHIFT27)) * _FACTOR2
    return value ^ (value >> _SHIFT31)


def mix(value: np.ndarray) -> np.ndarray:
    """The SplitMix64 output of the state `value`, a uint64 array."""
    return finalize(value + GOLDEN)


#: `finalize` for one uint64, in kernels: the same definition, compiled.
finalize_one = kernel(finalize)


@kernel
def mix_one(value):
    """`mix` for one integer, in kernels."""
    return finalize_one(np.uint64(value) + GOLDEN)
