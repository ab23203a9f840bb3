"""Compiled features of a question for the network of `relations`, from the matrix of known pairs."""

from typing import NamedTuple

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS
from ping_llm.compiled import kernel
from ping_llm.measurements.columns import NO_TIME

#: Number of results that are shown: of the column, of the row, near by address, of the pair.
COLUMN, ROW, NEAR, PAIR = 24, 24, 12, 8
SHOWN = COLUMN + ROW + NEAR + PAIR
#: Number of features of a result, and of a question.
RESULT, QUESTION = 26, 17
#: Indices of the features of a result that the centres of the network's answer are computed from.
VALUE, SHIFT, SHIFT_MS = 4, 7, 10
#: Log RTT that is subtracted from log RTTs: 40 ms.
TYPICAL = 3.7

#: Number of levels of `Ends` at which common prefixes are compared: /8, /16, /24 (IPv6: /32, /48, /64).
CLASSES = 3
#: Expected mean absolute difference of log RTT between two ends, by common prefix (none, /8, /16, /24), if
#: nothing else is known. It has the weight of one shared result.
_EXPECTED = np.array([0.5, 0.4, 0.25, 0.1])
#: Limits: results of an end that are compared, and entries of a row or column that are searched. Longer lists
#: are thinned out evenly.
_COMPARED, _LOOKED_AT = 512, 2048
#: Limits: ends with a common prefix of each length that are searched, and results of each.
_NEAR_ENDS, _OF_NEAR_END = 6, 64
#: Number of newest replies of the pair that are summarised.
_SUMMED = 32
_DAY_US, _SECOND_US = 86_400e6, 1e6


class Side(NamedTuple):
    """The known pairs by one of their ends: `start[i]:start[i + 1]` are those of end i.

    Attributes:
      other: int64, the number of the other end; `value`: float64, log RTT.
      total: float64 [ends], the sum of the values of each end.
      prefixes: int32 [ends, LEVELS], as in `Ends`.
      members, member_start: the ends in each prefix, `members[member_start[i]:member_start[i + 1]]` for row i
        of the prefix table.
    """

    start: np.ndarray
    other: np.ndarray
    value: np.ndarray
    total: np.ndarray
    prefixes: np.ndarray
    members: np.ndarray
    member_start: np.ndarray


class Shown(NamedTuple):
    """The entries of each question's row or column that may be shown.

    They are entries `low:high` of the matrix, or of `other` and `value`.

    Attributes:
      own: bool [n], whether the entries are those of `other` and `value`.
      hidden: bool [n], whether the results of the end in the matrix must not be used.
    """

    low: np.ndarray
    high: np.ndarray
    own: np.ndarray
    other: np.ndarray
    value: np.ndarray
    hidden: np.ndarray


class AskedPairs(NamedTuple):
    """The ends of each question: their numbers (-1: not known) and the rows of their prefixes."""

    source: np.ndarray
    destination: np.ndarray
    source_prefixes: np.ndarray
    destination_prefixes: np.ndarray


class Features(NamedTuple):
    """Input of the network: float32 [n, SHOWN, RESULT], bool [n, SHOWN], float32 [n, QUESTION]."""

    results: np.ndarray
    known: np.ndarray
    question: np.ndarray


