"""Conversion of RIPE Atlas ping results of all firmware versions from 0 to 5080 to columns.

Results in the usual form, which are nearly all, are read by the fast kernel (plain_results.py); the others
are parsed here by orjson, one Python object per result. Both produce columns, on which the meaning of the
fields is decided once. docs/ingest.md describes the conversion of each field. Traceroutes are returned as
parsed.
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

#: Largest number of lost packets of a result that lists none; more than this is not plausible.
_MAX_UNLISTED = 10_000

#: Larger times, in seconds, are clipped to this: it breaks the rules, and fits in an int64 of microseconds.
_MAX_SECONDS = 10**11


@dataclass
class Summary:
    """Statistics of the packets of each result in a block."""

    sent: np.ndarray  # int64, UNKNOWN if neither stated nor listed
    received: np.ndarray
    avg: np.ndarray  # float64, NO_REPLY if all packets were lost
    min: np.ndarray
    max: np.ndarray
    state: np.ndarray  # GIVEN; MISSING: nothing was sent, or nothing is known; BAD: impossible values
    counts_bad: np.ndarray  # bool: `sent` or `rcvd` is not a count
    packets: Packets


@dataclass
class AtlasBlock:
    """A block of results: columns with a row per result, and the parsed traceroutes among them, by row."""

    columns: ParsedRecords
    traceroutes: dict[int, dict[str, Any]]


def read_block(block: Block, options: IngestOptions) -> AtlasBlock:
    """Convert a block of JSON texts, one result each, to columns. Their content never raises an error."""
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
    # Results that were not taken have no packets, so leaving them out does not change the others' offsets.
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
    """Like `read_block`, with orjson, for results of any form and for text that is not a result."""
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
    # Records that are not results have no fields to read; skipping them halves the time of an invalid file.
    others = np.flatnonzero(verdict != ACCEPTED)
    parts = [(others, _no_results(verdict[others], options))]
    if len(good):
        chosen = [results[index] for index in good.tolist()]
        parts.append((good, _careful_columns(chosen, verdict[good], options)))
    return AtlasBlock(merge(len(records), parts), traceroutes)


def _no_results(verdict: np.ndarray, options: IngestOptions) -> ParsedRecords:
    """Columns for records that are not JSON objects."""
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
    """Whether a result is a traceroute. Firmware 1 wrote no type, only the printed output of the command."""
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
            # A type that is not text is an invalid field, not another kind of result.
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
    """Parse JSON texts to objects, {} where a text is not an object, and verdicts with the reason."""
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
    """Turn Python's garbage collector off: it runs after every few hundred new objects; JSON has no cycles.

    With traceroutes, of about 35 objects each, collection took four times as long as parsing.
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
    """The values, or those of `other_key` where they are absent."""
    return [
        result.get(other_key) if value is None or value == "" else value
        for value, result in zip(values, results, strict=True)
    ]


def choose_sources(
    own: np.ndarray, own_state: np.ndarray, seen: np.ndarray, seen_state: np.ndarray, choice: str
) -> tuple[np.ndarray, np.ndarray]:
    """The source of each result: for `auto`, the probe's own address if public, else that seen outside."""
    if choice == "from":
        return seen, seen_state
    if choice == "src_addr":
        return own, own_state
    public = (own_state == GIVEN) & addresses.is_public(own)
    return np.where(public[:, None], own, seen), np.where(public, GIVEN, seen_state)


def summarize(
    results: list[dict[str, Any]], lists: Sequence[Any], sents: Sequence[Any], rcvds: Sequence[Any]
) -> Summary:
    """Summarise the packets of each result; where none are listed, use the result's own avg, min and max."""
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
    """The summary of listed packets, with `sent` and `received` as stated, else as counted."""
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
    """The avg, min and max stated by a result without listed packets, and their state."""
    nothing = [NO_REPLY] * 3
    if not result:
        return nothing, MISSING
    if received == 0 or result.get("result"):
        # There is no reply, or only errors are listed: a loss if anything was sent at all.
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
    """Replace the RTT of each result by those of its packets (`--rtt each`)."""
    unlisted = (summary.packets.replies + summary.packets.lost == 0) & (columns.rtt_state == GIVEN)
    lost = unlisted & (columns.rtt == NO_REPLY)
    single = unlisted & ~lost & (summary.sent == 1) & (summary.received == 1)
    columns.fields_bad |= lost & (summary.sent > _MAX_UNLISTED)
    rows = np.where(lost, np.clip(summary.sent, 1, _MAX_UNLISTED), single.astype(np.int64))
    # A result that states only the mean of several replies cannot be split into packets.
    columns.rtt_state = np.where(unlisted & ~lost & ~single, MISSING, columns.rtt_state)
    columns.packets, columns.packet_offsets = packet_rows(summary.packets, rows)
    columns.packets[columns.packet_offsets[:-1][single]] = columns.rtt[single]
