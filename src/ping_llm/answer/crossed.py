"""Crossed contexts of questions: results of other sources to the destination, and to shared destinations.

The form is that of training (`contexts.crossing`), but sources are chosen, not drawn at random. Of the
sources that have measured the destination, those are taken that agree best with the question's source on
destinations that both have measured; without shared destinations, those with the longest common prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS, medians
from ping_llm.answer.methods.neighbours import keep_nearest
from ping_llm.answer.past import first_of_each
from ping_llm.answer.prompts import Prompt, address_tokens
from ping_llm.compiled import kernel
from ping_llm.contexts.crossing import MOST_OTHERS, MOST_OWN, MOST_TIES, Crossing, first_not_below, numbered
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.measurements.scramble import pseudonym, pseudonyms
from ping_llm.tokens import vocab
from ping_llm.tokens.columns import StatementColumns, encode_columns
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.vocab import Field

#: About how many sources of a destination are compared with the question's source: more would cost time, and
#: few are near. Also compared: this many neighbours in the order of addresses, on each side.
_LOOK = 2048
_BESIDE = 8

#: Distance of a source without shared destinations, in log RTT, and how much each common byte reduces it.
_STRANGE, _COMMON_BYTE = 0.5, 0.03


@kernel
def _common_bytes(one: np.ndarray, other: np.ndarray) -> int:
    count = 0
    while count < 16 and one[count] == other[count]:
        count += 1
    return count


@kernel
def _distance(
    other: int, src: np.ndarray, own_dst: np.ndarray, own_log: np.ndarray,
    sources: np.ndarray, by_source: np.ndarray, s_dst: np.ndarray, s_rtt: np.ndarray,
) -> float:  # fmt: skip
    """Mean absolute difference of log RTT to shared destinations, shrunk to that of an unrelated source."""
    strange = _STRANGE - _COMMON_BYTE * _common_bytes(src, sources[other])
    total, shared = 0.0, 0
    begin, end = by_source[other], by_source[other + 1]
    for index in range(len(own_dst)):
        if own_dst[index] < 0 or np.isnan(own_log[index]):
            continue
        at = first_not_below(s_dst, begin, end, own_dst[index])
        if at < end and s_dst[at] == own_dst[index] and s_rtt[at] >= 0:
            total += abs(np.log(s_rtt[at] + FLOOR_MS) - own_log[index])
            shared += 1
    distance: float = (total + strange) / (shared + 1.0)
    return distance


@kernel
def nearest(
    asked: int, rank: int, src: np.ndarray, own_dst: np.ndarray, own_log: np.ndarray,
    crossing: tuple[np.ndarray, ...], best_at: np.ndarray, best_distance: np.ndarray,
) -> int:  # fmt: skip
    """Find the sources of a destination that are nearest to a source; returns their number.

    Args:
      asked: number of the destination.
      rank: position of the source in the order of the numbered sources.
      src: uint8 [16].
      own_dst, own_log: results of the source: number of the destination or -1, log RTT or NaN.
      best_at, best_distance: filled with the positions of the nearest sources in the destination's list, and
        their distances, nearest first.
    """
    _, sources, _, by_source, s_dst, s_rtt, by_destination, d_src, _ = crossing
    first, last = by_destination[asked], by_destination[asked + 1]
    step = max(1, (last - first) // _LOOK)
    beside = first_not_below(d_src, first, last, rank)
    low, high = max(first, beside - _BESIDE), min(last, beside + _BESIDE)
    found = 0
    for turn in range(2):
        begin, end, stride = (low, high, 1) if turn == 0 else (first, last, step)
        for at in range(begin, end, stride):
            if turn == 1 and low <= at < high:
                continue
            other = d_src[at]
            if (sources[other] == src).all():
                continue
            distance = _distance(other, src, own_dst, own_log, sources, by_source, s_dst, s_rtt)
            found = keep_nearest(best_distance, best_at, found, distance, at)
    return found


@dataclass(frozen=True)
class Result:
    """A measurement of a context."""

    src: bytes
    dst: bytes
    rtt: float


class Crossed:
    """Median RTT of every pair in the measurements that answers may use."""

    def __init__(self, train: Columns):
        sources, src = numbered(train.src)
        destinations, dst = numbered(train.dst)
        cells, cell = np.unique(src.astype(np.int64) * max(len(destinations), 1) + dst, return_inverse=True)
        rtt = np.full(len(cells), NO_REPLY)
        replied, place = np.unique(cell[train.replied], return_inverse=True)
        rtt[replied] = medians(place, train.rtt[train.replied], len(replied))
        cell_src, cell_dst = np.divmod(cells, max(len(destinations), 1))
        self.crossing = Crossing.of_pairs(sources, destinations, cell_src, cell_dst, rtt)
        self._words = _words(sources), _words(destinations)

    def groups(
        self, src: np.ndarray, dst: np.ndarray, own: Sequence[Result], room: int
    ) -> list[list[Result]]:
        """Return the results of other sources, one group per source, the nearest source last.

        Args:
          own: results of the source itself, most relevant first.
          room: largest number of measurements, where each source counts as one more.
        """
        crossing = self.crossing
        asked = _find(self._words[1], dst)
        if asked < 0 or room <= 0:
            return []
        own_dst = np.array([_find(self._words[1], np.frombuffer(r.dst, np.uint8)) for r in own], np.int64)
        own_rtt = np.array([r.rtt for r in own], np.float64)
        own_log = np.where(own_rtt >= 0, np.log(np.maximum(own_rtt, 0) + FLOOR_MS), np.nan)
        best_at, best = np.empty(MOST_OTHERS, np.int64), np.empty(MOST_OTHERS)
        rank = int(np.searchsorted(self._words[0], _words(src[None])[0]))
        found = nearest(asked, rank, src, own_dst, own_log, crossing.arrays(), best_at, best)
        out = []
        for at in best_at[:found].tolist():
            other = int(crossing.src[at])
            name = crossing.sources[other].tobytes()
            results = [Result(name, dst.tobytes(), float(crossing.rtt_of[at]))]
            begin, end = crossing.by_source[other], crossing.by_source[other + 1]
            for number in own_dst.tolist():
                if number < 0 or number == asked or len(results) > MOST_TIES:
                    continue
                place = begin + int(np.searchsorted(crossing.dst[begin:end], number))
                if place < end and crossing.dst[place] == number:
                    tie = crossing.destinations[number].tobytes()
                    results.append(Result(name, tie, float(crossing.rtt[place])))
            room -= 1 + len(results)
            if room < 0:
                break
            out.append(results[::-1])
        return out[::-1]


def _words(packed: np.ndarray) -> np.ndarray:
    """Addresses as values that sort by their bytes."""
    out: np.ndarray = np.ascontiguousarray(packed).view("S16").reshape(-1)
    return out


def _find(words: np.ndarray, packed: np.ndarray) -> int:
    if not len(words):
        return -1
    wanted = _words(packed[None])[0]
    at = int(np.searchsorted(words, wanted))
    return at if at < len(words) and words[at] == wanted else -1


@dataclass(frozen=True)
class CrossedQuestion:
    """A question and its context: results of other sources, then those of its own source.

    Attributes:
      own: number of results of its own source.
    """

    src: Prefix
    dst: Prefix
    results: Sequence[Result]
    own: int

    @property
    def length(self) -> int:
        return len(self.results)


def crossed_prompts(
    questions: Sequence[CrossedQuestion], keys: np.ndarray, encoding: RttEncoding, room: int
) -> list[Prompt]:
    """Encode questions as tokens, up to RTT, each with pseudonyms under its key."""
    total = sum(question.length for question in questions)
    columns = StatementColumns.empty(total)
    start = 0
    for question, key in zip(questions, keys.tolist(), strict=True):
        count = question.length
        if not count:
            continue
        rows = slice(start, start + count)
        named = [(r.src, r.dst) for r in question.results]
        src, dst = (
            np.frombuffer(b"".join(part), np.uint8).reshape(-1, 16) for part in zip(*named, strict=True)
        )
        new = np.ones(count, bool)
        new[1:] = (src[1:] != src[:-1]).any(axis=1)
        columns.first[start] = True
        columns.src[rows], known = pseudonyms(src, key)
        columns.dst[rows], _ = pseudonyms(dst, key)
        columns.src_known[rows] = columns.dst_known[rows] = known
        columns.rtt[rows] = [r.rtt for r in question.results]
        for stated, fields in (
            (new, (Field.SRC, Field.DST, Field.RESULT)),
            (~new, (Field.DST, Field.RESULT)),
        ):
            columns.order[np.flatnonzero(stated) + start, : len(fields)] = fields
        start += count
    ids, offsets = encode_columns(columns, encoding) if total else (np.zeros(0, np.int32), np.zeros(1, int))
    prompts, start = [], 0
    for question, key in zip(questions, keys.tolist(), strict=True):
        body = ids[offsets[start] : offsets[start + question.length]]
        start += question.length
        tail = [vocab.MEASUREMENT]
        if not question.own:
            tail += address_tokens(pseudonym(question.src, key), Field.SRC)
        tail += [*address_tokens(pseudonym(question.dst, key), Field.DST), vocab.RTT]
        tokens = np.concatenate([body, tail]).astype(np.int32)
        prompts.append(Prompt(tokens, question.length, question.length, 0, room, len(body)))
    return prompts


def measurements_that_fit(room: int, version: int, encoding: RttEncoding) -> int:
    """Number of measurements that fit into `room` tokens with the question; a source counts as one more."""
    address = 5 if version == 4 else 6
    measurement = 1 + address + 1 + encoding.bytes
    return max((room - 2 * address - 2) // measurement, 0)


def own_results(past: Columns, src: bytes, order: np.ndarray) -> list[Result]:
    """Choose one measurement of the source per destination, most relevant first.

    If a destination has replied, a reply is chosen: a failure does not tell the distance.

    Args:
      order: indices of the measurements, most relevant first.
    """
    words = np.ascontiguousarray(past.dst).view(np.uint64).reshape(-1, 2)
    shown = order[first_of_each(words[order])[:MOST_OWN]]
    lost = past.rtt[shown] == NO_REPLY
    if lost.any():
        replies = order[past.rtt[order] != NO_REPLY]
        for place in np.flatnonzero(lost):
            same = replies[(words[replies] == words[shown[place]]).all(axis=1)]
            shown[place] = same[0] if len(same) else shown[place]
    return [Result(src, past.dst[index].tobytes(), float(past.rtt[index])) for index in shown]
