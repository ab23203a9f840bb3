"""Stateless random draws, and the shape of a context: mode, kind, measurements, limit of its tokens.

Every draw is a hash of a key, a purpose and a counter. With a stateful generator, a batch would depend on all
earlier draws, and so on threads, hosts and restarts. A draw costs three multiplications, about 1.5 ns.
`reference.py` has the same functions in plain Python.

The shape is known before the row is read, which makes planning cheap: it depends on the row's count and IP
version, both in the manifest's index, and on the context's draws. It assumes the longest case, because it
does not know whether a delta takes 2 or 5 tokens, whether a ping failed, and which optional fields are known.
A context is never longer than its bound.
"""

from typing import NamedTuple

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.hashing import GOLDEN, finalize_one
from ping_llm.measurements.scramble import SHORT

# Purposes of draws. The number is part of the hash: never reuse one for another purpose.
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
SCRAMBLED = 31
SCRAMBLE_KEY = 32
CROSSED_KIND = 33
CROSSED_ANCHOR = 34
CROSSED_PAIR = 35
CROSSED_OWN = 36  # index 0: the number of results; from 1 on: their choice
CROSSED_OTHERS = 37  # the same for other sources
CROSSED_TIE = 38
CROSSED_GROUP = 39

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)

#: Leaves 2^40 draws per purpose.
_PURPOSE_SHIFT = 40

#: Number of Feistel rounds of an epoch's order. Four are the textbook minimum; two more cost 3 ns.
ROUNDS = 6


@kernel
def draw(key, purpose, index):
    """64 random bits: the `index`-th draw for `purpose` under `key`."""
    return finalize_one(key + GOLDEN * np.uint64((purpose << _PURPOSE_SHIFT) + index + 1))


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
    """The key of part number `value` (at least 0) of the object with key `key`."""
    return finalize_one(key + GOLDEN * np.uint64(value + 1))


@kernel
def epoch_key(seed, epoch):
    return combine(combine(np.uint64(0), seed), epoch)


@kernel
def context_key(of_epoch, row, number):
    """The key of the `number`-th context of a row in an epoch."""
    return combine(combine(of_epoch, row), number)


@kernel
def unit_key(seed, epoch, position):
    """The key of the unit that begins at a position of an epoch."""
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
    """Map `place` by a keyed permutation of [0, count).

    A Feistel network permutes [0, 4^h), the smallest such range that contains `count`; a value outside
    [0, count) is mapped again until it is inside (at most 4 times on average). This needs no memory for any
    size of the epoch.
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
    """Draw a size s in [1, count] with probability proportional to 1/s.

    An octave is drawn, then a size in it, which is kept with probability 2^octave / size. Only integers are
    used, because exp() differs in the last bit between machines.
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


# Timestamp modes.
ALL, PART, NONE = 0, 1, 2
MODE_NAMES = ("all", "part", "none")

# Kinds of selection.
WHOLE, WINDOW, FOCUSED, WIDE, CROSSED = 0, 1, 2, 3, 4
KIND_NAMES = ("whole", "window", "focused", "wide", "crossed")

#: Number of measurements that a wide context examines to either side, per measurement for which it has space.
#: It covers all destinations of a probe that pings thirty of them in turn; more would only cost time.
WIDE_REACH = 32

#: Smallest number of measurements with source for which a crossed context must have space. Smaller spaces are
#: filled with other kinds, including the last part of a sequence (`fill.LAST_STRETCH`): the best fit is taken
#: there, and a crossed context would always fit.
CROSSED_LEAST = 10

# Number of tokens of a time: the first in a context is absolute; rows are in order and within 1970–2100, so
# all others are deltas that fit in four bytes.
ABSOLUTE_LENGTH = 9
DELTA_LENGTH = 5


#: Value of `Shape.source_bytes` for a context that does not state its source, and number of tokens of the
#: unnamed source that it states instead.
UNNAMED = -1
UNNAMED_LENGTH = 3


class Shape(NamedTuple):
    mode: int
    kind: int
    source_bytes: int  # stated bytes of the source; 0: all; UNNAMED: none
    start: int  # start and size of the window within the row
    window: int
    measurements: int  # 0 if none fits; for CROSSED an upper limit
    bound: int  # largest number of tokens


