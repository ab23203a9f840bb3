"""Compiled filling of planned sequences with tokens, for all rows of a unit at once.

A planned context takes at most its bound. The space left over (unused parts of bounds, and gaps of packing)
is filled with *fillers*: further contexts drawn from rows that were read anyway; the rows of a unit are a
fair sample. The budget of a filler is the space left, so no context is cut, and no planned context is
dropped. Only a space too small for a measurement stays empty.
"""

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.contexts.context import arrange, select, write
from ping_llm.contexts.crossing import select_crossed, write_crossed
from ping_llm.contexts.draws import CROSSED, FILLER_KEY, FILLER_PICK, below, draw, shape_of
from ping_llm.measurements.address_kernels import is_ipv4_bytes

#: Number of sequences that share their rows for fillers; a host reads the rows of whole groups.
GROUP = 8

#: Where at most LAST_STRETCH tokens are left in a sequence, the best fit of CHOICES fillers is taken. Before
#: that the first that fits is taken, because choosing favours kinds of contexts that fit.
LAST_STRETCH = 128
CHOICES = 8

# Columns of the notes on each written context.
NOTE_CONTEXT, NOTE_FILLER, NOTE_KIND, NOTE_MODE, NOTE_COUNT, NOTE_LENGTH, NOTE_CUT = range(7)
NOTES = 7


@kernel
def groups_of(sequences, first):
    """The begin and end of each sequence's group of contexts, and a mask of the contexts in these groups."""
    begins = np.empty(len(sequences), np.int64)
    ends = np.empty(len(sequences), np.int64)
    needed = np.zeros(first[-1], np.bool_)
    for line in range(len(sequences)):
        opening = sequences[line] // GROUP * GROUP
        begins[line] = first[opening]
        ends[line] = first[min(opening + GROUP, len(first) - 1)]
        needed[begins[line] : ends[line]] = True
    return begins, ends, needed


@kernel
def smallest_measurement(p):
    """Number of tokens of the shortest measurement that states its source."""
    if p.prefix > 0:
        return 1 + 3 + 3 + p.result_length + p.extra_length
    return 1 + 5 + 5 + p.result_length + p.extra_length


@kernel
def fill(
    targets,
    inputs,
    positions,
    segments,
    notes,
    sequences,
    first,
    group_begin,
    group_end,
    context_row,
    context_key,
    filler_key,
    fillers,
    src,
    offsets,
    block_row,
    columns,
    crossing,
    p,
):
    """Write this host's sequences of a unit.

    Args:
        targets, inputs, positions, segments: int32 [n, length], overwritten.
        notes: int32 [n, max_segments, NOTES], overwritten.
        sequences: int64 [n], the number of each sequence within the unit.
        first: int64, the first context of each sequence, as in the plan.
        group_begin, group_end: int64 [n], the contexts whose rows a sequence's fillers may use.
        context_row: int64, the index of each context's row in the block, -1 if it is not in the block.
        context_key: uint64, the key of each context.
        filler_key: uint64 [n], the key of each sequence's fillers.
        fillers: whether to fill the space left over.
        src, offsets, columns: the block's arrays; columns are time, dst as two words, rtt, size, errors,
            msm_id, probe_id, throughput (0, or 1 + its code) and dst as bytes.
        crossing: the arrays of a Crossing; empty if no context is crossed.
        block_row: int64, the number of each row of the block.
        p: Parameters.
    """
    length = targets.shape[1]
    longest = np.int64(1)
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    marks = np.zeros(longest + 1, np.uint8)
    ranks = np.zeros(longest + 1, np.uint8)
    focus = np.zeros(max(p.focus_destinations, length), np.int64)
    chosen = np.empty(length, np.int64)
    loose = np.empty(length, np.int64)
    order = np.empty(length, np.int64)
    timed = np.empty(length, np.uint8)
    who = np.empty(length, np.int64)
    rtts = np.empty(length, np.float64)
    time, words, rtt, size, errors, msm_id, probe_id, throughput, dst = columns
    written_columns = (time, dst, rtt, size, errors, msm_id, probe_id, throughput)
    smallest = smallest_measurement(p)

    for line in range(len(sequences)):
        out = targets[line]
        position = 0
        segment = 0
        sequence = sequences[line]
        planned = first[sequence]
        candidates = group_end[line] - group_begin[line]
        tries = 0
        notes[line] = 0
        while segment < p.max_segments:
            if planned < first[sequence + 1]:
                context = planned
                filler = 0
                key = context_key[context]
                budget = p.max_tokens
                planned += 1
                row = context_row[context]
                begin = offsets[row]
                count = offsets[row + 1] - begin
                if count == 0:  # a bad row, skipped
                    continue
                ipv4 = is_ipv4_bytes(src[row])
                shape = shape_of(key, count, ipv4, budget, p)
            else:
                space = length - position
                if not fillers or space < smallest or candidates == 0:
                    break
                filler = 1
                budget = min(space, p.max_tokens)
                wanted = 1 if space > LAST_STRETCH else CHOICES
                best = -1
                least = length + 1
                for _ in range(CHOICES):
                    candidate = group_begin[line] + below(
                        draw(filler_key[line], FILLER_PICK, tries), candidates
                    )
                    candidate_row = context_row[candidate]
                    size_of_row = offsets[candidate_row + 1] - offsets[candidate_row]
                    if size_of_row > 0:
                        tried = shape_of(
                            draw(filler_key[line], FILLER_KEY, tries),
                            size_of_row,
                            is_ipv4_bytes(src[candidate_row]),
                            budget,
                            p,
                        )
                        if tried.measurements > 0:
                            if space - tried.bound < least:
                                least = space - tried.bound
                                best = tries
                            wanted -= 1
                    tries += 1
                    if wanted == 0 or least == 0:
                        break
                if best < 0:
                    break
                context = group_begin[line] + below(draw(filler_key[line], FILLER_PICK, best), candidates)
                key = draw(filler_key[line], FILLER_KEY, best)
                row = context_row[context]
                begin = offsets[row]
                count = offsets[row + 1] - begin
                ipv4 = is_ipv4_bytes(src[row])
                shape = shape_of(key, count, ipv4, budget, p)

            measurements = shape.measurements
            if shape.kind == CROSSED:
                measurements = select_crossed(
                    who, order, rtts, key, shape.bound, ipv4, block_row[row], crossing, p
                )
                end = write_crossed(out, position, key, measurements, who, order, rtts, ipv4, crossing, p)
            else:
                select(chosen, marks, ranks, focus, key, shape, words, begin, count, p)
                arrange(order, timed, chosen, loose, key, shape.mode, shape.measurements)
                end = write(
                    out, position, key, shape, order, timed, src[row], ipv4, begin, written_columns, p
                )
            notes[line, segment, NOTE_CONTEXT] = context
            notes[line, segment, NOTE_FILLER] = filler
            notes[line, segment, NOTE_KIND] = shape.kind
            notes[line, segment, NOTE_MODE] = shape.mode
            notes[line, segment, NOTE_COUNT] = measurements
            notes[line, segment, NOTE_LENGTH] = end - position
            notes[line, segment, NOTE_CUT] = shape.source_bytes
            segment += 1
            inputs[line, position] = 0
            for at in range(position + 1, end):
                inputs[line, at] = out[at - 1]
            for at in range(position, end):
                positions[line, at] = at - position
            for at in range(position, end):
                segments[line, at] = segment
            position = end
        for at in range(position, length):
            out[at] = 0
            inputs[line, at] = 0
            positions[line, at] = 0
            segments[line, at] = 0
