"""RIPE Atlas ping results, as every firmware from 0 to 5080 wrote them → columns. Traceroutes are passed on.

The plain ones, nearly all, take the quick way (plain_results.py); the others are parsed by orjson here, one
Python object each. What a field means is decided once, on columns, for both. docs/ingest.md says what
each becomes.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from ping_llm.ingest.columns import (
    NOT_PING,
    TRACEROUTE,
    Packets,
    ParsedRecords,
    add_up,
    floats,
    integers,
    merge,
    microseconds,
    packed_addresses,
    packet_rows,
    read_packets,
)
from ping_llm.ingest.options import MAX_DEPTH, IngestOptions
from ping_llm.ingest.plain_results import (
    MSM_ID,
    PROBE_ID,
    RECEIVED,
    SENT,
    SIZE,
    TIMESTAMP,
    VERSION,
    QuickResults,
    read_quickly,
)
from ping_llm.ingest.records import Block
from ping_llm.ingest.scan import depth
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import ACCEPTED, BAD, GIVEN, MISSING, UNKNOWN, VERDICT
from ping_llm.measurements.schema import NO_REPLY, PING, Reject

_KEYS = (
    "type", "timestamp", "from", "src_addr", "dst_addr", "af",
    "result", "sent", "rcvd", "msm_id", "size", "prb_id",
)  # fmt: skip
_take = itemgetter(*_KEYS)

#: A result that lists no packets but claims to have lost more than this is lying.
_MAX_UNLISTED = 10_000

#: Seconds beyond this are clipped to it; they are far outside the rules, and inside an int64 of microseconds.
_MAX_SECONDS = 10**11


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


@dataclass
class AtlasBlock:
    """A block of results: a row of columns each, and the traceroutes among them, by place, as parsed."""

    columns: ParsedRecords
    traceroutes: dict[int, dict[str, Any]]


def read_block(block: Block, options: IngestOptions) -> AtlasBlock:
    """Columns of a block of JSON texts, one result each. Never raises for what is in them."""
    quick = read_quickly(block.array, block.starts, block.ends)
    places = np.flatnonzero(quick.taken)
    if len(places) == len(block):
        return AtlasBlock(_quick_columns(quick, places, options), {})
    others = np.flatnonzero(~quick.taken)
    careful = read_carefully([block.text(index) for index in others.tolist()], options)
    traceroutes = {int(others[index]): result for index, result in careful.traceroutes.items()}
    columns = careful.columns
    if len(places):
        columns = merge(len(block), [(places, _quick_columns(quick, places, options)), (others, columns)])
    return AtlasBlock(columns, traceroutes)


def _quick_columns(quick: QuickResults, places: np.ndarray, options: IngestOptions) -> ParsedRecords:
    packed, valid, empty = quick.addresses[places], quick.address_valid[places], quick.address_empty[places]
    states = np.where(valid, GIVEN, np.where(empty, MISSING, BAD))
    numbers = quick.integers[places]
    # Results that were not taken have no packets: without them, the offsets of the others are the same.
    offsets = np.append(quick.offsets[:-1][places], quick.offsets[-1])
    packets = add_up(offsets, quick.kinds, quick.rtts, np.zeros(len(places), bool))
    summary = _listed(packets, numbers[:, SENT], numbers[:, RECEIVED])
    src, src_state = choose_sources(packed[:, 1], states[:, 1], packed[:, 0], states[:, 0], options.source)
    seconds = np.clip(numbers[:, TIMESTAMP], -_MAX_SECONDS, _MAX_SECONDS)
    return _columns(
        np.full(len(places), ACCEPTED, np.uint8),
        (seconds * 1_000_000, np.full(len(places), GIVEN)),
        (src, src_state),
        (packed[:, 2], states[:, 2]),
        numbers[:, VERSION],
        summary,
        (numbers[:, MSM_ID], numbers[:, SIZE], numbers[:, PROBE_ID]),
        np.zeros(len(places), bool),
        options,
    )


def read_carefully(records: Sequence[bytes], options: IngestOptions) -> AtlasBlock:
    """The same, for results of any shape, and for what is no result at all."""
    results, verdict = parse(records)
    traceroutes: dict[int, dict[str, Any]] = {}
    if options.with_traceroutes:
        traceroutes = {index: result for index, result in enumerate(results) if is_traceroute(result)}
        for index in traceroutes:
            results[index] = {}
            verdict[index] = TRACEROUTE
    good = np.flatnonzero(verdict == ACCEPTED)
    if len(good) == len(records):
        return AtlasBlock(_careful_columns(results, verdict, options), traceroutes)
    # What is no result has no fields to look for: a file of rubbish takes half the time.
    others = np.flatnonzero(verdict != ACCEPTED)
    parts = [(others, _no_results(verdict[others], options))]
    if len(good):
        chosen = [results[index] for index in good.tolist()]
        parts.append((good, _careful_columns(chosen, verdict[good], options)))
    return AtlasBlock(merge(len(records), parts), traceroutes)


def _no_results(verdict: np.ndarray, options: IngestOptions) -> ParsedRecords:
    """Columns of what is not even an object."""
    one = _careful_columns([{}], np.zeros(1, np.uint8), options)
    columns = ParsedRecords(
        **{
            field.name: np.repeat(getattr(one, field.name), len(verdict), axis=0)
            for field in fields(ParsedRecords)
            if field.name not in ("verdict", "throughput_mbps", "packets", "packet_offsets")
        },
        verdict=verdict,
    )
    if one.packets is not None:
        columns.packets, columns.packet_offsets = one.packets, np.zeros(len(verdict) + 1, np.int64)
    return columns


def is_traceroute(result: dict[str, Any]) -> bool:
    """Is it one? Firmware 1 did not say so, and reported what the command printed."""
    kind = result.get("type")
    if kind is not None:
        return kind == "traceroute"
    printed = result.get("result")
    return type(printed) is str and printed.startswith("traceroute to ")


def _careful_columns(
    results: list[dict[str, Any]], verdict: np.ndarray, options: IngestOptions
) -> ParsedRecords:
    kind, timestamp, origin, src_addr, dst_addr, af, lists, sent, rcvd, msm, sizes, probes = _fields(results)
    for index, value in enumerate(kind):
        if value != "ping" and value is not None and verdict[index] == ACCEPTED:
            # A type that is not even text is rubbish rather than another kind of result.
            verdict[index] = NOT_PING if type(value) is str else VERDICT[Reject.BAD_FIELD]
    version, version_bad = integers(af)
    version[version_bad] = 0
    msm_id, msm_bad = integers(msm)
    size, size_bad = integers(sizes)
    probe_id, probe_bad = integers(probes)
    own = packed_addresses(or_else(results, src_addr, "srcaddr"))
    return _columns(
        verdict,
        microseconds(timestamp),
        choose_sources(*own, *packed_addresses(origin), options.source),
        packed_addresses(or_else(results, dst_addr, "addr")),
        version,
        summarize(results, lists, sent, rcvd),
        (msm_id, size, probe_id),
        msm_bad | size_bad | probe_bad,
        options,
    )


def _columns(
    verdict: np.ndarray,
    time: tuple[np.ndarray, np.ndarray],
    src: tuple[np.ndarray, np.ndarray],
    dst: tuple[np.ndarray, np.ndarray],
    version: np.ndarray,
    summary: Summary,
    identifiers: tuple[np.ndarray, np.ndarray, np.ndarray],
    fields_bad: np.ndarray,
    options: IngestOptions,
) -> ParsedRecords:
    known = (summary.sent >= 0) & (summary.received >= 0)
    more_received_than_sent = known & (summary.received > summary.sent)
    columns = ParsedRecords(
        verdict,
        *time,
        *src,
        *dst,
        version,
        {"min": summary.min, "max": summary.max}.get(options.rtt, summary.avg),
        summary.state,
        msm_id=identifiers[0],
        size=identifiers[1],
        packet_error_count=np.where(known, summary.sent - summary.received, UNKNOWN),
        probe_id=identifiers[2],
        fields_bad=fields_bad | summary.counts_bad | more_received_than_sent,
        kind=np.full(len(verdict), PING, np.uint8),
    )
    if options.rtt == "each":
        _one_row_a_packet(columns, summary)
    return columns


def parse(records: Sequence[bytes]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Objects, {} where a text is not one, and verdicts that say why."""
    verdict = np.full(len(records), ACCEPTED, np.uint8)
    results: list[dict[str, Any]] = []
    with _no_collection():
        for index, record in enumerate(records):
            try:
                result = orjson.loads(record)
            except ValueError:
                result = {}
                too_deep = depth(record) > MAX_DEPTH
                verdict[index] = VERDICT[Reject.TOO_DEEP if too_deep else Reject.UNPARSABLE]
            if type(result) is not dict:
                result = {}
                verdict[index] = VERDICT[Reject.NOT_AN_OBJECT]
            results.append(result)
    return results, verdict


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python looks for cycles after every few hundred new objects; JSON has none.

    On traceroutes, some 35 objects each, that took four times as long as parsing them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _fields(results: list[dict[str, Any]]) -> list[Sequence[Any]]:
    try:
        return list(zip(*map(_take, results), strict=True)) or [()] * len(_KEYS)
    except KeyError:
        return [[result.get(key) for result in results] for key in _KEYS]


