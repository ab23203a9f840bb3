"""Columns on their way to the table: the rules of schema.py, applied to a block of records at once.

Whatever the input format, its reader fills `Columns`; `judge` gives every record a verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ping_llm import addresses
from ping_llm.schema import (
    END_TIME_US,
    MAX_PACKET_ERRORS,
    MAX_RTT_MS,
    MAX_SIZE,
    MIN_TIME_US,
    NO_REPLY,
    Reject,
)

REASONS = tuple(Reject)

#: Verdicts: 0 is a measurement, k > 0 is REASONS[k - 1], NOT_PING is a result of another kind.
ACCEPTED = 0
NOT_PING = 255
VERDICT = {reason: code for code, reason in enumerate(REASONS, 1)}

#: How a value reads: as what it should be, as absent, or as something else.
GIVEN, MISSING, BAD = np.uint8(0), np.uint8(1), np.uint8(2)

_RAGGED = ("packets", "packet_offsets")

#: Unknown msm_id, size, packet_error_count or probe_id.
UNKNOWN = -1


@dataclass
class Columns:
    """A block of records, column by column. The `*_state` arrays say GIVEN, MISSING or BAD.

    Attributes:
      packets: RTTs of all packets (`--rtt each` only); record i's are
        `packets[packet_offsets[i]:packet_offsets[i + 1]]`.
    """

    verdict: np.ndarray  # uint8; not 0 where the reader already knows
    time_us: np.ndarray  # int64
    time_state: np.ndarray
    src: np.ndarray  # uint8 [n, 16]
    src_state: np.ndarray
    dst: np.ndarray
    dst_state: np.ndarray
    ip_version: np.ndarray  # int64: 4, 6, UNKNOWN, or anything (then wrong)
    rtt: np.ndarray  # float64
    rtt_state: np.ndarray
    msm_id: np.ndarray  # int64
    size: np.ndarray
    packet_error_count: np.ndarray
    probe_id: np.ndarray
    fields_bad: np.ndarray  # bool: one of the four above is not an integer
    packets: np.ndarray | None = None
    packet_offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.verdict)


def merge(count: int, parts: Sequence[tuple[np.ndarray, Columns]]) -> Columns:
    """One block of `count` records from several, each with the places its records go to."""
    merged: dict[str, np.ndarray] = {}
    for field in fields(Columns)[: -len(_RAGGED)]:
        first = getattr(parts[0][1], field.name)
        merged[field.name] = np.empty((count, *first.shape[1:]), first.dtype)
        for places, columns in parts:
            merged[field.name][places] = getattr(columns, field.name)
    if parts[0][1].packets is None:
        return Columns(**merged)
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
    return Columns(**merged, packets=packets, packet_offsets=offsets)


def judge(columns: Columns) -> np.ndarray:
    """Fill in and return the verdicts. The first rule broken is the reason."""
    verdict = columns.verdict

    def reject(mask: np.ndarray, reason: Reject) -> None:
        verdict[mask & (verdict == ACCEPTED)] = VERDICT[reason]

    outside = (columns.time_us < MIN_TIME_US) | (columns.time_us >= END_TIME_US)
    reject(columns.time_state == MISSING, Reject.MISSING_TIME)
    reject((columns.time_state == BAD) | outside, Reject.BAD_TIME)
    reject(columns.src_state == MISSING, Reject.MISSING_SOURCE)
    reject(columns.src_state == BAD, Reject.BAD_SOURCE)
    reject(columns.dst_state == MISSING, Reject.MISSING_DESTINATION)
    reject(columns.dst_state == BAD, Reject.BAD_DESTINATION)
    src_is_ipv4 = addresses.is_ipv4(columns.src)
    reject(src_is_ipv4 != addresses.is_ipv4(columns.dst), Reject.MIXED_VERSIONS)
    wrong = (columns.ip_version != np.where(src_is_ipv4, 4, 6)) & (columns.ip_version != UNKNOWN)
    reject(wrong, Reject.WRONG_VERSION)
    reject(columns.rtt_state == MISSING, Reject.MISSING_RTT)
    good_rtt = (columns.rtt == NO_REPLY) | ((columns.rtt >= 0) & (columns.rtt <= MAX_RTT_MS))  # False for NaN
    reject((columns.rtt_state == BAD) | ~good_rtt, Reject.BAD_RTT)
    out_of_range = (
        (columns.msm_id < UNKNOWN)
        | (columns.probe_id < UNKNOWN)
        | (columns.size < UNKNOWN)
        | (columns.size > MAX_SIZE)
        | (columns.packet_error_count < UNKNOWN)
        | (columns.packet_error_count > MAX_PACKET_ERRORS)
    )
    reject(columns.fields_bad | out_of_range, Reject.BAD_FIELD)
    return verdict
