"""The loader in plain Python: the specification of the stream, and the oracle of the kernels.

Every function here has the name and the meaning of its compiled twin, and gives the same batches to the
byte. It is a hundred times slower.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations
from math import factorial

import numpy as np

from ping_llm.contexts import draws
from ping_llm.contexts.context import MAX_FOCUS
from ping_llm.contexts.draws import ROUNDS
from ping_llm.contexts.fill import CHOICES, GROUP, LAST_STRETCH, smallest_measurement
from ping_llm.contexts.options import ContextOptions, Parameters
from ping_llm.contexts.plan import unit_sequences
from ping_llm.contexts.shape import (
    ABSOLUTE_LENGTH,
    ALL,
    DELTA_LENGTH,
    FOCUSED,
    NONE,
    PART,
    WHOLE,
    WINDOW,
    Shape,
)
from ping_llm.contexts.units import Rows
from ping_llm.rows.block import RowBlock
from ping_llm.tokens import reference as tokens
from ping_llm.tokens.rtt import RttEncoding, rtt_encoding
from ping_llm.tokens.statement import Statement, cut, whole
from ping_llm.tokens.vocab import PAD, Field

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def draw(key: int, purpose: int, index: int) -> int:
    return mix((key + 0x9E3779B97F4A7C15 * ((purpose << 40) + index + 1)) & _MASK)


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


def fitting(
    key: int, most: int, budget: int, address: int, source_bytes: int, mode: int, p: Parameters
) -> tuple[int, int]:
    def stated(known: int) -> int:
        return known + 2 if known else address + 1

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
    address = 4 if ipv4 else 16
    of_mode = chance(draw(key, draws.MODE, 0))
    mode = ALL if of_mode < p.all_times else PART if of_mode < p.all_times + p.part_times else NONE
    source_bytes = 0
    if chance(draw(key, draws.SOURCE_CUT, 0)) < p.prefix:
        source_bytes = 1 + below(draw(key, draws.SOURCE_BYTES, 0), address - 1)
    if measurements <= p.per_context:
        count, bound = fitting(key, measurements, budget, address, source_bytes, mode, p)
        if count == measurements:
            return Shape(mode, WHOLE, source_bytes, 0, measurements, count, bound)
    if chance(draw(key, draws.KIND, 0)) < p.focus:
        count, bound = fitting(key, measurements, budget, address, source_bytes, mode, p)
        return Shape(mode, FOCUSED, source_bytes, 0, measurements, count, bound)
    window = log_uniform(key, measurements)
    start = below(draw(key, draws.WINDOW_OFFSET, 0), measurements - window + 1)
    count, bound = fitting(key, window, budget, address, source_bytes, mode, p)
    return Shape(mode, WINDOW, source_bytes, start, window, count, bound)


def sample(key: int, size: int, count: int) -> set[int]:
    taken: set[int] = set()
    for last in range(size - count, size):
        pick = below(draw(key, draws.SAMPLE, last), last + 1)
        taken.add(last if pick in taken else pick)
    return taken


def select_focused(key: int, count: int, destinations: list[bytes]) -> list[int]:
    size = len(destinations)
    point = below(draw(key, draws.FOCUS_POINT, 0), size)
    many = 1 + below(draw(key, draws.FOCUS_COUNT, 0), MAX_FOCUS)
    focus = {destinations[point]}
    focus |= {destinations[below(draw(key, draws.FOCUS_OTHER, index), size)] for index in range(1, many)}
    taken = {point}
    for distance in range(1, size):
        for index in (point + distance, point - distance):
            if len(taken) < count and 0 <= index < size and destinations[index] in focus:
                taken.add(index)
    around = max(0, min(point - count // 2, size - count))
    first, last = min(*taken, around), max(*taken, around + count - 1)
    others = [index for index in range(first, last + 1) if index not in taken]
    return sorted(taken | {others[rank] for rank in sample(key, len(others), count - len(taken))})


def select(key: int, shape: Shape, destinations: list[bytes]) -> list[int]:
    if shape.kind == FOCUSED:
        return select_focused(key, shape.measurements, destinations)
    return sorted(shape.start + index for index in sample(key, shape.window, shape.measurements))


def shuffled(values: list[int], key: int) -> list[int]:
    values = list(values)
    for last in range(len(values) - 1, 0, -1):
        other = below(draw(key, draws.SHUFFLE, last), last + 1)
        values[last], values[other] = values[other], values[last]
    return values


def arrange(key: int, mode: int, chosen: list[int]) -> list[tuple[int, bool]]:
    """The chosen in the order in which they are stated, each with whether it states its time."""
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
    """`count` of [0, size), decided one after another."""
    taken: set[int] = set()
    for index in range(size):
        if below(draw(key, purpose, index), size - index) < count - len(taken):
            taken.add(index)
    return taken


def context_tokens(
    key: int, shape: Shape, block: RowBlock, row: int, p: Parameters, encoding: RttEncoding
) -> list[int]:
    begin, end = int(block.offsets[row]), int(block.offsets[row + 1])
    source = cut(whole(block.src[row].tobytes()), shape.source_bytes)
    chosen = select(key, shape, [address.tobytes() for address in block.dst[begin:end]])
    statements = []
    for place, (index, timed) in enumerate(arrange(key, shape.mode, chosen)):
        at = begin + index
        destination = whole(block.dst[at].tobytes())
        known = known_destination(key, place, destination.address_bits // 8, p)
        size, errors, msm_id = int(block.size[at]), int(block.packet_error_count[at]), int(block.msm_id[at])
        stated = {
            Field.SRC: states_source(key, place, p),
            Field.DST: True,
            Field.TIME: timed,
            Field.RESULT: True,
            Field.SIZE: p.size and size >= 0,
            Field.ERRORS: p.errors and errors >= 0,
            Field.MSM_ID: p.msm_id and msm_id >= 0,
        }
        fields = [field for field in Field if stated[field]]
        which = below(draw(key, draws.FIELD_ORDER, place), factorial(len(fields)))
        statements.append(
            Statement(
                order=nth_permutation(fields, which),
                src=source,
                dst=cut(destination, known),
                seconds=int(block.time[at]) // 1_000_000,
                rtt=float(block.rtt[at]),
                size=size if size >= 0 else None,
                errors=errors if errors >= 0 else None,
                msm_id=msm_id if msm_id >= 0 else None,
            )
        )
    return tokens.encode(statements, encoding)


def nth_permutation(fields: list[Field], which: int) -> tuple[Field, ...]:
    return next(islice(permutations(fields), which, None))


@dataclass(frozen=True)
class Planned:
    row: int
    number: int
    key: int
    bound: int


class ReferenceBatches:
    """The stream of `Batches`, one host, from its beginning."""

    def __init__(
        self,
        rows: Rows,
        options: ContextOptions,
        *,
        batch_size: int,
        length: int,
        seed: int,
        epochs: int | None = None,
    ):
        self._rows, self._seed, self._epochs = rows, seed, epochs
        self._batch_size, self._length = batch_size, length
        self._p = Parameters.of(options, length)
        self._encoding = rtt_encoding(options.rtt_encoding, options.clip_limit_ms)
        self._counts = rows.index.counts.tolist()
        self._ipv4 = rows.index.ipv4.tolist()
        self._pairs = [
            (row, number)
            for row, count in enumerate(self._counts)
            for number in range(min(-(-count // self._p.per_context), self._p.per_row))
        ]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        sequences = unit_sequences(self._batch_size)
        place = 0  # in the endless order
        while True:
            planned, used = self.plan(place, sequences)
            if not any(planned):
                return
            unit_key = combine(epoch_key(self._seed, place // len(self._pairs)), place % len(self._pairs))
            for first in range(0, used, self._batch_size):
                of_batch = range(first, first + self._batch_size)
                yield self.batch([self.fill(planned, sequence, unit_key) for sequence in of_batch])
            place += sum(map(len, planned))

    def contexts(self, place: int) -> Iterator[Planned]:
        """The contexts from a place in the endless order on."""
        pairs = len(self._pairs)
        while self._epochs is None or place < self._epochs * pairs:
            of_epoch = epoch_key(self._seed, place // pairs)
            row, number = self._pairs[permuted(place % pairs, pairs, of_epoch)]
            key = combine(combine(of_epoch, row), number)
            shape = shape_of(key, self._counts[row], self._ipv4[row], self._p.max_tokens, self._p)
            yield Planned(row, number, key, shape.bound)
            place += 1

    def plan(self, place: int, sequences: int) -> tuple[list[list[Planned]], int]:
        """The contexts of each sequence of a unit, and how many sequences are in use."""
        taken: list[Planned] = []
        space = sequences * self._length
        ended = True
        for context in self.contexts(place):
            space -= context.bound
            if space < 0 or len(taken) == sequences * self._p.max_segments:
                ended = False
                break
            taken.append(context)
        while (packed := self.pack(taken, sequences))[1]:
            ended = False
            homeless = packed[1]
            while homeless > 0:
                homeless -= taken.pop().bound
        used = sum(map(bool, packed[0])) if ended else sequences
        pairs = len(self._pairs)
        unit_key = combine(epoch_key(self._seed, place // pairs), place % pairs)
        places = list(range(used))
        for last in range(used - 1, 0, -1):
            other = below(draw(unit_key, draws.SEQUENCE_ORDER, last), last + 1)
            places[last], places[other] = places[other], places[last]
        spread: list[list[Planned]] = [[] for _ in range(sequences)]
        order = {id(context): index for index, context in enumerate(taken)}
        for index in range(used):
            spread[places[index]] = sorted(packed[0][index], key=lambda context: order[id(context)])
        return spread, used

    def pack(self, taken: list[Planned], sequences: int) -> tuple[list[list[Planned]], int]:
        """Best fit, largest first; of sequences with equal space, the one that came to it last."""
        packed: list[list[Planned]] = [[] for _ in range(sequences)]
        by_space: dict[int, list[int]] = {self._length: list(range(sequences))[::-1]}
        homeless = 0
        for context in sorted(taken, key=lambda context: -context.bound):
            spaces = [space for space, open_ in by_space.items() if open_ and space >= context.bound]
            if not spaces:
                homeless += context.bound
                continue
            index = by_space[min(spaces)].pop()
            packed[index].append(context)
            if len(packed[index]) < self._p.max_segments:
                by_space.setdefault(min(spaces) - context.bound, []).append(index)
        return packed, homeless

    def fill(self, planned: list[list[Planned]], sequence: int, unit_key: int) -> list[list[int]]:
        """The tokens of each context of a sequence: the planned ones, then fillers."""
        filled = [self.write(context.key, context.row, self._p.max_tokens) for context in planned[sequence]]
        first = sequence - sequence % GROUP
        group = [context for of_sequence in planned[first : first + GROUP] for context in of_sequence]
        filler_key = combine(unit_key, sequence)
        tries = 0
        while self._epochs is None and len(filled) < self._p.max_segments and group:
            space = self._length - sum(map(len, filled))
            if space < smallest_measurement(self._p):
                break
            budget = min(space, self._p.max_tokens)
            found: list[tuple[int, int, int, int]] = []  # rest, try, key, row
            wanted = 1 if space > LAST_STRETCH else CHOICES
            for _ in range(CHOICES):
                row = group[below(draw(filler_key, draws.FILLER_PICK, tries), len(group))].row
                key = draw(filler_key, draws.FILLER_KEY, tries)
                shape = shape_of(key, self._counts[row], self._ipv4[row], budget, self._p)
                if shape.measurements:
                    found.append((space - shape.bound, tries, key, row))
                tries += 1
                if len(found) == wanted or (found and min(found)[0] == 0):
                    break
            if not found:
                break
            _, _, key, row = min(found)
            filled.append(self.write(key, row, budget))
        return filled

    def write(self, key: int, row: int, budget: int) -> list[int]:
        shape = shape_of(key, self._counts[row], self._ipv4[row], budget, self._p)
        return context_tokens(key, shape, self._rows.read([row]), 0, self._p, self._encoding)

    def batch(self, sequences: list[list[list[int]]]) -> dict[str, np.ndarray]:
        shape = (len(sequences), self._length)
        inputs, targets, positions, segments = (np.zeros(shape, np.int32) for _ in range(4))
        for line, contexts in enumerate(sequences):
            at = 0
            for number, ids in enumerate(contexts, start=1):
                inside = slice(at, at + len(ids))
                inputs[line, inside] = [PAD, *ids[:-1]]
                targets[line, inside] = ids
                positions[line, inside] = range(len(ids))
                segments[line, inside] = number
                at += len(ids)
        return {
            "inputs": inputs,
            "targets": targets,
            "inputs_position": positions,
            "targets_position": positions,
            "inputs_segmentation": segments,
            "targets_segmentation": segments,
        }
