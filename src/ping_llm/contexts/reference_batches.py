"""The stream in plain Python: order, packing and fillers; the specification and reference of `Batches`."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ping_llm.contexts import draws
from ping_llm.contexts.fill import CHOICES, GROUP, LAST_STRETCH, smallest_measurement
from ping_llm.contexts.options import ContextOptions, Parameters
from ping_llm.contexts.plan import unit_sequences
from ping_llm.contexts.reference import (
    below,
    combine,
    context_tokens,
    draw,
    epoch_key,
    permuted,
    shape_of,
)
from ping_llm.contexts.reference_crossed import crossed_pairs, crossed_tokens
from ping_llm.contexts.units import Rows
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.vocab import PAD


@dataclass(frozen=True)
class Planned:
    row: int
    number: int
    key: int
    bound: int


class ReferenceBatches:
    """The stream of `Batches` for one host, from its beginning."""

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
        block = rows.read(range(len(self._counts)))
        who = [address.tobytes() for address in np.repeat(block.src, np.diff(block.offsets), axis=0)]
        to = [address.tobytes() for address in block.dst]
        self._sources, self._destinations = sorted(set(who)), sorted(set(to))
        of_source = {address: number for number, address in enumerate(self._sources)}
        of_destination = {address: number for number, address in enumerate(self._destinations)}
        self._measured: dict[tuple[int, int], list[float]] = {}
        for source, destination, rtt in zip(who, to, block.rtt.tolist(), strict=True):
            self._measured.setdefault((of_source[source], of_destination[destination]), []).append(rtt)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        sequences = unit_sequences(self._batch_size)
        place = 0  # position in the endless order
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
        """Yield the contexts from a position in the endless order on."""
        pairs = len(self._pairs)
        while self._epochs is None or place < self._epochs * pairs:
            of_epoch = epoch_key(self._seed, place // pairs)
            row, number = self._pairs[permuted(place % pairs, pairs, of_epoch)]
            key = combine(combine(of_epoch, row), number)
            shape = shape_of(key, self._counts[row], self._ipv4[row], self._p.max_tokens, self._p)
            yield Planned(row, number, key, shape.bound)
            place += 1

    def plan(self, place: int, sequences: int) -> tuple[list[list[Planned]], int]:
        """The contexts of each sequence of a unit, and the number of sequences in use."""
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
            unplaced = packed[1]
            while unplaced > 0:
                unplaced -= taken.pop().bound
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
        """Pack by best fit, largest first; of sequences with equal space, the last to reach it is taken."""
        packed: list[list[Planned]] = [[] for _ in range(sequences)]
        by_space: dict[int, list[int]] = {self._length: list(range(sequences))[::-1]}
        unplaced = 0
        for context in sorted(taken, key=lambda context: -context.bound):
            spaces = [space for space, open_ in by_space.items() if open_ and space >= context.bound]
            if not spaces:
                unplaced += context.bound
                continue
            index = by_space[min(spaces)].pop()
            packed[index].append(context)
            if len(packed[index]) < self._p.max_segments:
                by_space.setdefault(min(spaces) - context.bound, []).append(index)
        return packed, unplaced

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
        block = self._rows.read([row])
        if shape.kind != draws.CROSSED:
            return context_tokens(key, shape, block, 0, self._p, self._encoding)
        source = self._sources.index(block.src[0].tobytes())
        pairs = crossed_pairs(key, shape.bound, source, self._measured, self._p, self._ipv4[row])
        named = [(self._sources[who], self._destinations[to], rtt) for who, to, rtt in pairs]
        return crossed_tokens(key, named, self._p, self._encoding)

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