def or_else(results: list[dict[str, Any]], values: Sequence[Any], other_key: str) -> Sequence[Any]:
    """Values, with other_key's where they are absent."""
    return [
        result.get(other_key) if value is None or value == "" else value
        for value, result in zip(values, results, strict=True)
    ]


def choose_sources(
    own: np.ndarray, own_state: np.ndarray, seen: np.ndarray, seen_state: np.ndarray, choice: str
) -> tuple[np.ndarray, np.ndarray]:
    """The source of each result: its own idea of its address if public, else what the Internet saw."""
    if choice == "from":
        return seen, seen_state
    if choice == "src_addr":
        return own, own_state
    public = (own_state == GIVEN) & addresses.is_public(own)
    return np.where(public[:, None], own, seen), np.where(public, GIVEN, seen_state)


def summarize(
    results: list[dict[str, Any]], lists: Sequence[Any], sents: Sequence[Any], rcvds: Sequence[Any]
) -> Summary:
    """Add up the packets of each result; where none are listed, believe the result's own avg, min and max."""
    sent, sent_bad = integers(sents)
    received, received_bad = integers(rcvds)
    summary = _listed(read_packets(lists), sent, received)
    summary.counts_bad |= sent_bad | received_bad
    packets = summary.packets
    for index in np.flatnonzero((packets.replies == 0) & (packets.lost == 0)).tolist():
        values, state = _stated(results[index], int(sent[index]), int(received[index]))
        summary.avg[index], summary.min[index], summary.max[index] = values
        if not packets.bad[index]:
            summary.state[index] = state
    return summary