@kernel
def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Length class of the common prefix of two ends: 0 (none) to 3 (a /24 or /64)."""
    for level in range(CLASSES - 1, -1, -1):
        if one[level] == other[level]:
            return level + 1
    return 0


@kernel
def _agreement(own: np.ndarray, side: Side, end: int) -> tuple[int, float, float, float, float]:
    """Compare the results of an end with a question's row (or column), a dense array with NaN.

    Returns:
      the number of shared results, and sums over them: the difference (own minus theirs) in log RTT, its
      square, its absolute value, and the difference in ms.
    """
    low, high = side.start[end], side.start[end + 1]
    step = 1 + (high - low) // _COMPARED
    # Array operations, because small devices run this without a compiler.
    mine, theirs = own[side.other[low:high:step]], side.value[low:high:step]
    shared = ~np.isnan(mine)
    mine, theirs = mine[shared], theirs[shared]
    off = mine - theirs
    linear = (np.exp(mine) - np.exp(theirs)).sum()
    return len(off), off.sum(), (off * off).sum(), np.abs(off).sum(), linear


@kernel
def _keep(
    scores: np.ndarray, ends: np.ndarray, stats: np.ndarray, found: int, most: int,
    score: float, end: int, other: int, value: float, agreement: tuple[int, float, float, float, float],
) -> int:  # fmt: skip
    """Insert a result into a list of the `most` results with the least scores; returns its new length."""
    if found == most and score >= scores[found - 1]:
        return found
    for place in range(found):
        if ends[place, 0] == end and ends[place, 1] == other:
            return found
    place = min(found, most - 1)
    while place > 0 and scores[place - 1] > score:
        scores[place], ends[place], stats[place] = scores[place - 1], ends[place - 1], stats[place - 1]
        place -= 1
    scores[place], ends[place, 0], ends[place, 1] = score, end, other
    shared, total, square, absolute, linear = agreement
    stats[place, 0], stats[place, 1], stats[place, 2] = value, float(shared), total
    stats[place, 3], stats[place, 4], stats[place, 5] = square, absolute, linear
    return min(found + 1, most)


@kernel
def _mean_without(total: float, count: int, left_out: float, otherwise: float) -> tuple[float, int]:
    """Mean without one of its values (NaN: none), or `otherwise` if none is left; and the number left."""
    if not np.isnan(left_out):
        total -= left_out
        count -= 1
    return (total / count, count) if count > 0 else (otherwise, 0)


@kernel
def _describe(
    out: np.ndarray, kind: int, stats: np.ndarray, mean: float, count: int, overall: float,
    source_common: int, destination_common: int,
) -> None:  # fmt: skip
    """Compute the features of a result.

    Args:
      stats: its value, and the agreement of its end with that of the question, where they differ.
      mean, count: mean and number of the other results of that end.
    """
    value, shared, total, square, absolute, linear = stats
    shift = total / (shared + 1.0)
    out[kind] = 1.0
    out[VALUE] = value - TYPICAL
    out[5] = value - mean
    out[6] = value + shift - TYPICAL
    out[SHIFT] = shift
    out[8] = np.log1p(shared) / 3.0
    out[9] = (absolute + 0.5) / (shared + 1.0)
    # The shift that the mean difference in ms makes in log RTT; the shifted RTT is at least 0.3 ms.
    out[SHIFT_MS] = np.log(max(np.exp(value) + linear / (shared + 1.0), 0.3)) - value
    out[11] = mean - overall
    out[12] = np.log1p(count) / 4.0
    out[13 + source_common] = 1.0
    out[17 + destination_common] = 1.0
    out[21] = np.sqrt(max(square / (shared + 1.0) - shift * shift, 0.0))


@kernel
def _fill(dense: np.ndarray, shown: Shown, side: Side, i: int, left_out: int) -> tuple[float, int]:
    """Write the shown entries of question i to a dense array of NaN; returns their sum and number."""
    other, value = (shown.other, shown.value) if shown.own[i] else (side.other, side.value)
    low, high = shown.low[i], shown.high[i]
    dense[other[low:high]] = value[low:high]
    total, count = value[low:high].sum(), high - low
    if left_out >= 0 and not np.isnan(dense[left_out]):
        total -= dense[left_out]
        count -= 1
        dense[left_out] = np.nan
    return total, count


@kernel
def _empty(dense: np.ndarray, shown: Shown, side: Side, i: int) -> None:
    other = shown.other if shown.own[i] else side.other
    dense[other[shown.low[i] : shown.high[i]]] = np.nan


@kernel
def _fill_whole(dense: np.ndarray, side: Side, end: int) -> None:
    """Write all results of an end in the matrix (-1: none) to a dense array of NaN."""
    if end >= 0:
        low, high = side.start[end], side.start[end + 1]
        dense[side.other[low:high]] = side.value[low:high]


@kernel
def _empty_whole(dense: np.ndarray, side: Side, end: int) -> None:
    if end >= 0:
        dense[side.other[side.start[end] : side.start[end + 1]]] = np.nan


@kernel
def _near(side: Side, prefixes: np.ndarray, itself: int, common: int, out: np.ndarray) -> int:
    """Find other ends with exactly this class of common prefix, evenly spaced; returns their number."""
    table = prefixes[common - 1]
    low, high = side.member_start[table], side.member_start[table + 1]
    found = 0
    for place in range(low, high, 1 + (high - low) // (4 * _NEAR_ENDS)):
        end = side.members[place]
        if found < _NEAR_ENDS and end != itself and _common(side.prefixes[end], prefixes) == common:
            out[found] = end
            found += 1
    return found


@kernel
def _show_side(
    kind: int, result: np.ndarray, known: np.ndarray, shown: Shown, entries: Side, i: int,
    own: np.ndarray, whole: np.ndarray, opposite: np.ndarray, side: Side, prefixes: np.ndarray, itself: int,
    overall: float, scores: np.ndarray, ends: np.ndarray, stats: np.ndarray, near: np.ndarray,
) -> float:  # fmt: skip
    """Show the most related results of a column (kind 0) or a row (1), of ends other than the question's.

    The words in brackets are for a column, whose results come from other sources.

    Args:
      shown, entries: the entries that may be shown (by source).
      own, whole: dense arrays of the entries that may be shown, and of all in the matrix.
      opposite: dense array that the ends are compared by (the row).
      side: all results of the ends that may be shown (of the sources).
      prefixes, itself: prefixes and number of the end of the question (its source).

    Returns:
      mean excess of the results over the means of their ends elsewhere, shrunk to 0.
    """
    first, most = (0, COLUMN) if kind == 0 else (COLUMN, ROW)
    found, effect, effects = 0, 0.0, 0
    # Ends near by address first, so that they are included even if the list is thinned out.
    for common in range(CLASSES, 0, -1):
        for j in range(_near(side, prefixes, itself, common, near)):
            value = own[near[j]]
            if not np.isnan(value):
                agreed = _agreement(opposite, side, near[j])
                score = (agreed[3] + _EXPECTED[common]) / (agreed[0] + 1.0)
                found = _keep(scores, ends, stats, found, most, score, near[j], -1, value, agreed)
    others, values = (shown.other, shown.value) if shown.own[i] else (entries.other, entries.value)
    low, high = shown.low[i], shown.high[i]
    for place in range(low, high, 1 + (high - low) // _LOOKED_AT):
        other = others[place]
        if other == itself:
            continue
        agreed = _agreement(opposite, side, other)
        common = _common(prefixes, side.prefixes[other])
        score = (agreed[3] + _EXPECTED[common]) / (agreed[0] + 1.0)
        found = _keep(scores, ends, stats, found, most, score, other, -1, values[place], agreed)
        count = side.start[other + 1] - side.start[other]
        mean, several = _mean_without(side.total[other], count, whole[other], 0.0)
        if several:
            effect += values[place] - mean
            effects += 1
    for j in range(found):
        other = ends[j, 0]
        count = side.start[other + 1] - side.start[other]
        mean, several = _mean_without(side.total[other], count, whole[other], overall)
        common = _common(prefixes, side.prefixes[other])
        commons = (common, CLASSES) if kind == 0 else (CLASSES, common)
        _describe(result[first + j], kind, stats[j], mean, several, overall, *commons)
        known[first + j] = True
    return effect / (effects + 1.0)


@kernel
def _show_near(
    result: np.ndarray, known: np.ndarray, own_row: np.ndarray, whole_column: np.ndarray, rows: Side,
    columns: Side, source: int, destination: int, from_prefix: np.ndarray, to_prefix: np.ndarray,
    overall: float, scores: np.ndarray, ends: np.ndarray, stats: np.ndarray, near: np.ndarray,
) -> None:  # fmt: skip
    """Show results of other sources to destinations near by address."""
    found, looked_at = 0, 0
    for common in range(CLASSES, 0, -1):
        for j in range(_near(columns, to_prefix, destination, common, near)):
            if looked_at >= _NEAR_ENDS:
                break
            looked_at += 1
            low, high = columns.start[near[j]], columns.start[near[j] + 1]
            for place in range(low, high, 1 + (high - low) // _OF_NEAR_END):
                other = columns.other[place]
                if other == source:
                    continue
                agreed = _agreement(own_row, rows, other)
                alike = _common(from_prefix, rows.prefixes[other])
                score = (agreed[3] + _EXPECTED[alike]) / (agreed[0] + 1.0) + _EXPECTED[common]
                value = columns.value[place]
                found = _keep(scores, ends, stats, found, NEAR, score, other, near[j], value, agreed)
    for j in range(found):
        other, there = ends[j]
        count = rows.start[other + 1] - rows.start[other] - 1
        mean, several = _mean_without(rows.total[other] - stats[j, 0], count, whole_column[other], overall)
        alike = _common(from_prefix, rows.prefixes[other])
        common = _common(to_prefix, columns.prefixes[there])
        _describe(result[COLUMN + ROW + j], 2, stats[j], mean, several, overall, alike, common)
        known[COLUMN + ROW + j] = True


@kernel
def _overall(
    total: float, source: int, destination: int, row: bool, column: bool, cell: float, rows: Side,
    columns: Side,
) -> float:  # fmt: skip
    """Mean of all pairs, whose sum is `total`, without the queried pair and the hidden row and column."""
    count = len(rows.value)
    hidden = 0
    if source >= 0 and row:
        total -= rows.total[source]
        count -= rows.start[source + 1] - rows.start[source]
        hidden += 1
    if destination >= 0 and column:
        total -= columns.total[destination]
        count -= columns.start[destination + 1] - columns.start[destination]
        hidden += 1
    if not np.isnan(cell):
        total += (hidden - 1) * cell
        count += hidden - 1
    return total / count if count > 0 else TYPICAL


@kernel
def relate(
    asked: AskedPairs, row: Shown, column: Shown, rows: Side, columns: Side, spread: float, out: Features
) -> None:
    sources, destinations = len(rows.start) - 1, len(columns.start) - 1
    own_row, whole_row = np.full(destinations, np.nan), np.full(destinations, np.nan)
    own_column, whole_column = np.full(sources, np.nan), np.full(sources, np.nan)
    scores, ends, stats = np.empty(COLUMN), np.empty((COLUMN, 2), np.int64), np.empty((COLUMN, 6))
    near, everything = np.empty(_NEAR_ENDS, np.int64), rows.total.sum()
    for i in range(len(asked.source)):
        source, destination = asked.source[i], asked.destination[i]
        result, known, question = out.results[i], out.known[i], out.question[i]
        from_prefix, to_prefix = asked.source_prefixes[i], asked.destination_prefixes[i]
        row_total, row_count = _fill(own_row, row, rows, i, destination)
        column_total, column_count = _fill(own_column, column, columns, i, source)
        _fill_whole(whole_row, rows, source)
        _fill_whole(whole_column, columns, destination)
        cell = whole_row[destination] if destination >= 0 else np.nan
        overall = _overall(
            everything, source, destination, row.hidden[i], column.hidden[i], cell, rows, columns
        )
        column_effect = _show_side(
            0, result, known, column, columns, i, own_column, whole_column, own_row, rows, from_prefix,
            source, overall, scores, ends, stats, near,
        )  # fmt: skip
        row_effect = _show_side(
            1, result, known, row, rows, i, own_row, whole_row, own_column, columns, to_prefix,
            destination, overall, scores, ends, stats, near,
        )  # fmt: skip
        _show_near(
            result, known, own_row, whole_column, rows, columns, source, destination, from_prefix, to_prefix,
            overall, scores, ends, stats, near,
        )  # fmt: skip
        question[0] = overall - TYPICAL
        question[1] = spread
        question[2], question[3] = np.log1p(row_count) / 4.0, np.log1p(column_count) / 4.0
        question[4], question[5] = row_effect, column_effect
        question[6] = overall - TYPICAL + row_effect + column_effect
        question[7] = (row_total + overall) / (row_count + 1.0) - TYPICAL
        question[8] = (column_total + overall) / (column_count + 1.0) - TYPICAL
        question[9], question[10] = np.log1p(sources) / 6.0, np.log1p(destinations) / 6.0
        _empty_whole(whole_row, rows, source)
        _empty_whole(whole_column, columns, destination)
        _empty(own_row, row, rows, i)
        _empty(own_column, column, columns, i)


@kernel
def show_pair(
    low: np.ndarray, high: np.ndarray, rtt: np.ndarray, time: np.ndarray, now: np.ndarray, out: Features
) -> None:
    """Show the newest replies of each pair, rows low[i]:high[i], of which the last is the newest."""
    for i in range(len(low)):
        count = high[i] - low[i]
        if not count:
            continue
        question = out.question[i]
        newest = np.log(rtt[high[i] - 1] + FLOOR_MS)
        least, total, square, summed = newest, 0.0, 0.0, 0
        for place in range(max(low[i], high[i] - _SUMMED), high[i]):
            value = np.log(rtt[place] + FLOOR_MS)
            least = min(least, value)
            total += value - newest
            square += (value - newest) ** 2
            summed += 1
        mean = newest + total / summed
        spread = np.sqrt(max(square / summed - (total / summed) ** 2, 0.0))
        question[11] = np.log1p(count) / 4.0
        question[12], question[13], question[14] = mean - TYPICAL, spread, mean - least
        question[15] = newest - mean
        question[16] = 1.0 if now[i] != NO_TIME else 0.0
        for j in range(min(count, PAIR)):
            place = high[i] - 1 - j
            result = out.results[i, COLUMN + ROW + NEAR + j]
            value = np.log(rtt[place] + FLOOR_MS)
            result[3] = 1.0
            result[VALUE] = value - TYPICAL
            result[5], result[6], result[9] = value - mean, value - newest, spread
            result[8], result[12] = j / 8.0, np.log1p(count) / 4.0
            result[11] = value - least
            if now[i] != NO_TIME:
                age = float(now[i] - time[place])
                result[22] = 1.0
                result[23] = np.log1p(age / _SECOND_US) / 10.0
                phase = 2 * np.pi * age / _DAY_US
                result[24], result[25] = np.cos(phase), np.sin(phase)
            out.known[i, COLUMN + ROW + NEAR + j] = True
