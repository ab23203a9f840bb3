"""A context in plain Python: the specification of the draws, and the reference for tests of the kernels.

The functions give the same batches as the compiled ones to the byte, a hundred times slower. A function with
a compiled counterpart has its name, except that `chance` is `draws.upper`, `fitting` is `draws._fitting` and
`context_tokens` is `context.write`. The others, such as `states_source`, are part of a larger kernel there.
"""

from collections.abc import Callable
from itertools import islice, permutations
from math import factorial

from ping_llm.contexts import draws
from ping_llm.contexts.draws import (
    ABSOLUTE_LENGTH,
    ALL,
    CROSSED,
    CROSSED_LEAST,
    DELTA_LENGTH,
    FOCUSED,
    NONE,
    PART,
    ROUNDS,
    UNNAMED,
    UNNAMED_LENGTH,
    WHOLE,
    WIDE,
    WIDE_REACH,
    WINDOW,
    Shape,
)
from ping_llm.contexts.options import Parameters
from ping_llm.hashing import GOLDEN_INT, MASK, finalize_int
from ping_llm.measurements.addresses import Prefix, unnamed
from ping_llm.measurements.scramble import SHORT, scramble_one, short_one
from ping_llm.measurements.throughput import mbps_of
from ping_llm.rows.block import RowBlock
from ping_llm.tokens import reference as tokens
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.statement import Statement, cut, whole
from ping_llm.tokens.vocab import LARGEST_PROBE_ID, Field


def draw(key: int, purpose: int, index: int) -> int:
    return finalize_int((key + GOLDEN_INT * ((purpose << 40) + index + 1)) & MASK)


def below(bits: int, count: int) -> int:
    return ((bits >> 32) * count) >> 32


def chance(bits: int) -> int:
    """The upper half of the bits, to compare with a threshold."""
    return bits >> 32


def combine(key: int, value: int) -> int:
    return draw(key, 0, value)


def epoch_key(seed: int, epoch: int) -> int:
    return combine(combine(0, seed), epoch)