def _listed(packets: Packets, sent: np.ndarray, received: np.ndarray) -> Summary:
    """What listed packets add up to, with `sent` and `received` as stated where they are."""
    silent = packets.replies == 0
    for column in (packets.mean, packets.least, packets.most):
        column[silent] = NO_REPLY
    counted = packets.replies + packets.lost
    listed = counted > 0
    sent = np.where((sent == UNKNOWN) & listed, counted, sent)
    received = np.where((received == UNKNOWN) & listed, packets.replies, received)
    return Summary(
        sent, received, packets.mean, packets.least, packets.most,
        state=np.where(packets.bad, BAD, GIVEN),
        counts_bad=(sent < UNKNOWN) | (received < UNKNOWN),
        packets=packets,
    )  # fmt: skip


def _stated(result: dict[str, Any], sent: int, received: int) -> tuple[list[float], np.uint8]:
    """avg, min and max that a result without listed packets states of itself."""
    nothing = [NO_REPLY] * 3
    if not result:
        return nothing, MISSING
    if received == 0 or result.get("result"):
        # No reply came, or only errors are listed: a loss if anything was sent at all.
        return nothing, GIVEN if sent > 0 else MISSING
    numbers, states = floats([result.get("avg"), result.get("min"), result.get("max")])
    if states[0] != GIVEN:
        return nothing, states[0]
    if numbers[0] == NO_REPLY:
        return nothing, BAD if received > 0 else GIVEN
    if (states == BAD).any():
        return nothing, BAD
    return [float(numbers[0] if np.isnan(number) else number) for number in numbers], GIVEN


def _one_row_a_packet(columns: ParsedRecords, summary: Summary) -> None:
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
