"""Parsed records on their way to the table: lists of JSON values become columns to judge.

A column's set of types is taken first (20 ns per value): when it is what it should be, NumPy and Arrow
convert the whole list at C speed. One odd value (a number in a string, as firmware 0 wrote them, or rubbish)
sends only its block through the careful loop. Both ways agree wherever both apply.

The packets of a ping are added up here. A packet is a reply {"rtt": …}, a loss {"x": "*"} or an error
{"error": …} (never sent). A reply marked `dup` or `late` answers a packet that is already in the list, as a
reply or as a loss: it does not count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ping_llm.compiled import kernel
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import ACCEPTED, BAD, GIVEN, MISSING, REASONS, UNKNOWN, Candidates
from ping_llm.measurements.schema import MAX_RTT_MS, NO_REPLY, NotUsed

#: Verdicts beyond those of the rules. NOT_PING is a result of another kind. TRACEROUTE is one that is taken
#: apart: it counts as its hops, which have verdicts of their own, some of NOT_USED.
TRACEROUTE = 254
NOT_PING = 255
NOT_USED = {reason: code for code, reason in enumerate(NotUsed, 128)}

_RAGGED = ("packets", "packet_offsets")


@dataclass
class ParsedRecords(Candidates):
    """A block of records of an input, column by column.

    Attributes:
      packets: RTTs of all packets (`--rtt each` only); record i's are
        `packets[packet_offsets[i]:packet_offsets[i + 1]]`.
    """

    kind: np.ndarray  # uint8, the place in schema.KINDS
    packets: np.ndarray | None = None
    packet_offsets: np.ndarray | None = None


def merge(count: int, parts: Sequence[tuple[np.ndarray, ParsedRecords]]) -> ParsedRecords:
    """One block of `count` records from several, each with the places its records go to."""
    merged: dict[str, np.ndarray] = {}
    for field in fields(ParsedRecords)[: -len(_RAGGED)]:
        first = getattr(parts[0][1], field.name)
        if first is None:  # no result of RIPE Atlas has a throughput
            continue
        merged[field.name] = np.empty((count, *first.shape[1:]), first.dtype)
        for places, columns in parts:
            merged[field.name][places] = getattr(columns, field.name)
    if parts[0][1].packets is None:
        return ParsedRecords(**merged)
    counts = np.zeros(count, np.int64)
    for places, columns in parts:
        assert columns.packet_offsets is not None
        counts[places] = np.diff(columns.packet_offsets)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    packets = np.empty(offsets[-1])
    for places, columns in parts:
        assert columns.packets is not None
        assert columns.packet_offsets is not None
        # Packet k of a record lies k after the record's start, in the part as in the whole.
        starts = np.repeat(offsets[places] - columns.packet_offsets[:-1], counts[places])
        packets[starts + np.arange(len(columns.packets))] = columns.packets
    return ParsedRecords(**merged, packets=packets, packet_offsets=offsets)


def is_reject(verdict: np.ndarray) -> np.ndarray:
    return (verdict > ACCEPTED) & (verdict <= len(REASONS))


_NONE = type(None)
_NUMBERS = {int, float}
_INT64_MAX = 2**63 - 1


def floats(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """float64 (NaN where not GIVEN) and states."""
    types = set(map(type, values))
    if types <= _NUMBERS:
        return np.array(values, np.float64), np.zeros(len(values), np.uint8)
    if types <= _NUMBERS | {_NONE}:
        numbers = np.array(values, np.float64)
        return numbers, np.isnan(numbers).astype(np.uint8) * MISSING
    numbers = np.full(len(values), np.nan)
    states = np.full(len(values), GIVEN)
    for index, value in enumerate(values):
        numbers[index], states[index] = _one_float(value)
    return numbers, states


def _one_float(value: Any) -> tuple[float, np.uint8]:
    kind = type(value)
    if kind in _NUMBERS:
        return float(value), GIVEN
    if value is None or value == "":
        return math.nan, MISSING
    if kind is str and len(value) <= 40 and "_" not in value:
        try:
            number = float(value)
        except ValueError:
            return math.nan, BAD
        return (number, GIVEN) if math.isfinite(number) else (math.nan, BAD)
    return math.nan, BAD


def integers(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """int64 (UNKNOWN where absent or bad) and a mask of the bad."""
    types = set(map(type, values))
    if types == {int}:
        try:
            return np.array(values, np.int64), np.zeros(len(values), bool)
        except OverflowError:
            pass
    elif types == {_NONE}:
        return np.full(len(values), UNKNOWN, np.int64), np.zeros(len(values), bool)
    numbers = np.full(len(values), UNKNOWN, np.int64)
    bad = np.zeros(len(values), bool)
    for index, value in enumerate(values):
        if value is None or value == "":
            continue
        number = _one_integer(value)
        if number is None:
            bad[index] = True
        else:
            numbers[index] = number
    return numbers, bad


def _one_integer(value: Any) -> int | None:
    kind = type(value)
    if kind is str and len(value) <= 20 and value.lstrip("-").isascii() and value.lstrip("-").isdigit():
        try:
            value = int(value)
        except ValueError:  # "--1"
            return None
    elif kind is float and value.is_integer():
        value = int(value)
    elif kind is not int:
        return None
    return value if -_INT64_MAX <= value <= _INT64_MAX else None


def microseconds(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Unix seconds, whole or not → int64 microseconds and states; the far too large become the year 5138."""
    if set(map(type, values)) == {int}:
        try:
            seconds = np.array(values, np.int64)
        except OverflowError:
            pass
        else:
            return np.clip(seconds, -(10**11), 10**11) * 1_000_000, np.zeros(len(values), np.uint8)
    numbers, states = floats(values)
    clipped = np.nan_to_num(np.clip(numbers, -1e11, 1e11), nan=0.0)
    return np.rint(clipped * 1e6).astype(np.int64), states


