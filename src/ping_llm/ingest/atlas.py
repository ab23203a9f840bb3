"""RIPE Atlas ping results, as every firmware from 0 to 5080 wrote them → columns.

Python touches each result only to take its values out (2 µs, with orjson's parsing at 2.6 µs); everything
else is done on whole columns. docs/ingest.md says what each field becomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from ping_llm import addresses
from ping_llm.ingest.columns import ACCEPTED, BAD, GIVEN, MISSING, NOT_PING, UNKNOWN, VERDICT, Columns
from ping_llm.ingest.options import MAX_DEPTH, IngestOptions
from ping_llm.ingest.packets import Packets, packet_rows, read_packets
from ping_llm.ingest.scan import depth
from ping_llm.ingest.values import floats, integers, microseconds, packed_addresses
from ping_llm.schema import NO_REPLY, Reject

# In every result since firmware 4570 (2013): taken at once. A block with an older one takes them singly.
_KEYS = (
    "type", "timestamp", "from", "src_addr", "dst_addr", "af",
    "result", "sent", "rcvd", "msm_id", "size", "prb_id",
)  # fmt: skip
_take = itemgetter(*_KEYS)

#: A result that lists no packets but claims to have lost more than this is lying.
_MAX_UNLISTED = 10_000


@dataclass
class Summary:
    """What the packets of each result of a block add up to."""

    sent: np.ndarray  # int64, UNKNOWN if neither stated nor listed
    received: np.ndarray
    avg: np.ndarray  # float64, NO_REPLY for a total loss
    min: np.ndarray
    max: np.ndarray
    state: np.ndarray  # GIVEN; MISSING: nothing was sent, or nothing is known; BAD: impossible values
    counts_bad: np.ndarray  # bool: `sent` or `rcvd` is not a count
    packets: Packets


def read_block(records: Sequence[bytes], options: IngestOptions) -> Columns:
    """Parse a block of JSON texts, one result each, into columns. Never raises for what is in them."""
    results, verdict = parse(records)
    kind, timestamp, origin, src_addr, dst_addr, af, lists, sent, rcvd, msm, sizes, probes = _fields(results)
    for index, value in enumerate(kind):
        if value != "ping" and value is not None and verdict[index] == ACCEPTED:
            # A type that is not even text is rubbish rather than another kind of result.
            verdict[index] = NOT_PING if type(value) is str else VERDICT[Reject.BAD_FIELD]
    time_us, time_state = microseconds(timestamp)
    src, src_state = _sources(results, src_addr, origin, options.source)
    dst, dst_state = packed_addresses(_or_else(results, dst_addr, "addr"))
    version, version_bad = integers(af)
    version[version_bad] = 0
    summary = summarize(results, lists, sent, rcvd)
    msm_id, msm_bad = integers(msm)
    size, size_bad = integers(sizes)
    probe_id, probe_bad = integers(probes)
    errors = np.where((summary.sent >= 0) & (summary.received >= 0), summary.sent - summary.received, UNKNOWN)
    more_received_than_sent = (summary.received > summary.sent) & (summary.sent >= 0)
    columns = Columns(
        verdict=verdict,
        time_us=time_us, time_state=time_state,
        src=src, src_state=src_state, dst=dst, dst_state=dst_state, ip_version=version,
        rtt=summary.avg, rtt_state=summary.state,
        msm_id=msm_id, size=size, packet_error_count=errors, probe_id=probe_id,
        fields_bad=msm_bad | size_bad | probe_bad | summary.counts_bad | more_received_than_sent,
    )  # fmt: skip
    if options.rtt == "min":
        columns.rtt = summary.min
    elif options.rtt == "max":
        columns.rtt = summary.max
    elif options.rtt == "each":
        _one_row_a_packet(columns, summary)
    return columns


def parse(records: Sequence[bytes]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Objects, {} where a text is not one, and verdicts that say why."""
    verdict = np.full(len(records), ACCEPTED, np.uint8)
    loads = orjson.loads
    try:
        results = [loads(record) for record in records]
    except ValueError:
        results = []
        for index, record in enumerate(records):
            try:
                results.append(loads(record))
            except ValueError:
                results.append({})
                too_deep = depth(record) > MAX_DEPTH
                verdict[index] = VERDICT[Reject.TOO_DEEP if too_deep else Reject.UNPARSABLE]
    if set(map(type, results)) - {dict}:
        for index, result in enumerate(results):
            if type(result) is not dict:
                results[index] = {}
                verdict[index] = VERDICT[Reject.NOT_AN_OBJECT]
    return results, verdict


