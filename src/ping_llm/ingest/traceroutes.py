"""Conversion of RIPE Atlas traceroute results of all firmware versions to columns, with one row per hop.

A traceroute whose own fields break a rule (its time, its source, its numbers) is rejected as a whole and
counts once. Any other counts as its hops: each hop is a measurement from the probe to the address that
replied, at the time at which the traceroute began, or it is not used or rejected, for a reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from ping_llm.compiled import kernel
from ping_llm.ingest.accounting import FATES
from ping_llm.ingest.atlas import choose_sources, or_else
from ping_llm.ingest.columns import NOT_USED, ParsedRecords, floats, integers, microseconds, packed_addresses
from ping_llm.ingest.options import IngestOptions
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import ACCEPTED, GIVEN, MISSING, VERDICT, judge
from ping_llm.measurements.schema import HOP, LAST, MAX_RTT_MS, NotUsed, Reject

#: Codes of what happened to a reply: indices in FATES.
USED, OTHER_ADDRESS, PRIVATE, ERR, EDST, NO_ADDRESS, LATE, DUP, ERROR, LOST = range(10)
#: REJECTED is a valid reply of a hop that is rejected for another reply, which has one of the other codes.
REJECTED, BAD_RTT, BAD_ADDRESS = range(10, 13)
#: A valid reply that is faster than light allows (too_fast.py).
TOO_FAST = 13

#: Verdict of a hop without a usable reply, by the first fate in this list that one of its replies has.
_OUTCOMES = np.array(
    [
        (BAD_RTT, VERDICT[Reject.BAD_RTT]),
        (BAD_ADDRESS, VERDICT[Reject.BAD_DESTINATION]),
        (OTHER_ADDRESS, NOT_USED[NotUsed.NOT_LAST]),
        (PRIVATE, NOT_USED[NotUsed.PRIVATE]),
        (ERR, NOT_USED[NotUsed.ERR]),
        (EDST, NOT_USED[NotUsed.EDST]),
        (NO_ADDRESS, NOT_USED[NotUsed.NO_ADDRESS]),
        (LATE, NOT_USED[NotUsed.LATE]),
        (DUP, NOT_USED[NotUsed.DUP]),
        (ERROR, NOT_USED[NotUsed.ERROR]),
        (LOST, NOT_USED[NotUsed.SILENT]),
    ]
)
_FIRST_BAD = BAD_RTT

#: Keys of replies that are not ordinary replies with an RTT.
_MARKS = frozenset(("late", "dup", "edst", "err", "x", "error"))


@dataclass
class Hops:
    """Summary of hops. `address` and `rtt` are valid only where the verdict is ACCEPTED."""

    verdict: np.ndarray  # uint8 [n]
    address: np.ndarray  # uint8 [n, 16]
    rtt: np.ndarray  # float64 [n], the median
    lost: np.ndarray  # int64 [n]
    used: np.ndarray  # int64 [n]
    fates: np.ndarray  # int64 [len(FATES)], counts of the replies of all hops


def add_up(lists: Sequence[list[Any]], preferred: np.ndarray, only_preferred: bool) -> Hops:
    """Summarise the replies of each hop.

    Args:
      lists: The replies of each hop.
      preferred: uint8 [n, 16], the address used for the hop if it replied; zeros for none.
      only_preferred: Whether replies from other addresses are not used.
    """
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=offsets[1:])
    fates, packed, rtts = _read(list(chain.from_iterable(lists)))
    verdict = np.zeros(len(lists), np.uint8)
    chosen = np.zeros(len(lists), np.int64)
    medians = np.full(len(lists), np.nan)
    words, wanted = _words(packed), _words(preferred)
    if only_preferred:
        elsewhere = (words != np.repeat(wanted, np.diff(offsets), axis=0)).any(axis=1)
        fates[elsewhere & (fates == USED)] = OTHER_ADDRESS
    _choose(offsets, fates, words, wanted, rtts, _OUTCOMES, verdict, chosen, medians)
    lost, used = (np.diff(np.concatenate([[0], np.cumsum(fates == fate)])[offsets]) for fate in (LOST, USED))
    address = packed[chosen] if len(packed) else np.zeros((len(lists), 16), np.uint8)
    return Hops(verdict, address, medians, lost, used, np.bincount(fates, minlength=len(FATES)))


def _words(packed: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(packed).view(np.uint64).reshape(-1, 2)


def _read(replies: list[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fates (USED: usable), packed addresses and RTTs of replies."""
    fates = np.full(len(replies), USED, np.uint8)
    for index, reply in enumerate(replies):
        if type(reply) is not dict:
            fates[index] = BAD_RTT
            replies[index] = {}
        elif not _MARKS.isdisjoint(reply):
            fates[index] = _marked(reply)
    packed, address_states = packed_addresses([reply.get("from") for reply in replies])
    rtts, rtt_states = floats([reply.get("rtt") for reply in replies])
    with np.errstate(invalid="ignore"):
        good_rtt = (rtt_states == GIVEN) & (rtts >= 0) & (rtts <= MAX_RTT_MS)
    for wrong, fate in (
        (address_states == MISSING, NO_ADDRESS),
        (~good_rtt, BAD_RTT),
        (address_states != GIVEN, BAD_ADDRESS),
        (~addresses.is_public(packed), PRIVATE),
    ):
        fates[wrong & (fates == USED)] = fate
    return fates, packed, rtts


