"""One context, compiled: select measurements of a row, order them, write their tokens."""

from itertools import permutations
from math import factorial

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.contexts.draws import (
    ALL,
    FIELD_ORDER,
    FOCUS_COUNT,
    FOCUS_OTHER,
    FOCUS_POINT,
    FOCUSED,
    MEASUREMENT_BITS,
    NONE,
    ORDERED,
    SAMPLE,
    SCRAMBLE_KEY,
    SHUFFLE,
    UNNAMED,
    UNTIMED_PLACE,
    UNTIMED_RANK,
    UNTIMED_SHARE,
    WIDE,
    WIDE_REACH,
    WINDOW,
    address_bytes,
    below,
    draw,
    is_scrambled,
    known_destination,
    lower,
    untimed_count,
    upper,
)
from ping_llm.measurements.scramble import SHORT, scramble_into, short_into
from ping_llm.tokens.codec import (
    put_address,
    put_errors,
    put_msm_id,
    put_probe_id,
    put_result,
    put_size,
    put_throughput,
    put_time,
    put_unnamed_source,
)
from ping_llm.tokens.vocab import (
    DST_IPV4,
    DST_IPV6,
    LARGEST_PROBE_ID,
    MEASUREMENT,
    SRC_IPV4,
    SRC_IPV6,
    Field,
)

#: Largest number of fields whose orders are in a table: those of nine would take 3 MB, and a second to make.
TABLED_FIELDS = 8

#: Bits per position of a packed order, their mask, and the order that changes nothing.
FIELD_BITS, FIELD_MASK = 4, 15
AS_THEY_ARE = sum(place << (FIELD_BITS * place) for place in range(len(Field)))

_SRC, _DST, _TIME, _RESULT = int(Field.SRC), int(Field.DST), int(Field.TIME), int(Field.RESULT)
_SIZE, _ERRORS, _MSM_ID, _PROBE_ID = (int(Field[name]) for name in ("SIZE", "ERRORS", "MSM_ID", "PROBE_ID"))
_THROUGHPUT = int(Field.THROUGHPUT)

_MICROSECONDS = 1_000_000


