"""Crossed contexts: measurements around one pair of source and destination.

A crossed context states, source by source: results of some other sources to the pair's destination and to
destinations that the pair's source measured too; then results of the pair's source; last the pair. It is
matrix completion as text. Sources and destinations adjacent in the order of addresses are chosen more often
than at random, because a common prefix is informative.

All measurements are held in memory in two orders, by source and by destination: 24 bytes per measurement. A
context is a function of its key and of these orders.
"""

from dataclasses import dataclass, replace

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.contexts.context import AS_THEY_ARE, FIELD_BITS, FIELD_MASK, drawn_order, pseudonym_into
from ping_llm.contexts.draws import (
    CROSSED_ANCHOR,
    CROSSED_GROUP,
    CROSSED_OTHERS,
    CROSSED_OWN,
    CROSSED_PAIR,
    CROSSED_TIE,
    ORDERED,
    SCRAMBLE_KEY,
    address_length,
    below,
    draw,
    is_scrambled,
    upper,
)
from ping_llm.errors import PingError
from ping_llm.rows.block import RowBlock
from ping_llm.tokens.codec import put_address, put_result
from ping_llm.tokens.vocab import DST_IPV4, DST_IPV6, MEASUREMENT, SRC_IPV4, SRC_IPV6, Field

#: Largest numbers per context: results of its source, other sources, and ties per other source. A tie is a
#: result of another source to a destination among the stated results of the context's source.
MOST_OWN = 12
MOST_OTHERS = 12
MOST_TIES = 3

#: Number of candidates examined per other source to be stated; those with most ties are taken.
LOOKED_AT = 3

#: Share of contexts in which other results of the pair itself may be stated, times 2^32: a quarter.
PAIR_SHARE = 1 << 30

#: Probability of trying each of the two neighbours in the order of addresses, times 2^32: a half.
NEIGHBOUR_SHARE = 1 << 31

#: Largest number of measurements held in memory: 24 bytes each, and 80 while they are read.
MOST_MEASUREMENTS = 50_000_000

_SRC, _DST, _RESULT = int(Field.SRC), int(Field.DST), int(Field.RESULT)


@dataclass(frozen=True)
class Crossing:
    """Measurements by source and by destination, which are numbered in the order of their bytes.

    Attributes:
        row_source: int32 [rows], the source of each row; -1 for a row that could not be read.
        sources, destinations: uint8 [., 16], the addresses.
        by_source: int64 [sources + 1], the first index of each source's measurements in `dst` (int32) and
            `rtt`; those of a source are ordered by destination.
        by_destination: int64 [destinations + 1], the same for `src` and `rtt_of`, ordered by source.
    """

    row_source: np.ndarray
    sources: np.ndarray
    destinations: np.ndarray
    by_source: np.ndarray
    dst: np.ndarray
    rtt: np.ndarray
    by_destination: np.ndarray
    src: np.ndarray
    rtt_of: np.ndarray

    @classmethod
    def of(cls, block: RowBlock) -> "Crossing":
        """Make it from all rows; those without measurements are left out."""
        counts = np.diff(block.offsets)
        sources, source_of_row = numbered(block.src)
        destinations, dst = numbered(block.dst)
        src = np.repeat(source_of_row, counts)
        made = cls.of_pairs(sources, destinations, src, dst, block.rtt)
        return replace(made, row_source=np.where(counts > 0, source_of_row, -1).astype(np.int32))

    @classmethod
    def of_pairs(
        cls, sources: np.ndarray, destinations: np.ndarray, src: np.ndarray, dst: np.ndarray, rtt: np.ndarray
    ) -> "Crossing":
        """Make it from measurements of numbered sources to numbered destinations, without rows."""
        src, dst = src.astype(np.int32), dst.astype(np.int32)
        order = np.lexsort((dst, src))  # stable: equal pairs stay in their order
        back = np.lexsort((src, dst))
        return cls(
            np.zeros(0, np.int32),
            sources,
            destinations,
            np.searchsorted(src[order], np.arange(len(sources) + 1)),
            dst[order],
            rtt[order],
            np.searchsorted(dst[back], np.arange(len(destinations) + 1)),
            src[back],
            rtt[back],
        )

    @classmethod
    def empty(cls) -> "Crossing":
        return cls.of(RowBlock.empty(0, 0))

    @staticmethod
    def check(measurements: int) -> None:
        """Raise a PingError if there are more than MOST_MEASUREMENTS."""
        if measurements > MOST_MEASUREMENTS:
            raise PingError(
                f"crossed contexts keep all measurements in memory, at most {MOST_MEASUREMENTS:,}; these "
                f"rows have {measurements:,}. Give network_crossed_probability=0, or rows of a sample"
            )

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays in the order that the kernels expect."""
        return (
            self.row_source,
            self.sources,
            self.destinations,
            self.by_source,
            self.dst,
            self.rtt,
            self.by_destination,
            self.src,
            self.rtt_of,
        )


def numbered(addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct addresses in the order of their bytes, and the index of each given address, int32."""
    words = np.ascontiguousarray(addresses).view(">u8").reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    new = np.ones(len(order), bool)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    number = np.empty(len(order), np.int32)
    number[order] = np.cumsum(new) - 1
    return addresses[order[new]], number


