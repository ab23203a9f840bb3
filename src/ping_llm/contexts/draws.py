"""Chance without state: every draw is a hash of who asks, for what, and how often before.

A generator with state would tie a batch to everything drawn before it, and so to threads, hosts and restarts.
Here a draw is a function of integers alone. One costs three multiplications, about 1.5 ns.
`reference.py` has the same functions in plain Python.
"""

import numpy as np

from ping_llm.compiled import kernel

# What is drawn. The number is part of the hash: never reuse one for another purpose.
MODE = 1
SOURCE_CUT = 2
SOURCE_BYTES = 3
KIND = 4
WINDOW_OCTAVE = 5
WINDOW_SIZE = 6
WINDOW_KEEP = 7
WINDOW_OFFSET = 8
SAMPLE = 9
FOCUS_POINT = 10
FOCUS_COUNT = 11
FOCUS_OTHER = 12
UNTIMED_SHARE = 13
UNTIMED_RANK = 14
UNTIMED_PLACE = 15
SHUFFLE = 16
MEASUREMENT_BITS = 17  # upper half: state the source again; lower half: cut the destination
DESTINATION_BYTES = 18
FIELD_ORDER = 19
FILLER_PICK = 20
FILLER_KEY = 21
SEQUENCE_ORDER = 22
ROUND = 23  # to 28: one for each of ROUNDS
ORDERED = 29
SOURCE_UNNAMED = 30

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_THIRTY = np.uint64(30)
_TWENTY_SEVEN = np.uint64(27)
_THIRTY_ONE = np.uint64(31)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)

#: Room for 2^40 draws of one purpose.
_PURPOSE_SHIFT = 40

#: Feistel rounds of the epoch's order. Four are the textbook's minimum; two more cost 3 ns.
ROUNDS = 6


@kernel
def mix(value):
    """Spread 64 bits over 64 bits, one to one (the finaliser of SplitMix64)."""
    value = (value ^ (value >> _THIRTY)) * _FIRST
    value = (value ^ (value >> _TWENTY_SEVEN)) * _SECOND
    return value ^ (value >> _THIRTY_ONE)


@kernel
def draw(key, purpose, index):
    """64 random bits: the `index`-th draw for `purpose` under `key`."""
    return mix(key + _GOLDEN * np.uint64((purpose << _PURPOSE_SHIFT) + index + 1))


@kernel
def below(bits, count):
    """An integer in [0, count) from random bits; count < 2^32, so the bias is below 2^-32 times count."""
    return np.int64(((bits >> _HALF) * np.uint64(count)) >> _HALF)


@kernel
def upper(bits):
    return np.int64(bits >> _HALF)


@kernel
def lower(bits):
    return np.int64(bits & _LOW)


@kernel
def combine(key, value):
    """The key of a part: `value` (at least 0) of what `key` names."""
    return mix(key + _GOLDEN * np.uint64(value + 1))


@kernel
def epoch_key(seed, epoch):
    return combine(combine(np.uint64(0), seed), epoch)


@kernel
def context_key(of_epoch, row, number):
    """The key of the `number`-th context of a row in an epoch."""
    return combine(combine(of_epoch, row), number)


@kernel
def unit_key(seed, epoch, position):
    """The key of the unit that begins at a place in the order."""
    return combine(epoch_key(seed, epoch), position)


@kernel
def filler_keys(seed, epoch, position, sequences):
    """The keys of the fillers of a unit's sequences.

    A kernel, and not a loop in Python, because Python hands an integer below 2^63 to compiled code as a
    signed one.
    """
    keys = np.empty(len(sequences), np.uint64)
    for index in range(len(sequences)):
        keys[index] = combine(unit_key(seed, epoch, position), sequences[index])
    return keys


@kernel
def permuted(place, count, key):
    """Where a keyed permutation of [0, count) sends `place`.

    A Feistel network permutes [0, 4^h), the smallest such range that holds `count`; what falls outside is
    sent on until it falls inside (at most 4 times on average). No memory, whatever the epoch's size.
    """
    half = 1
    while (1 << (2 * half)) < count:
        half += 1
    mask = (1 << half) - 1
    value = place
    while True:
        left = value >> half
        right = value & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (upper(draw(key, ROUND + turn, right)) & mask)
        value = (left << half) | right
        if value < count:
            return value


@kernel
def log_uniform(key, count):
    """A size s in [1, count] with probability proportional to 1/s.

    An octave is drawn, a size in it, and kept with probability 2^octave / size: integers only, because
    exp() differs in the last bit from machine to machine.
    """
    octaves = 0
    while (2 << octaves) <= count:
        octaves += 1
    tries = 0
    while True:
        octave = below(draw(key, WINDOW_OCTAVE, tries), octaves + 1)
        size = (1 << octave) + below(draw(key, WINDOW_SIZE, tries), 1 << octave)
        if size <= count and below(draw(key, WINDOW_KEEP, tries), size) < (1 << octave):
            return size
        tries += 1