def _fields(results: list[dict[str, Any]]) -> list[Sequence[Any]]:
    try:
        return list(zip(*map(_take, results), strict=True)) or [()] * len(_KEYS)
    except KeyError:
        return [[result.get(key) for result in results] for key in _KEYS]


def _or_else(results: list[dict[str, Any]], values: Sequence[Any], other_key: str) -> Sequence[Any]:
    """Values, with other_key's where they are absent."""
    if None not in values and "" not in values:
        return values
    return [value or result.get(other_key) for value, result in zip(values, results, strict=True)]


def _sources(
    results: list[dict[str, Any]], src_addr: Sequence[Any], origin: Sequence[Any], choice: str
) -> tuple[np.ndarray, np.ndarray]:
    if choice == "from":
        return packed_addresses(origin)
    own, own_state = packed_addresses(_or_else(results, src_addr, "srcaddr"))
    if choice == "src_addr":
        return own, own_state
    seen, seen_state = packed_addresses(origin)
    public = (own_state == GIVEN) & addresses.is_public(own)
    return np.where(public[:, None], own, seen), np.where(public, GIVEN, seen_state)


def summarize(
    results: list[dict[str, Any]],
    lists: Sequence[Any],
    sents: Sequence[Any],
    rcvds: Sequence[Any],
) -> Summary:
    """Add up the packets of each result; where none are listed, believe the result's own avg, min and max."""
    packets = read_packets(lists)
    sent, sent_bad = integers(sents)
    received, received_bad = integers(rcvds)
    answered = packets.replies > 0
    listed = answered | (packets.lost > 0)
    sent = np.where((sent == UNKNOWN) & listed, packets.replies + packets.lost, sent)
    received = np.where((received == UNKNOWN) & listed, packets.replies, received)
    state = np.full(len(results), GIVEN)
    columns = [packets.mean, packets.least, packets.most]
    silent = ~answered
    if silent.any():
        for column in columns:
            column[silent] = NO_REPLY
        for index in np.flatnonzero(silent & (packets.lost == 0)):
            values, state[index] = _stated(results[index], int(sent[index]), int(received[index]))
            for column, value in zip(columns, values, strict=True):
                column[index] = value
    state[packets.bad] = BAD
    counts_bad = sent_bad | received_bad | (sent < UNKNOWN) | (received < UNKNOWN)
    return Summary(sent, received, packets.mean, packets.least, packets.most, state, counts_bad, packets)


def _stated(result: dict[str, Any], sent: int, received: int) -> tuple[list[float], np.uint8]:
    """avg, min and max that a result without listed packets states of itself."""
    nothing = [NO_REPLY] * 3
    if received == 0 or result.get("result"):
        # Only errors are listed, or no reply came: a loss if anything was sent at all.
        return nothing, GIVEN if sent > 0 else MISSING
    numbers, states = floats([result.get("avg"), result.get("min"), result.get("max")])
    if states[0] != GIVEN:
        return nothing, states[0]
    if numbers[0] == NO_REPLY:
        return nothing, BAD if received > 0 else GIVEN
    if (states == BAD).any():
        return nothing, BAD
    return [float(numbers[0] if np.isnan(number) else number) for number in numbers], GIVEN


def _one_row_a_packet(columns: Columns, summary: Summary) -> None:
    """Replace the result's RTT by its packets' (`--rtt each`)."""
    unlisted = (summary.packets.replies + summary.packets.lost == 0) & (columns.rtt_state == GIVEN)
    lost = unlisted & (columns.rtt == NO_REPLY)
    single = unlisted & ~lost & (summary.sent == 1) & (summary.received == 1)
    columns.fields_bad |= lost & (summary.sent > _MAX_UNLISTED)
    rows = np.where(lost, np.clip(summary.sent, 1, _MAX_UNLISTED), single.astype(np.int64))
    # A result that states only the mean of several replies cannot be taken apart.
    columns.rtt_state = np.where(unlisted & ~lost & ~single, MISSING, columns.rtt_state)
    columns.packets, columns.packet_offsets = packet_rows(summary.packets, rows)
    columns.packets[columns.packet_offsets[:-1][single]] = columns.rtt[single]
