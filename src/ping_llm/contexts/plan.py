"""Assignment of contexts to sequences, from the index alone.

An epoch consists of all (row, number) pairs with number < K(row), in the order of a keyed permutation. A
*unit* is a fixed number of sequences; it takes the next contexts of that order and packs their bounds,
largest first, each where it leaves the least space. If they do not all fit, the last ones wait for the next
unit. So the only state is a position in the order.
"""

from dataclasses import dataclass

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.contexts.draws import (
    SEQUENCE_ORDER,
    below,
    context_key,
    draw,
    epoch_key,
    permuted,
    shape_of,
    unit_key,
)
from ping_llm.contexts.options import Parameters
from ping_llm.errors import PingError
from ping_llm.rows.manifest import FLAG_IPV4, RowIndex

#: Number of rows between two stored sums of K: 7 million rows need 27,344 sums; a look-up reads 128 rows on
#: average.
STRIDE = 256

#: Smallest number of sequences per unit, so that packing is tight and rows are read in batches.
UNIT_SEQUENCES = 256


def unit_sequences(batch_size: int) -> int:
    """Number of sequences per unit: whole batches, and a function of the global batch size only."""
    return batch_size * -(-UNIT_SEQUENCES // batch_size)


@dataclass(frozen=True)
class Cursor:
    """A position in the endless order of contexts."""

    epoch: int
    position: int


@dataclass(frozen=True)
class Unit:
    """The contexts of the sequences of a unit; those of one sequence are adjacent.

    Attributes:
        start, end: range of the contexts in the order, `end` not included.
        first: int64 [sequences + 1], index of the first context of each sequence.
        row, number, key, bound: values of each context; `bound` is its largest number of tokens.
        used: number of sequences that may have contexts; not all only at the end of the last epoch.
    """

    start: Cursor
    end: Cursor
    first: np.ndarray
    row: np.ndarray
    number: np.ndarray
    key: np.ndarray
    bound: np.ndarray
    used: int


class Planner:
    """Plans units one after another. Takes 8 bytes of memory per STRIDE rows."""

    def __init__(self, index: RowIndex, parameters: Parameters, sequences: int, length: int, seed: int):
        self._counts = np.asarray(index.counts)
        self._flags = np.asarray(index.flags)
        self._parameters = parameters
        self._sequences, self._length, self._seed = sequences, length, seed
        self._sums = _sums_of_contexts(self._counts, parameters)
        self.contexts = int(self._sums[-1])  # per epoch
        if self.contexts == 0:
            raise PingError(
                "there is no measurement in these rows, so there are no contexts: give rows built from data"
            )

    def plan(self, start: Cursor, epochs: int | None) -> Unit:
        """Plan the unit that begins at `start`; it is empty at the end of the last epoch."""
        last = -1 if epochs is None else epochs
        row, number, key, bound, sequence, used = _plan(
            self._counts,
            self._flags,
            self._sums,
            self._sequences,
            self._length,
            self._seed,
            start.epoch,
            start.position,
            last,
            self._parameters,
        )
        first = np.zeros(self._sequences + 1, np.int64)
        np.cumsum(np.bincount(sequence, minlength=self._sequences), out=first[1:])
        by_sequence = np.argsort(sequence, kind="stable")
        passed = start.position + len(row)
        end = Cursor(start.epoch + passed // self.contexts, passed % self.contexts)
        return Unit(
            start,
            end,
            first,
            row[by_sequence],
            number[by_sequence],
            key[by_sequence],
            bound[by_sequence],
            used,
        )


@kernel
def contexts_of(measurements, p):
    """K: number of contexts of a row per epoch."""
    return min((measurements + p.per_context - 1) // p.per_context, p.per_row)


@kernel
def _sums_of_contexts(counts, p):
    """The sums of K over the rows before row 0, STRIDE, 2 · STRIDE, …; the last one is over all rows."""
    sums = np.zeros((len(counts) + STRIDE - 1) // STRIDE + 1, np.int64)
    for block in range(len(sums) - 1):
        total = 0
        for row in range(block * STRIDE, min((block + 1) * STRIDE, len(counts))):
            total += contexts_of(np.int64(counts[row]), p)
        sums[block + 1] = sums[block] + total
    return sums


@kernel
def _row_of(context, counts, sums, p):
    """The row of a context of the epoch, and the context's number within the row."""
    low, high = 0, len(sums) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if sums[middle] <= context:
            low = middle
        else:
            high = middle
    rest = context - sums[low]
    row = low * STRIDE
    while True:
        many = contexts_of(np.int64(counts[row]), p)
        if rest < many:
            return row, rest
        rest -= many
        row += 1


@kernel
def _pack(bound, count, sequences, length, max_segments, sequence, free):
    """Pack by best fit, largest first. Returns the number of tokens not placed (their sequence is -1).

    Sequences with equal space form a linked list; empty sequences are taken in ascending order.
    """
    by_length = np.zeros(length + 2, np.int64)
    for context in range(count):
        by_length[length - bound[context] + 1] += 1
    for size in range(length + 1):
        by_length[size + 1] += by_length[size]
    order = np.empty(count, np.int64)
    for context in range(count):
        slot = length - bound[context]
        order[by_length[slot]] = context
        by_length[slot] += 1

    head = np.full(length + 1, -1, np.int64)
    following = np.empty(sequences, np.int64)
    segments = np.zeros(sequences, np.int64)
    for index in range(sequences):
        free[index] = length
        following[index] = index + 1 if index + 1 < sequences else -1
    head[length] = 0
    unplaced = 0
    for turn in range(count):
        context = order[turn]
        size = bound[context]
        space = size
        while space <= length and head[space] < 0:
            space += 1
        if space > length:
            sequence[context] = -1
            unplaced += size
            continue
        index = head[space]
        head[space] = following[index]
        sequence[context] = index
        segments[index] += 1
        free[index] = space - size
        if segments[index] < max_segments:
            following[index] = head[space - size]
            head[space - size] = index
    return unplaced


@kernel
def _plan(counts, flags, sums, sequences, length, seed, epoch, position, epochs, p):
    contexts = sums[-1]
    most = sequences * p.max_segments
    row = np.empty(most, np.int64)
    number = np.empty(most, np.int64)
    key = np.empty(most, np.uint64)
    bound = np.empty(most, np.int64)
    of_unit = unit_key(seed, epoch, position)
    taken = 0
    tokens = 0
    of_epoch = epoch_key(seed, epoch)
    ended = False
    while taken < most:
        if epochs >= 0 and epoch >= epochs:
            ended = True
            break
        row[taken], number[taken] = _row_of(permuted(position, contexts, of_epoch), counts, sums, p)
        key[taken] = context_key(of_epoch, row[taken], number[taken])
        ipv4 = (flags[row[taken]] & FLAG_IPV4) != 0
        shape = shape_of(key[taken], np.int64(counts[row[taken]]), ipv4, p.max_tokens, p)
        bound[taken] = shape.bound
        if tokens + shape.bound > sequences * length:
            break
        tokens += shape.bound
        taken += 1
        position += 1
        if position == contexts:
            position = 0
            epoch += 1
            of_epoch = epoch_key(seed, epoch)

    sequence = np.empty(taken, np.int64)
    free = np.empty(sequences, np.int64)
    while True:
        unplaced = _pack(bound, taken, sequences, length, p.max_segments, sequence, free)
        if unplaced == 0:
            break
        ended = False
        while unplaced > 0:  # the last ones wait for the next unit
            taken -= 1
            unplaced -= bound[taken]
    used = sequences
    if ended:
        used = 0
        while used < sequences and free[used] < length:
            used += 1
    # Packing fills the first sequences with the largest contexts: spread them over the unit's batches.
    places = np.arange(sequences)
    for last in range(used - 1, 0, -1):
        other = below(draw(of_unit, SEQUENCE_ORDER, last), last + 1)
        places[last], places[other] = places[other], places[last]
    for context in range(taken):
        sequence[context] = places[sequence[context]]
    return row[:taken], number[:taken], key[:taken], bound[:taken], sequence[:taken], used
