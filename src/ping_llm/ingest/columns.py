"""Conversion of parsed records, lists of JSON values, to columns that can be judged.

The set of types in a column is determined first (20 ns per value): if all are as expected, NumPy and Arrow
convert the whole list at C speed. If a value is unusual (a number in a string, as in firmware 0, or an
invalid value), its block is converted by a slower loop in Python. Both give the same result where both apply.

This module also summarises the packets of a ping. A packet is a reply {"rtt": …}, a loss {"x": "*"} or an
error {"error": …} (never sent). A reply marked `dup` or `late` answers a packet that is already in the list,
as a reply or as a loss, so it does not count.
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

#: Verdicts beyond those of the rules. NOT_PING is a result of another kind. TRACEROUTE is a traceroute that
#: is split into hops: it counts as its hops, which have their own verdicts, some of them in NOT_USED.
TRACEROUTE = 254
NOT_PING = 255
NOT_USED = {reason: code for code, reason in enumerate(NotUsed, 128)}

_RAGGED = ("packets", "packet_offsets")


@dataclass
class ParsedRecords(Candidates):
    """A block of input records, as columns.

    Attributes:
      packets: RTTs of all packets (`--rtt each` only); those of record i are
        `packets[packet_offsets[i]:packet_offsets[i + 1]]`.
    """

    kind: np.ndarray  # uint8, index in schema.KINDS
    packets: np.ndarray | None = None
    packet_offsets: np.ndarray | None = None


def merge(count: int, parts: Sequence[tuple[np.ndarray, ParsedRecords]]) -> ParsedRecords:
    """Merge several blocks into one of `count` records; each part comes with the places of its records."""
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
        # Packet k of a record is k places after the record's start, in the part and in the merged block.
        starts = np.repeat(offsets[places] - columns.packet_offsets[:-1], counts[places])
        packets[starts + np.arange(len(columns.packets))] = columns.packets
    return ParsedRecords(**merged, packets=packets, packet_offsets=offsets)


def is_reject(verdict: np.ndarray) -> np.ndarray:
    return (verdict > ACCEPTED) & (verdict <= len(REASONS))


_NONE = type(None)
_NUMBERS = {int, float}
_INT64_MAX = 2**63 - 1


def floats(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Convert to float64 (NaN where not GIVEN) and states."""
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
    """Convert to int64 (UNKNOWN where absent or bad) and a mask of bad values."""
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
    """Convert Unix seconds to int64 µs and states; times that are far too large become the year 5138."""
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
    """Convert texts to packed addresses, uint8 [n, 16], and states."""
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
    """Packets of a block of results, and their statistics per result (NaN where no reply counts)."""

    offsets: np.ndarray  # int64 [n + 1]
    kinds: np.ndarray  # uint8, one per packet
    rtts: np.ndarray  # float64, one per packet
    replies: np.ndarray  # int64 [n]
    lost: np.ndarray
    mean: np.ndarray  # float64 [n]
    least: np.ndarray
    most: np.ndarray
    bad: np.ndarray  # bool [n]: a packet is invalid, or the RTT of a reply is impossible


def read_packets(lists: Sequence[Any]) -> Packets:
    """Read the packets in the `result` fields of a block of results; an absent field has no packets."""
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
    """Summarise packets per result; set `bad` for results with impossible packets."""
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
    """One RTT per packet that counts, for `--rtt each`.

    Args:
      unlisted_losses: int64 [n], number of lost packets of results that list no packets.

    Returns:
      RTTs (NO_REPLY for losses), and their offsets by result, int64 [n + 1].
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
