"""The packets of ping results: which of them count, and what they add up to.

A packet is a reply {"rtt": …}, a loss {"x": "*"} or an error {"error": …} (never sent). A reply marked `dup`
or `late` answers a packet that is already in the list, as a reply or as a loss: it does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.ingest.values import floats
from ping_llm.schema import MAX_RTT_MS, NO_REPLY

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