def permuted(place: int, count: int, key: int) -> int:
    half = max(((count - 1).bit_length() + 1) // 2, 1)
    mask = (1 << half) - 1
    value = place
    while True:
        left, right = value >> half, value & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (chance(draw(key, draws.ROUND + turn, right)) & mask)
        value = (left << half) | right
        if value < count:
            return value


def log_uniform(key: int, count: int) -> int:
    octaves = count.bit_length()
    tries = 0
    while True:
        lowest = 1 << below(draw(key, draws.WINDOW_OCTAVE, tries), octaves)
        size = lowest + below(draw(key, draws.WINDOW_SIZE, tries), lowest)
        if size <= count and below(draw(key, draws.WINDOW_KEEP, tries), size) < lowest:
            return size
        tries += 1


def untimed_count(key: int, count: int) -> int:
    share = chance(draw(key, draws.UNTIMED_SHARE, 0))
    if count == 1:
        return share >> 31
    least, most = -(-count // 10), 9 * count // 10
    return least + (share * (most - least + 1) >> 32)


def states_source(key: int, place: int, p: Parameters) -> bool:
    return place == 0 or chance(draw(key, draws.MEASUREMENT_BITS, place)) < p.repeat_source


def known_destination(key: int, place: int, address: int, p: Parameters) -> int:
    if draw(key, draws.MEASUREMENT_BITS, place) & 0xFFFFFFFF < p.prefix:
        return 1 + below(draw(key, draws.DESTINATION_BYTES, place), address - 1)
    return 0


def is_scrambled(key: int, p: Parameters) -> bool:
    return chance(draw(key, draws.SCRAMBLED, 0)) < p.scramble


def address_bytes(ipv4: bool, scrambled: bool) -> int:
    return 4 if ipv4 or scrambled else 16


def address_length(ipv4: bool, scrambled: bool) -> int:
    return 5 if ipv4 else 6 if scrambled else 17


def fitting(
    key: int, most: int, budget: int, address: int, length: int, source_bytes: int, mode: int, p: Parameters
) -> tuple[int, int]:
    def stated(known: int) -> int:
        if known == UNNAMED:
            return UNNAMED_LENGTH
        return known + 2 if known else length

    untimed = bound = 0
    for place in range(most):
        untimed += 1 + p.result_length + p.extra_length + stated(known_destination(key, place, address, p))
        if states_source(key, place, p):
            untimed += stated(source_bytes)
        timed = {ALL: place + 1, NONE: 0}.get(mode, place + 1 - untimed_count(key, place + 1))
        total = untimed + (ABSOLUTE_LENGTH + DELTA_LENGTH * (timed - 1) if timed else 0)
        if total > budget:
            return place, bound
        bound = total
    return most, bound


def shape_of(key: int, measurements: int, ipv4: bool, budget: int, p: Parameters) -> Shape:
    scrambled = is_scrambled(key, p)
    address, length = address_bytes(ipv4, scrambled), address_length(ipv4, scrambled)
    longest = 1 + 2 * length + p.result_length
    if chance(draw(key, draws.CROSSED_KIND, 0)) < p.crossed and budget >= CROSSED_LEAST * longest:
        return Shape(NONE, CROSSED, 0, 0, measurements, budget // (longest - length), budget)
    of_mode = chance(draw(key, draws.MODE, 0))
    mode = ALL if of_mode < p.all_times else PART if of_mode < p.all_times + p.part_times else NONE
    source_bytes = 0
    if chance(draw(key, draws.SOURCE_UNNAMED, 0)) < p.unnamed_source:
        source_bytes = UNNAMED
    elif chance(draw(key, draws.SOURCE_CUT, 0)) < p.source_prefix:
        source_bytes = 1 + below(draw(key, draws.SOURCE_BYTES, 0), address - 1)
    if measurements <= p.per_context:
        count, bound = fitting(key, measurements, budget, address, length, source_bytes, mode, p)
        if count == measurements:
            return Shape(mode, WHOLE, source_bytes, 0, measurements, count, bound)
    of_kind = chance(draw(key, draws.KIND, 0))
    if of_kind < p.focus + p.wide:
        count, bound = fitting(key, measurements, budget, address, length, source_bytes, mode, p)
        kind = FOCUSED if of_kind < p.focus else WIDE
        return Shape(mode, kind, source_bytes, 0, measurements, count, bound)
    window = log_uniform(key, measurements)
    start = below(draw(key, draws.WINDOW_OFFSET, 0), measurements - window + 1)
    count, bound = fitting(key, window, budget, address, length, source_bytes, mode, p)
    return Shape(mode, WINDOW, source_bytes, start, window, count, bound)


def sample(key: int, size: int, count: int) -> set[int]:
    taken: set[int] = set()
    for last in range(size - count, size):
        pick = below(draw(key, draws.SAMPLE, last), last + 1)
        taken.add(last if pick in taken else pick)
    return taken


def select_focused(key: int, count: int, destinations: list[bytes], p: Parameters) -> list[int]:
    size = len(destinations)
    point = below(draw(key, draws.FOCUS_POINT, 0), size)
    many = 1 + below(draw(key, draws.FOCUS_COUNT, 0), p.focus_destinations)
    focus = {destinations[point]}
    focus |= {destinations[below(draw(key, draws.FOCUS_OTHER, index), size)] for index in range(1, many)}
    taken = {point}
    for distance in range(1, size):
        for index in (point + distance, point - distance):
            if len(taken) < count and 0 <= index < size and destinations[index] in focus:
                taken.add(index)
    return filled_up(key, count, size, point, taken)


def select_wide(key: int, count: int, destinations: list[bytes]) -> list[int]:
    size = len(destinations)
    point = below(draw(key, draws.FOCUS_POINT, 0), size)
    nearest = {destinations[point]: point}
    for distance in range(1, min(size, WIDE_REACH * count + 1)):
        for index in (point + distance, point - distance):
            if len(nearest) < count and 0 <= index < size:
                nearest.setdefault(destinations[index], index)
    return filled_up(key, count, size, point, set(nearest.values()))


def filled_up(key: int, count: int, size: int, point: int, taken: set[int]) -> list[int]:
    around = max(0, min(point - count // 2, size - count))
    first, last = min(*taken, around), max(*taken, around + count - 1)
    others = [index for index in range(first, last + 1) if index not in taken]
    return sorted(taken | {others[rank] for rank in sample(key, len(others), count - len(taken))})


def select(key: int, shape: Shape, destinations: list[bytes], p: Parameters) -> list[int]:
    if shape.kind == FOCUSED:
        return select_focused(key, shape.measurements, destinations, p)
    if shape.kind == WIDE:
        return select_wide(key, shape.measurements, destinations)
    return sorted(shape.start + index for index in sample(key, shape.window, shape.measurements))


def shuffled(values: list[int], key: int) -> list[int]:
    values = list(values)
    for last in range(len(values) - 1, 0, -1):
        other = below(draw(key, draws.SHUFFLE, last), last + 1)
        values[last], values[other] = values[other], values[last]
    return values


def arrange(key: int, mode: int, chosen: list[int]) -> list[tuple[int, bool]]:
    """The chosen measurements in the order of stating, each with whether it states its time."""
    if mode == ALL:
        return [(index, True) for index in chosen]
    if mode == NONE:
        return [(index, False) for index in shuffled(chosen, key)]
    count = len(chosen)
    lost = untimed_count(key, count)
    ranks = choose_in_order(key, draws.UNTIMED_RANK, count, lost)
    places = choose_in_order(key, draws.UNTIMED_PLACE, count, lost)
    loose = iter(shuffled([chosen[rank] for rank in sorted(ranks)], key))
    kept = iter([index for rank, index in enumerate(chosen) if rank not in ranks])
    return [(next(loose), False) if place in places else (next(kept), True) for place in range(count)]


def choose_in_order(key: int, purpose: int, size: int, count: int) -> set[int]:
    """Draw `count` numbers of [0, size), by deciding on each in ascending order."""
    taken: set[int] = set()
    for index in range(size):
        if below(draw(key, purpose, index), size - index) < count - len(taken):
            taken.add(index)
    return taken


def pseudonym(key: int, p: Parameters) -> Callable[[bytes], Prefix]:
    """Return the function that converts addresses to those a context states: unchanged, or scrambled."""
    scrambled, of_context = is_scrambled(key, p), draw(key, draws.SCRAMBLE_KEY, 0)

    def stated(packed: bytes) -> Prefix:
        if not scrambled:
            return whole(packed)
        if whole(packed).version == 4:
            return whole(scramble_one(packed, of_context))
        return Prefix(short_one(packed, of_context), 8 * SHORT)

    return stated


def context_tokens(
    key: int, shape: Shape, block: RowBlock, row: int, p: Parameters, encoding: RttEncoding
) -> list[int]:
    begin, end = int(block.offsets[row]), int(block.offsets[row + 1])
    stated_as = pseudonym(key, p)
    source = stated_as(block.src[row].tobytes())
    source = unnamed(source.version) if shape.source_bytes == UNNAMED else cut(source, shape.source_bytes)
    chosen = select(key, shape, [address.tobytes() for address in block.dst[begin:end]], p)
    ordered = chance(draw(key, draws.ORDERED, 0)) < p.ordered
    statements = []
    for place, (index, timed) in enumerate(arrange(key, shape.mode, chosen)):
        at = begin + index
        destination = stated_as(block.dst[at].tobytes())
        known = known_destination(key, place, destination.bits // 8, p)
        size, errors, msm_id = int(block.size[at]), int(block.packet_error_count[at]), int(block.msm_id[at])
        probe_id = int(block.probe_id[at])
        has_probe_id = 0 <= probe_id <= LARGEST_PROBE_ID
        stored = int(block.throughput[at])
        stated = {
            Field.SRC: states_source(key, place, p),
            Field.DST: True,
            Field.TIME: timed,
            Field.RESULT: True,
            Field.SIZE: p.size and size >= 0,
            Field.ERRORS: p.errors and errors >= 0,
            Field.MSM_ID: p.msm_id and msm_id >= 0,
            Field.PROBE_ID: p.probe_id and has_probe_id,
            Field.THROUGHPUT: p.throughput and stored > 0,
        }
        fields = [field for field in Field if stated[field]]
        order = (*(field for field in fields if field is not Field.RESULT), Field.RESULT)
        if not ordered:
            which = below(draw(key, draws.FIELD_ORDER, place), factorial(len(fields)))
            order = nth_permutation(fields, which)
        statements.append(
            Statement(
                order=order,
                src=source,
                dst=cut(destination, known),
                seconds=int(block.time[at]) // 1_000_000,
                rtt=float(block.rtt[at]),
                size=size if size >= 0 else None,
                errors=errors if errors >= 0 else None,
                msm_id=msm_id if msm_id >= 0 else None,
                probe_id=probe_id if has_probe_id else None,
                throughput=mbps_of(stored - 1) if stored else None,
            )
        )
    return tokens.encode(statements, encoding)


def nth_permutation(fields: list[Field], which: int) -> tuple[Field, ...]:
    return next(islice(permutations(fields), which, None))
