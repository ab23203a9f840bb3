"""What is known of a context before its row is read: mode, kind, count, and a bound on its tokens.

The bound is what makes planning cheap: it needs the row's count and IP version, both in the manifest's index,
and the context's draws. What it cannot know is whether a delta takes 2 tokens or 5, whether a ping failed,
and which optional fields are known; it assumes the longest. A context is never longer than its bound.
"""

from typing import NamedTuple

from ping_llm.compiled import kernel
from ping_llm.contexts.draws import (
    DESTINATION_BYTES,
    KIND,
    MEASUREMENT_BITS,
    MODE,
    SOURCE_BYTES,
    SOURCE_CUT,
    SOURCE_UNNAMED,
    UNTIMED_SHARE,
    WINDOW_OFFSET,
    below,
    draw,
    log_uniform,
    lower,
    upper,
)

# Timestamp modes.
ALL, PART, NONE = 0, 1, 2
MODE_NAMES = ("all", "part", "none")

# Kinds of selection.
WHOLE, WINDOW, FOCUSED, WIDE = 0, 1, 2, 3
KIND_NAMES = ("whole", "window", "focused", "wide")

#: A wide context looks so many measurements far to either side for each that it has room for: a probe that
#: pings thirty destinations in turn is through with them after one. More would only cost time.
WIDE_REACH = 32

# Tokens of a time: the first of a context is absolute; rows are in order and within 1970–2100, so
# every other one is a delta that four bytes can hold.
ABSOLUTE_LENGTH = 9
DELTA_LENGTH = 5


#: `Shape.source_bytes` of a context that does not tell its source, and the tokens that say so.
UNNAMED = -1
UNNAMED_LENGTH = 3


class Shape(NamedTuple):
    mode: int
    kind: int
    source_bytes: int  # how much of the source is stated; 0: all of it; UNNAMED: nothing
    start: int  # the window within the row
    window: int
    measurements: int  # 0 if not even one fits
    bound: int  # tokens at most


@kernel
def untimed_count(share, count):
    """How many of `count` measurements lose their time: uniform among the whole numbers in 10–90 %.

    Of a single measurement, 0 or 1. `share` is 32 random bits.
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
    """How many bytes of the destination the measurement at `place` states; 0 means all."""
    if cut:
        return 1 + below(draw(key, DESTINATION_BYTES, place), address - 1)
    return 0


@kernel
def _fitting(key, most, budget, address, source_bytes, mode, p):
    """The most measurements, up to `most`, whose bound is within the budget; and that bound."""
    source = address + 1
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
        total += fixed + (known + 2 if known else address + 1)
        if place == 0 or upper(bits) < p.repeat_source:
            total += source
        timed = total + _time_bound(mode, share, place + 1)
        if timed > budget:
            return place, bound
        bound = timed
    return most, bound


@kernel
def shape_of(key, measurements, ipv4, budget, p):
    """The shape of the context `key` of a row with so many measurements, within `budget` tokens."""
    address = 4 if ipv4 else 16
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
        count, bound = _fitting(key, measurements, budget, address, source_bytes, mode, p)
        if count == measurements:
            return Shape(mode, WHOLE, source_bytes, 0, measurements, count, bound)
    chance = upper(draw(key, KIND, 0))
    if chance < p.focus + p.wide:
        count, bound = _fitting(key, measurements, budget, address, source_bytes, mode, p)
        kind = FOCUSED if chance < p.focus else WIDE
        return Shape(mode, kind, source_bytes, 0, measurements, count, bound)
    window = log_uniform(key, measurements)
    start = below(draw(key, WINDOW_OFFSET, 0), measurements - window + 1)
    count, bound = _fitting(key, window, budget, address, source_bytes, mode, p)
    return Shape(mode, WINDOW, source_bytes, start, window, count, bound)
