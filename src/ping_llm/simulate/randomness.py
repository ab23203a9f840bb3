"""Counter-based randomness: a number is a pure function of (seed, stream, index).

So a measurement does not depend on which block, thread or restart drew it. NumPy's generators would tie
the bytes to their order of use and, for the distributions, to NumPy's version.
"""

from enum import IntEnum

import numpy as np

from ping_llm.compiled import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_FACTOR1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR2 = np.uint64(0x94D049BB133111EB)
_SHIFT30, _SHIFT27, _SHIFT31, _SHIFT11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


class Stream(IntEnum):
    """What a random number is for. Numbers are part of the world's version: never reuse one."""

    AS_PLACE = 1
    AS_PREFIX = 2
    AS_ACCESS = 3
    AS_CONGESTION = 4
    SITE_PLACE = 5
    PROBE_ACCESS = 6
    PROBE_DELAY = 7
    PROBE_JITTER = 8
    PROBE_COUNT = 9
    PROBE_INTERFACE = 10
    PROBE_INTERVAL = 11
    PROBE_START = 12
    TARGET_FAILURE = 13
    TARGET_HOUR = 14
    TARGET_DELAY = 15
    TARGET_INTERFACE = 16
    TARGET_SIZE = 17
    SLOT_TARGET = 18
    SLOT_PHASE = 19
    TIME_JITTER = 20
    PAIR_INFLATION = 21
    PAIR_DETOUR = 22
    ROUTE_LENGTH = 23
    ROUTE_OFFSET = 24
    ROUTE_CHANGE = 25
    FAILURE = 26
    COMPONENT = 27
    JITTER = 28
    PACKET_LOSS = 29
    TARGET_RANK = 30


def _mix(x):
    x = (x ^ (x >> _SHIFT30)) * _FACTOR1
    x = (x ^ (x >> _SHIFT27)) * _FACTOR2
    return x ^ (x >> _SHIFT31)


# The one definition works on uint64 arrays in NumPy and on scalars in compiled kernels.
_mix_one = kernel(_mix)


def stream_key(seed: int, stream: Stream) -> np.uint64:
    values = np.array([seed], np.uint64)
    return _mix(_mix(values + _GOLDEN) + np.array([int(stream)], np.uint64) * _ODD)[0]


@kernel
def bits_at(key, first, second):
    """64 random bits of a key and two counters, in kernels."""
    return _mix_one(_mix_one(key + np.uint64(first) * _GOLDEN) + np.uint64(second) * _ODD)


@kernel
def uniform_at(key, first, second):
    """A number strictly between 0 and 1, of a key and two counters, in kernels."""
    return (np.float64(bits_at(key, first, second) >> _SHIFT11) + 0.5) * 2.0**-53


def bits(seed: int, stream: Stream, first: np.ndarray, second: np.ndarray | int = 0) -> np.ndarray:
    """The same bits as `bits_at`, for arrays."""
    key = np.array([stream_key(seed, stream)])
    inner = _mix(key + np.asarray(first).astype(np.uint64) * _GOLDEN)
    return _mix(inner + np.atleast_1d(np.asarray(second)).astype(np.uint64) * _ODD)


def uniform(seed: int, stream: Stream, first: np.ndarray, second: np.ndarray | int = 0) -> np.ndarray:
    """The same numbers as `uniform_at`, for arrays."""
    return ((bits(seed, stream, first, second) >> _SHIFT11).astype(np.float64) + 0.5) * 2.0**-53