@kernel
def first_not_below(values, begin, end, wanted):
    while begin < end:
        middle = (begin + end) >> 1
        if values[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _place(key, purpose, turn, values, begin, end, near):
    """The index that is tried at a turn: first the two neighbours of `near`, then any; -1 for none."""
    if turn < 2:
        bits = draw(key, purpose, turn + 1)
        if upper(bits) >= NEIGHBOUR_SHARE:
            return np.int64(-1)
        if turn == 0:
            at = first_not_below(values, begin, end, near) - 1
            return at if at >= begin else np.int64(-1)
        at = first_not_below(values, begin, end, near + 1)
        return at if at < end else np.int64(-1)
    return begin + below(draw(key, purpose, turn + 1), end - begin)


@kernel
def _has(values, count, wanted):
    for index in range(count):  # noqa: SIM110 — compiled code has no any()
        if values[index] == wanted:
            return True
    return False


@kernel
def _shuffle_groups(groups, count, key):
    for last in range(count - 1, 0, -1):
        other = below(draw(key, CROSSED_GROUP, last), last + 1)
        groups[last], groups[other] = groups[other], groups[last]


@kernel
def select_crossed(who, to, rtts, key, bound, ipv4, row, crossing, p):
    """Select the sources, destinations and RTTs of a context, in the order of stating; return their number.

    All addresses are whole. With each source stated once, the context has at most `bound` tokens.
    """
    row_source, _, _, by_source, s_dst, s_rtt, by_destination, d_src, d_rtt = crossing
    address = address_length(ipv4, is_scrambled(key, p))
    measurement = 1 + address + p.result_length
    source = row_source[row]
    begin, end = by_source[source], by_source[source + 1]
    anchor = begin + below(draw(key, CROSSED_ANCHOR, 0), end - begin)
    asked = s_dst[anchor]
    room = bound - address - measurement

    # Results of the source: at most half of the space, so that with IPv6 some is left for other sources.
    wanted = below(draw(key, CROSSED_OWN, 0), MOST_OWN + 1)
    pair = upper(draw(key, CROSSED_PAIR, 0)) < PAIR_SHARE
    own = np.empty(MOST_OWN, np.int64)
    own_dst = np.empty(MOST_OWN, np.int64)
    owned = 0
    for turn in range(2 * wanted + 2):
        if owned == wanted or 2 * (owned + 1) * measurement > room:
            break
        at = _place(key, CROSSED_OWN, turn, s_dst, begin, end, asked)
        if at < 0 or at == anchor or _has(own, owned, at):
            continue
        if s_dst[at] == asked:
            if not pair:
                continue
        elif _has(own_dst, owned, s_dst[at]):
            continue
        own[owned] = at
        own_dst[owned] = s_dst[at]
        owned += 1
    room -= owned * measurement

    # Results of other sources to the destination; those with most ties first.
    wanted = below(draw(key, CROSSED_OTHERS, 0), MOST_OTHERS + 1)
    first, last = by_destination[asked], by_destination[asked + 1]
    other = np.empty(LOOKED_AT * MOST_OTHERS + 2, np.int64)
    other_src = np.empty(LOOKED_AT * MOST_OTHERS + 2, np.int64)
    ties = np.zeros(LOOKED_AT * MOST_OTHERS + 2, np.int64)
    tie = np.empty((LOOKED_AT * MOST_OTHERS + 2, MOST_TIES), np.int64)
    found = 0
    if wanted > 0:
        for turn in range(LOOKED_AT * wanted + 2):
            at = _place(key, CROSSED_OTHERS, turn, d_src, first, last, source)
            if at < 0 or d_src[at] == source or _has(other_src, found, d_src[at]):
                continue
            other[found] = at
            other_src[found] = d_src[at]
            opens, closes = by_source[d_src[at]], by_source[d_src[at] + 1]
            for index in range(owned):
                if ties[found] == MOST_TIES:
                    break
                if own_dst[index] == asked:
                    continue
                begins = first_not_below(s_dst, opens, closes, own_dst[index])
                ends = first_not_below(s_dst, begins, closes, own_dst[index] + 1)
                if begins < ends:
                    pick = begins + below(draw(key, CROSSED_TIE, (found << 16) + index), ends - begins)
                    tie[found, ties[found]] = pick
                    ties[found] += 1
            found += 1
    taken = np.empty(MOST_OTHERS, np.int64)
    many = 0
    for level in range(MOST_TIES, -1, -1):
        for index in range(found):
            cost = address + (1 + ties[index]) * measurement
            if ties[index] == level and many < wanted and cost <= room:
                taken[many] = index
                many += 1
                room -= cost
    _shuffle_groups(taken, many, key)

    count = 0
    for group in range(many):
        index = taken[group]
        opening = count
        who[count], to[count], rtts[count] = other_src[index], asked, d_rtt[other[index]]
        count += 1
        for number in range(ties[index]):
            who[count], to[count] = other_src[index], s_dst[tie[index, number]]
            rtts[count] = s_rtt[tie[index, number]]
            count += 1
        _shuffle_group(to, rtts, opening, count, key, group + 1)
    opening = count
    for index in range(owned):
        who[count], to[count], rtts[count] = source, own_dst[index], s_rtt[own[index]]
        count += 1
    _shuffle_group(to, rtts, opening, count, key, many + 1)
    who[count], to[count], rtts[count] = source, asked, s_rtt[anchor]
    return count + 1


@kernel
def _shuffle_group(to, rtts, begin, end, key, group):
    for last in range(end - begin - 1, 0, -1):
        other = begin + below(draw(key, CROSSED_GROUP, (group << 16) + last), last + 1)
        to[begin + last], to[other] = to[other], to[begin + last]
        rtts[begin + last], rtts[other] = rtts[other], rtts[begin + last]


@kernel
def write_crossed(out, position, key, count, who, to, rtts, ipv4, crossing, p):
    """Write the context's tokens at out[position]; return the position after them."""
    sources, destinations = crossing[1], crossing[2]
    ordered = upper(draw(key, ORDERED, 0)) < p.ordered
    scrambled = is_scrambled(key, p)
    pseudonyms = draw(key, SCRAMBLE_KEY, 0)
    stated = np.empty(16, np.uint8)
    for place in range(count):
        fields = 0
        present = 0
        if place == 0 or who[place] != who[place - 1]:
            present = _SRC
            fields = 1
        present |= (_DST << (FIELD_BITS * fields)) | (_RESULT << (FIELD_BITS * (fields + 1)))
        fields += 2
        permutation = AS_THEY_ARE if ordered else drawn_order(fields, key, place)
        out[position] = MEASUREMENT
        position += 1
        for turn in range(fields):
            slot = (permutation >> (FIELD_BITS * turn)) & FIELD_MASK
            field = (present >> (FIELD_BITS * slot)) & FIELD_MASK
            if field == _RESULT:
                position = put_result(out, position, rtts[place], p.encoding, p.clip_limit_ms)
                continue
            address = sources[who[place]] if field == _SRC else destinations[to[place]]
            known = 0
            if scrambled:
                known = pseudonym_into(stated, address, ipv4, 0, pseudonyms)
            else:
                stated[:] = address
            if field == _SRC:
                position = put_address(out, position, SRC_IPV4, SRC_IPV6, stated, known)
            else:
                position = put_address(out, position, DST_IPV4, DST_IPV6, stated, known)
    return position