def _marked(reply: dict[str, Any]) -> int:
    if "late" in reply:
        return LATE
    if "dup" in reply:
        return DUP
    if "edst" in reply:
        return EDST
    if "err" in reply:
        return ERR
    if "rtt" in reply:
        return USED
    return LOST if "x" in reply else ERROR


@kernel
def _same(words, one, others, other):
    return words[one, 0] == others[other, 0] and words[one, 1] == others[other, 1]


@kernel
def _choose(offsets, fates, words, preferred, rtts, outcomes, verdict, chosen, medians):
    """Fill in verdicts, the index of a reply from each hop's address, and medians; mark OTHER_ADDRESS."""
    for hop in range(len(offsets) - 1):
        start, end = offsets[hop], offsets[hop + 1]
        bad = False
        best = -1
        most = 0
        for reply in range(start, end):
            bad |= fates[reply] >= _FIRST_BAD
            if fates[reply] != USED:
                continue
            count = 0
            for other in range(start, end):
                if fates[other] == USED and _same(words, other, words, reply):
                    count += 1
            if _same(words, reply, preferred, hop):
                count = end - start + 1
            if count > most:
                most, best = count, reply
        if bad or best < 0:
            for reply in range(start, end):
                if fates[reply] == USED:
                    fates[reply] = REJECTED
            for row in range(len(outcomes)):
                found = False
                for reply in range(start, end):
                    found |= fates[reply] == outcomes[row, 0]
                if found:
                    verdict[hop] = outcomes[row, 1]
                    break
            continue
        chosen[hop] = best
        own = np.empty(end - start)
        used = 0
        for reply in range(start, end):
            if fates[reply] == USED:
                if _same(words, reply, words, best):
                    own[used] = rtts[reply]
                    used += 1
                else:
                    fates[reply] = OTHER_ADDRESS
        own = np.sort(own[:used])
        medians[hop] = (own[(used - 1) // 2] + own[used // 2]) / 2


#: Largest number of replies per hop that is plausible: the largest seen in 76,393 is 48. The time to
#: summarise a hop grows with the square of this number.
_MAX_REPLIES = 1_000

_PRINTED_HEAD = re.compile(r"traceroute to \S+ \(([^\s()]+)\)")
_PRINTED_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass
class TracerouteBlock:
    """Judged rows: one per hop, or one per traceroute that is rejected as a whole."""

    columns: ParsedRecords
    owners: np.ndarray  # int64 [n], index of the traceroute of each row
    hops: list[Any]  # as parsed; None where the row is a whole traceroute
    used: np.ndarray  # int64 [n], number of replies of which the row's RTT is the median
    taken_apart: int  # number of traceroutes that count as their hops
    replies: np.ndarray  # int64 [len(FATES)], counts of the replies

    def raw(self, row: int) -> bytes | None:
        """The JSON text of a row's hop; None for a whole traceroute."""
        return None if self.hops[row] is None else orjson.dumps(self.hops[row])


def read_traceroutes(results: Sequence[dict[str, Any]], options: IngestOptions) -> TracerouteBlock:
    """Convert traceroutes to rows. Their content never raises an error."""
    results = [_listed(result) for result in results]
    whole = _whole(results, options)
    rows: list[Any] = []
    counts = np.ones(len(results), np.int64)
    for index, result in enumerate(results):
        if whole.verdict[index] == ACCEPTED:
            rows += result["result"]
            counts[index] = len(result["result"])
        else:
            rows.append(None)
    owners = np.repeat(np.arange(len(results)), counts)
    is_last = np.zeros(len(rows), bool)
    is_last[np.cumsum(counts) - 1] = True
    return _rows(results, whole, rows, owners, is_last, options)


def _whole(results: list[dict[str, Any]], options: IngestOptions) -> ParsedRecords:
    """The judged fields that all hops of a traceroute share; destinations are judged per hop."""

    def values(key: str) -> list[Any]:
        return [result.get(key) for result in results]

    count = len(results)
    own = packed_addresses(or_else(results, values("src_addr"), "srcaddr"))
    src, src_state = choose_sources(*own, *packed_addresses(values("from")), options.source)
    version, version_bad = integers(or_else(results, values("af"), "pf"))
    version[version_bad] = 0
    msm_id, msm_bad = integers(values("msm_id"))
    size, size_bad = integers(values("size"))
    probe_id, probe_bad = integers(values("prb_id"))
    whole = ParsedRecords(
        np.full(count, ACCEPTED, np.uint8),
        *microseconds(values("timestamp")),
        src, src_state, src, np.full(count, GIVEN), version,
        np.zeros(count), np.full(count, GIVEN),
        msm_id, size, np.zeros(count, np.int64), probe_id, msm_bad | size_bad | probe_bad,
        np.full(count, HOP, np.uint8),
    )  # fmt: skip
    judge(whole)
    for index in np.flatnonzero(whole.verdict == ACCEPTED).tolist():
        listed = results[index].get("result")
        if type(listed) is not list:
            whole.verdict[index] = VERDICT[Reject.MISSING_RTT if listed is None else Reject.BAD_RTT]
        elif not listed:
            whole.verdict[index] = VERDICT[Reject.MISSING_RTT]
    return whole


def _rows(
    results: list[dict[str, Any]],
    whole: ParsedRecords,
    rows: list[Any],
    owners: np.ndarray,
    is_last: np.ndarray,
    options: IngestOptions,
) -> TracerouteBlock:
    only_last = options.traceroutes == "last"
    verdict = whole.verdict[owners]
    replies: list[list[Any]] = [[]] * len(rows)
    for row in np.flatnonzero(verdict == ACCEPTED).tolist():
        if only_last and not is_last[row]:
            verdict[row] = NOT_USED[NotUsed.NOT_LAST]
        else:
            replies[row], verdict[row] = _replies(rows[row])
    destination, state = packed_addresses(
        or_else(results, [result.get("dst_addr") for result in results], "addr")
    )
    destination = np.where((is_last & (state[owners] == GIVEN))[:, None], destination[owners], np.uint8(0))
    added = add_up(replies, destination, only_last)
    verdict = np.where(verdict == ACCEPTED, added.verdict, verdict)
    reached = is_last & (added.address == destination).all(axis=1)
    columns = ParsedRecords(
        verdict,
        whole.time_us[owners], whole.time_state[owners],
        whole.src[owners], whole.src_state[owners],
        added.address, np.full(len(rows), GIVEN), whole.ip_version[owners],
        added.rtt, np.full(len(rows), GIVEN),
        whole.msm_id[owners], whole.size[owners], added.lost, whole.probe_id[owners],
        np.zeros(len(rows), bool),
        np.where(reached, LAST, HOP).astype(np.uint8),
    )  # fmt: skip
    judge(columns)
    taken_apart = int((whole.verdict == ACCEPTED).sum())
    return TracerouteBlock(columns, owners, rows, added.used, taken_apart, added.fates)


def _replies(hop: Any) -> tuple[list[Any], int]:
    """The replies of a hop, and ACCEPTED; or no replies, and the verdict with the reason."""
    if type(hop) is not dict:
        return [], VERDICT[Reject.BAD_RTT]
    listed = hop.get("result")
    if listed is None and "error" in hop:
        return [], NOT_USED[NotUsed.ERROR]
    if listed is not None and (type(listed) is not list or len(listed) > _MAX_REPLIES):
        return [], VERDICT[Reject.BAD_RTT]
    return (listed, ACCEPTED) if listed else ([], VERDICT[Reject.MISSING_RTT])


def _listed(result: dict[str, Any]) -> dict[str, Any]:
    """Convert results of firmware 1, the printed output with NEWLINE for line ends, to hops."""
    printed = result.get("result")
    if type(printed) is not str or not (head := _PRINTED_HEAD.match(printed)):
        return result
    lines = [line.split() for line in printed.split("NEWLINE")[1:]]
    return {**result, "dst_addr": head[1], "result": [_printed_hop(line) for line in lines if line]}


def _printed_hop(words: list[str]) -> dict[str, Any]:
    """Parse `3 192.0.2.1 1.876 ms 1.872 ms !H *`: an address applies to all RTTs until the next address."""
    replies: list[Any] = []
    address = None
    index = 1
    while index < len(words):
        word = words[index]
        index += 1
        if word == "*":
            replies.append({"x": "*"})
        elif words[index : index + 1] == ["ms"]:
            rtt = float(word) if _PRINTED_NUMBER.fullmatch(word) else word
            replies.append({"from": address, "rtt": rtt})
            index += 1
        elif word.startswith("!") and replies and type(replies[-1]) is dict:
            replies[-1]["err"] = word[1:]
        elif "." in word or ":" in word:
            address = word.strip("()")
        else:
            replies.append(word)
    return {"hop": words[0], "result": replies}