@kernel
def untimed_count(share, count):
    """Draw how many of `count` measurements lose their time: uniform among the integers in 10–90 %.

    For a single measurement, 0 or 1. `share` is 32 random bits.
    """
    if count == 1:
        return share >> 31
    least = (count + 9) // 10
    most = (9 * count) // 10
    return least + ((share * (most - least + 1)) >> 32)


@kernel
def _time_bound(mode, share, count):
    if mode == NONE:
        return 0
    timed = count
    if mode == PART:
        timed -= untimed_count(share, count)
    if timed == 0:
        return 0
    return ABSOLUTE_LENGTH + DELTA_LENGTH * (timed - 1)


@kernel
def known_destination(key, place, cut, address):
    """Number of bytes of the destination that the measurement at `place` states; 0 means all."""
    if cut:
        return 1 + below(draw(key, DESTINATION_BYTES, place), address - 1)
    return 0


@kernel
def is_scrambled(key, p):
    """Whether the context states pseudonyms."""
    return upper(draw(key, SCRAMBLED, 0)) < p.scramble


@kernel
def address_bytes(ipv4, scrambled):
    """Number of bytes of a whole address in a context: pseudonyms of IPv6 addresses are short."""
    return 4 if ipv4 or scrambled else 16


@kernel
def address_length(ipv4, scrambled):
    """Number of tokens of a whole address: role and bytes, and PREFIX_END for a short pseudonym."""
    return 5 if ipv4 else SHORT + 2 if scrambled else 17


@kernel
def _fitting(key, most, budget, address, whole, source_bytes, mode, p):
    """The largest number of measurements, up to `most`, whose bound is within the budget, and that bound.

    `address` is the number of bytes of an address, `whole` its number of tokens.
    """
    source = whole
    if source_bytes == UNNAMED:
        source = UNNAMED_LENGTH
    elif source_bytes:
        source = source_bytes + 2
    share = upper(draw(key, UNTIMED_SHARE, 0))
    fixed = 1 + p.result_length + p.extra_length
    total = 0
    bound = 0
    for place in range(most):
        bits = draw(key, MEASUREMENT_BITS, place)
        known = known_destination(key, place, lower(bits) < p.prefix, address)
        total += fixed + (known + 2 if known else whole)
        if place == 0 or upper(bits) < p.repeat_source:
            total += source
        timed = total + _time_bound(mode, share, place + 1)
        if timed > budget:
            return place, bound
        bound = timed
    return most, bound


@kernel
def shape_of(key, measurements, ipv4, budget, p):
    """The shape of the context with this key, of a row with `measurements`, within `budget` tokens."""
    scrambled = is_scrambled(key, p)
    address, whole = address_bytes(ipv4, scrambled), address_length(ipv4, scrambled)
    if upper(draw(key, CROSSED_KIND, 0)) < p.crossed:
        longest = 1 + 2 * whole + p.result_length
        if budget >= CROSSED_LEAST * longest:
            # The number of measurements is known after selection: at most as many as fit without sources.
            most = budget // (longest - whole)
            return Shape(NONE, CROSSED, 0, 0, measurements, most, budget)
    chance = upper(draw(key, MODE, 0))
    mode = NONE
    if chance < p.all_times:
        mode = ALL
    elif chance < p.all_times + p.part_times:
        mode = PART
    source_bytes = 0
    if upper(draw(key, SOURCE_UNNAMED, 0)) < p.unnamed_source:
        source_bytes = UNNAMED
    elif upper(draw(key, SOURCE_CUT, 0)) < p.source_prefix:
        source_bytes = 1 + below(draw(key, SOURCE_BYTES, 0), address - 1)

    if measurements <= p.per_context:
        count, bound = _fitting(key, measurements, budget, address, whole, source_bytes, mode, p)
        if count == measurements:
            return Shape(mode, WHOLE, source_bytes, 0, measurements, count, bound)
    chance = upper(draw(key, KIND, 0))
    if chance < p.focus + p.wide:
        count, bound = _fitting(key, measurements, budget, address, whole, source_bytes, mode, p)
        kind = FOCUSED if chance < p.focus else WIDE
        return Shape(mode, kind, source_bytes, 0, measurements, count, bound)
    window = log_uniform(key, measurements)
    start = below(draw(key, WINDOW_OFFSET, 0), measurements - window + 1)
    count, bound = _fitting(key, window, budget, address, whole, source_bytes, mode, p)
    return Shape(mode, WINDOW, source_bytes, start, window, count, bound)