def _order_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All orders of 0..8 fields, sorted, four bits per position; the index of the first of f fields; f!."""
    packed: list[int] = []
    starts, counts = [], []
    for fields in range(TABLED_FIELDS + 1):
        starts.append(len(packed))
        counts.append(factorial(fields))
        packed += [
            sum(which << (FIELD_BITS * place) for place, which in enumerate(order))
            for order in permutations(range(fields))
        ]
    return np.array(packed, np.int64), np.array(starts, np.int64), np.array(counts, np.int64)


ORDERS, ORDER_STARTS, ORDER_COUNTS = _order_tables()


@kernel
def drawn_order(fields, key, place):
    """Draw an order of the fields, packed. For nine: the first field, then an order of the other eight."""
    if fields <= TABLED_FIELDS:
        return ORDERS[ORDER_STARTS[fields] + below(draw(key, FIELD_ORDER, place), ORDER_COUNTS[fields])]
    of_others = ORDER_COUNTS[TABLED_FIELDS]
    which = below(draw(key, FIELD_ORDER, place), fields * of_others)
    first = which // of_others
    others = ORDERS[ORDER_STARTS[TABLED_FIELDS] + which % of_others]
    order = first
    for turn in range(TABLED_FIELDS):
        other = (others >> (FIELD_BITS * turn)) & FIELD_MASK
        order |= (other + (other >= first)) << (FIELD_BITS * (turn + 1))
    return order


@kernel
def _mark_sample(marks, key, size, count):
    """Mark `count` of [0, size); all subsets are equally likely (Floyd's algorithm, one draw per mark)."""
    for last in range(size - count, size):
        pick = below(draw(key, SAMPLE, last), last + 1)
        if marks[pick]:
            pick = last
        marks[pick] = 1


@kernel
def _matches(dst, at, focus, many):
    for index in range(many):
        if dst[at, 0] == dst[focus[index], 0] and dst[at, 1] == dst[focus[index], 1]:
            return True
    return False


@kernel
def _select_around(chosen, marks, ranks, focus, key, kind, most_focus, count, dst, begin, size):
    """Select measurements around a random point, then a random sample of the others in the same range.

    FOCUSED: the nearest measurements to a few destinations. WIDE: the nearest one to each destination.
    `focus` has space for the largest number of destinations.

    The range includes at least `count` measurements around the point, so that a context has as many as
    planned.
    """
    point = below(draw(key, FOCUS_POINT, 0), size)
    focus[0] = begin + point
    many = 1
    reach = WIDE_REACH * count
    if kind == FOCUSED:
        reach = size
        many += below(draw(key, FOCUS_COUNT, 0), most_focus)
        for index in range(1, many):  # one drawn twice leaves fewer destinations
            focus[index] = begin + below(draw(key, FOCUS_OTHER, index), size)
    marks[point] = 1
    taken = 1
    first = last = point
    distance = 0
    while taken < count and distance < reach and (point - distance > 0 or point + distance < size - 1):
        distance += 1
        for index in (point + distance, point - distance):
            if taken == count or index < 0 or index >= size:
                continue
            if _matches(dst, begin + index, focus, many) == (kind == FOCUSED):
                marks[index] = 1
                taken += 1
                first = min(first, index)
                last = max(last, index)
                if kind == WIDE:
                    focus[many] = begin + index
                    many += 1
    around = max(0, min(point - count // 2, size - count))
    first = min(first, around)
    last = max(last, around + count - 1)
    _mark_sample(ranks, key, last - first + 1 - taken, count - taken)
    rank = 0
    place = 0
    for index in range(first, last + 1):
        if marks[index]:
            marks[index] = 0
            chosen[place] = index
            place += 1
        else:
            if ranks[rank]:
                ranks[rank] = 0
                chosen[place] = index
                place += 1
            rank += 1


@kernel
def select(chosen, marks, ranks, focus, key, shape, dst, begin, size, p):
    """Fill `chosen` with ascending indices within the row. `marks` and `ranks` are 0 before and after."""
    if shape.kind == FOCUSED or shape.kind == WIDE:
        _select_around(
            chosen,
            marks,
            ranks,
            focus,
            key,
            shape.kind,
            p.focus_destinations,
            shape.measurements,
            dst,
            begin,
            size,
        )
    elif shape.kind == WINDOW and shape.measurements < shape.window:
        _mark_sample(marks, key, shape.window, shape.measurements)
        place = 0
        for index in range(shape.window):
            if marks[index]:
                marks[index] = 0
                chosen[place] = shape.start + index
                place += 1
    else:
        for place in range(shape.measurements):
            chosen[place] = shape.start + place


@kernel
def _shuffle(values, count, key):
    for last in range(count - 1, 0, -1):
        other = below(draw(key, SHUFFLE, last), last + 1)
        values[last], values[other] = values[other], values[last]


@kernel
def arrange(order, timed, chosen, loose, key, mode, count):
    """Fill `order` with the chosen measurements as stated, and `timed` with 1 for those that state a time."""
    if mode != ALL and mode != NONE:
        lost = untimed_count(upper(draw(key, UNTIMED_SHARE, 0)), count)
        left = lost
        kept = 0
        for rank in range(count):
            if below(draw(key, UNTIMED_RANK, rank), count - rank) < left:
                loose[lost - left] = chosen[rank]
                left -= 1
            else:
                chosen[kept] = chosen[rank]
                kept += 1
        _shuffle(loose, lost, key)
        left = lost
        for place in range(count):
            if below(draw(key, UNTIMED_PLACE, place), count - place) < left:
                order[place] = loose[lost - left]
                timed[place] = 0
                left -= 1
            else:
                order[place] = chosen[place - (lost - left)]
                timed[place] = 1
        return
    for place in range(count):
        order[place] = chosen[place]
        timed[place] = 1 if mode == ALL else 0
    if mode == NONE:
        _shuffle(order, count, key)


@kernel
def pseudonym_into(out, packed, ipv4, known, key):
    """Write the pseudonym of an address; return the number of stated bytes, where 0 means all of IPv4."""
    if ipv4:
        scramble_into(out, packed, key)
        return known
    short_into(out, packed, key)
    return known if known else SHORT


@kernel
def write(out, position, key, shape, order, timed, source, ipv4, begin, columns, p):
    """Write the context's tokens at out[position]; return the position after them."""
    time, dst, rtt, size, errors, msm_id, probe_id, throughput = columns
    scrambled = is_scrambled(key, p)
    address = address_bytes(ipv4, scrambled)
    previous = np.int64(-1)
    ordered = upper(draw(key, ORDERED, 0)) < p.ordered
    pseudonyms = draw(key, SCRAMBLE_KEY, 0)
    stated_source, stated = np.empty(16, np.uint8), np.empty(16, np.uint8)
    source_bytes = shape.source_bytes
    if scrambled:
        source_bytes = pseudonym_into(stated_source, source, ipv4, source_bytes, pseudonyms)
    else:
        stated_source[:] = source
    for place in range(shape.measurements):
        at = begin + order[place]
        bits = draw(key, MEASUREMENT_BITS, place)
        fields = 0
        present = 0
        if place == 0 or upper(bits) < p.repeat_source:
            present = _SRC
            fields = 1
        present |= _DST << (FIELD_BITS * fields)
        fields += 1
        if timed[place]:
            present |= _TIME << (FIELD_BITS * fields)
            fields += 1
        present |= _RESULT << (FIELD_BITS * fields)
        result = fields
        fields += 1
        if p.size and size[at] >= 0:
            present |= _SIZE << (FIELD_BITS * fields)
            fields += 1
        if p.errors and errors[at] >= 0:
            present |= _ERRORS << (FIELD_BITS * fields)
            fields += 1
        if p.msm_id and msm_id[at] >= 0:
            present |= _MSM_ID << (FIELD_BITS * fields)
            fields += 1
        if p.probe_id and probe_id[at] >= 0 and probe_id[at] <= LARGEST_PROBE_ID:
            present |= _PROBE_ID << (FIELD_BITS * fields)
            fields += 1
        if p.throughput and throughput[at] > 0:
            present |= _THROUGHPUT << (FIELD_BITS * fields)
            fields += 1
        permutation = AS_THEY_ARE if ordered else drawn_order(fields, key, place)

        out[position] = MEASUREMENT
        position += 1
        for turn in range(fields):
            slot = (permutation >> (FIELD_BITS * turn)) & FIELD_MASK
            if ordered and turn >= result:  # as in prompts: optional fields, then the result
                slot = result if turn == fields - 1 else turn + 1
            field = (present >> (FIELD_BITS * slot)) & FIELD_MASK
            if field == _DST:
                known = known_destination(key, place, lower(bits) < p.prefix, address)
                if scrambled:
                    known = pseudonym_into(stated, dst[at], ipv4, known, pseudonyms)
                    position = put_address(out, position, DST_IPV4, DST_IPV6, stated, known)
                else:
                    position = put_address(out, position, DST_IPV4, DST_IPV6, dst[at], known)
            elif field == _RESULT:
                position = put_result(out, position, rtt[at], p.encoding, p.clip_limit_ms)
            elif field == _TIME:
                seconds = time[at] // _MICROSECONDS
                position = put_time(out, position, seconds, previous)
                previous = seconds
            elif field == _SRC and shape.source_bytes == UNNAMED:
                position = put_unnamed_source(out, position, ipv4)
            elif field == _SRC:
                position = put_address(out, position, SRC_IPV4, SRC_IPV6, stated_source, source_bytes)
            elif field == _SIZE:
                position = put_size(out, position, size[at])
            elif field == _ERRORS:
                position = put_errors(out, position, errors[at])
            elif field == _MSM_ID:
                position = put_msm_id(out, position, msm_id[at])
            elif field == _PROBE_ID:
                position = put_probe_id(out, position, probe_id[at])
            else:
                position = put_throughput(out, position, np.int64(throughput[at]) - 1)
    return position