def packed_addresses(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 16] and states."""
    if set(map(type, values)) <= {str, _NONE}:
        texts = values
    else:
        texts = [value if type(value) is str else None for value in values]
    packed, valid = addresses.pack(pa.array(texts, pa.string()))
    states = np.full(len(values), GIVEN)
    for index in np.flatnonzero(~valid).tolist():
        value = values[index]
        states[index] = MISSING if value is None or value == "" else BAD
    return packed, states


REPLY, LOST, ERROR, IGNORED, RUBBISH = range(5)


@dataclass
class Packets:
    """Packets of a block of results, and per result what they add up to (NaN where no reply counts)."""

    offsets: np.ndarray  # int64 [n + 1]
    kinds: np.ndarray  # uint8, a packet
    rtts: np.ndarray  # float64, a packet
    replies: np.ndarray  # int64 [n]
    lost: np.ndarray
    mean: np.ndarray  # float64 [n]
    least: np.ndarray
    most: np.ndarray
    bad: np.ndarray  # bool [n]: a packet is not a packet, or a reply's RTT is impossible


def read_packets(lists: Sequence[Any]) -> Packets:
    """Read the `result` fields of a block of results; absent ones are empty."""
    bad = np.zeros(len(lists), bool)
    types = set(map(type, lists))
    if types != {list}:
        bad = np.array([value is not None and type(value) is not list for value in lists], bool)
        lists = [value if type(value) is list else [] for value in lists]
    packets = list(chain.from_iterable(lists))
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=offsets[1:])
    kinds = np.zeros(len(packets), np.uint8)
    if set(map(type, packets)) - {dict}:
        not_objects = [index for index, packet in enumerate(packets) if type(packet) is not dict]
        for index in not_objects:
            packets[index] = {}
    rtts, states = floats([packet.get("rtt") for packet in packets])
    for index, packet in enumerate(packets):
        if len(packet) != 1 or "rtt" not in packet:
            kinds[index] = _kind(packet)
    kinds[(kinds == REPLY) & (states != 0)] = RUBBISH
    return add_up(offsets, kinds, rtts, bad)


def add_up(offsets: np.ndarray, kinds: np.ndarray, rtts: np.ndarray, bad: np.ndarray) -> Packets:
    """Add up packets, result by result; `bad` gets those with impossible ones."""
    replies, lost, mean, least, most = _add_up(offsets, kinds, rtts, MAX_RTT_MS, bad)
    return Packets(offsets, kinds, rtts, replies, lost, mean, least, most, bad)


def _kind(packet: dict[str, Any]) -> int:
    if "dup" in packet or "late" in packet:
        return IGNORED
    if "rtt" in packet:
        return REPLY
    if "x" in packet:
        return LOST
    if "error" in packet:
        return ERROR
    return RUBBISH


@kernel
def _add_up(offsets, kinds, rtts, max_rtt, bad):
    count = len(offsets) - 1
    replies = np.zeros(count, np.int64)
    lost = np.zeros(count, np.int64)
    mean = np.full(count, np.nan)
    least = np.full(count, np.nan)
    most = np.full(count, np.nan)
    for result in range(count):
        total = 0.0
        for packet in range(offsets[result], offsets[result + 1]):
            kind = kinds[packet]
            if kind == 0:
                rtt = rtts[packet]
                if not (rtt >= 0.0 and rtt <= max_rtt):
                    bad[result] = True
                total += rtt
                if replies[result] == 0 or rtt < least[result]:
                    least[result] = rtt
                if replies[result] == 0 or rtt > most[result]:
                    most[result] = rtt
                replies[result] += 1
            elif kind == 1:
                lost[result] += 1
            elif kind == 4:
                bad[result] = True
        if replies[result] > 0:
            mean[result] = total / replies[result]
    return replies, lost, mean, least, most


def packet_rows(packets: Packets, unlisted_losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One RTT a packet that counts, for `--rtt each`.

    Args:
      unlisted_losses: int64 [n]: lost packets of results that list none of theirs.

    Returns:
      RTTs (NO_REPLY for losses) and their int64 [n + 1] offsets by result.
    """
    counts = packets.replies + packets.lost + unlisted_losses
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    rows = np.full(offsets[-1], NO_REPLY)
    counted = (packets.kinds == REPLY) | (packets.kinds == LOST)
    listed = np.where(packets.kinds == REPLY, packets.rtts, NO_REPLY)[counted]
    owners = np.repeat(unlisted_losses == 0, counts)
    rows[owners] = listed
    return rows, offsets
