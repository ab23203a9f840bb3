"""The rules of a measurement: which rows of a block are measurements, and why the others are not.

All readers of measurements fill `Candidates` and call `judge`. Three modules repeat the rules, for speed or
as a reference: `rows/sortable` (one pass, compiled), `rows/verify` (on packed words) and `rows/reference`
(plain Python). tests/measurements/test_measurements_rules.py tests that all of them agree with `judge`.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ping_llm.measurements import addresses
from ping_llm.measurements.schema import (
    END_TIME_US,
    KINDS,
    MAX_PACKET_ERRORS,
    MAX_RTT_MS,
    MAX_SIZE,
    MAX_THROUGHPUT_MBPS,
    MIN_TIME_US,
    PING,
    THROUGHPUT,
    Reject,
    is_rtt,
)

REASONS = tuple(Reject)

#: Verdicts: 0 is a measurement, k > 0 is a rejection for REASONS[k - 1].
ACCEPTED = 0
VERDICT = {reason: code for code, reason in enumerate(REASONS, 1)}

#: The rules in the order in which they are checked; the reason of a row is the first rule that it breaks. The
#: reasons before MISSING_TIME are for text that cannot be parsed at all; TOO_FAST needs a table of places,
#: which only `ingest` may have.
RULES = REASONS[REASONS.index(Reject.MISSING_TIME) : REASONS.index(Reject.TOO_FAST)]

#: State of a value: of the expected form, absent, or something else.
GIVEN, MISSING, BAD = np.uint8(0), np.uint8(1), np.uint8(2)

#: Value of an unknown ip_version, msm_id, size, packet_error_count, probe_id or throughput.
UNKNOWN = -1

_NUMBERS = ("msm_id", "size", "packet_error_count", "probe_id")


@dataclass
class Candidates:
    """A block of rows to judge, as columns. The `*_state` arrays hold GIVEN, MISSING or BAD."""

    verdict: np.ndarray  # uint8; not ACCEPTED where the reader has already rejected the row
    time_us: np.ndarray  # int64
    time_state: np.ndarray
    src: np.ndarray  # uint8 [n, 16]
    src_state: np.ndarray
    dst: np.ndarray
    dst_state: np.ndarray
    ip_version: np.ndarray  # int64: 4, 6 or UNKNOWN; anything else is wrong
    rtt: np.ndarray  # float64
    rtt_state: np.ndarray
    msm_id: np.ndarray  # int64
    size: np.ndarray
    packet_error_count: np.ndarray
    probe_id: np.ndarray
    fields_bad: np.ndarray  # bool: one of the four above is not an integer, or the throughput not a number
    throughput_mbps: np.ndarray | None = field(default=None, kw_only=True)  # float64; None: unknown

    def __len__(self) -> int:
        return len(self.verdict)


def judge(candidates: Candidates) -> np.ndarray:
    """Fill in and return the verdicts. The reason is the first rule that a row breaks."""
    verdict = candidates.verdict

    def reject(mask: np.ndarray, reason: Reject) -> None:
        verdict[mask & (verdict == ACCEPTED)] = VERDICT[reason]

    outside = (candidates.time_us < MIN_TIME_US) | (candidates.time_us >= END_TIME_US)
    reject(candidates.time_state == MISSING, Reject.MISSING_TIME)
    reject((candidates.time_state == BAD) | outside, Reject.BAD_TIME)
    reject(candidates.src_state == MISSING, Reject.MISSING_SOURCE)
    reject(candidates.src_state == BAD, Reject.BAD_SOURCE)
    reject(candidates.dst_state == MISSING, Reject.MISSING_DESTINATION)
    reject(candidates.dst_state == BAD, Reject.BAD_DESTINATION)
    src_is_ipv4 = addresses.is_ipv4(candidates.src)
    reject(src_is_ipv4 != addresses.is_ipv4(candidates.dst), Reject.MIXED_VERSIONS)
    wrong = (candidates.ip_version != np.where(src_is_ipv4, 4, 6)) & (candidates.ip_version != UNKNOWN)
    reject(wrong, Reject.WRONG_VERSION)
    reject(candidates.rtt_state == MISSING, Reject.MISSING_RTT)
    reject((candidates.rtt_state == BAD) | ~is_rtt(candidates.rtt), Reject.BAD_RTT)
    out_of_range = (
        (candidates.msm_id < UNKNOWN)
        | (candidates.probe_id < UNKNOWN)
        | (candidates.size < UNKNOWN)
        | (candidates.size > MAX_SIZE)
        | (candidates.packet_error_count < UNKNOWN)
        | (candidates.packet_error_count > MAX_PACKET_ERRORS)
    )
    reject(candidates.fields_bad | out_of_range, Reject.BAD_FIELD)
    mbps = candidates.throughput_mbps
    if mbps is not None:
        reject(~((mbps == UNKNOWN) | ((mbps >= 0) & (mbps <= MAX_THROUGHPUT_MBPS))), Reject.BAD_FIELD)
    return verdict


def candidates_of(table: pa.Table | pa.RecordBatch) -> Candidates:
    """Convert an Arrow table with the columns of a measurement to candidates.

    event_time is a timestamp of any unit, or an integer of µs. Optional columns may be absent.
    """
    count = table.num_rows
    src, src_state = _addresses(_array(table, "src_addr"))
    dst, dst_state = _addresses(_array(table, "dst_addr"))
    time, time_state = _times(_array(table, "event_time"))
    rtt = _array(table, "rtt").cast(pa.float64())
    fields_bad = np.zeros(count, bool)
    numbers = {name: _numbers(table, name, fields_bad) for name in _NUMBERS}
    version_bad = np.zeros(count, bool)
    version = _numbers(table, "ip_version", version_bad)
    version[version_bad] = 0
    return Candidates(
        np.full(count, ACCEPTED, np.uint8),
        time, time_state, src, src_state, dst, dst_state, version,
        pc.fill_null(rtt, np.nan).to_numpy(zero_copy_only=False),
        np.where(np.asarray(rtt.is_null()), MISSING, GIVEN),
        **numbers,
        fields_bad=fields_bad,
        throughput_mbps=_throughputs(table),
    )  # fmt: skip


_WRONG_RTT = f"must be -1 (no reply) or 0 to {MAX_RTT_MS:,.0f} ms"

#: Largest value of each further column.
_LARGEST = {
    "msm_id": 2**63 - 1,
    "probe_id": 2**63 - 1,
    "size": MAX_SIZE,
    "packet_error_count": MAX_PACKET_ERRORS,
    THROUGHPUT: MAX_THROUGHPUT_MBPS,
}

#: The column that each reason is about, and what is wrong with its value.
_WRONG = {
    Reject.MISSING_TIME: ("event_time", "is not a time"),
    Reject.BAD_TIME: ("event_time", "is not a time from 1970 to 2099"),
    Reject.MISSING_SOURCE: ("src_addr", "is not an address"),
    Reject.BAD_SOURCE: ("src_addr", "is not an address"),
    Reject.MISSING_DESTINATION: ("dst_addr", "is not an address"),
    Reject.BAD_DESTINATION: ("dst_addr", "is not an address"),
    Reject.MIXED_VERSIONS: ("dst_addr", "is of another IP version than src_addr"),
    Reject.WRONG_VERSION: ("ip_version", "is not the version of the addresses"),
    Reject.MISSING_RTT: ("rtt", _WRONG_RTT),
    Reject.BAD_RTT: ("rtt", _WRONG_RTT),
}


def complaint(table: pa.Table | pa.RecordBatch, row: int, verdict: int) -> str:
    """The error text for a rejected row, such as "rtt -2.0 must be -1 (no reply) or 0 to 3,600,000 ms"."""
    reason = REASONS[verdict - 1]
    if reason in _WRONG:
        name, wrong = _WRONG[reason]
        return f"{name} {_shown(table[name][row])} {wrong}"
    for name, largest in _LARGEST.items():
        value = table[name][row].as_py() if name in table.schema.names else None
        if value is not None and value != UNKNOWN and not 0 <= value <= largest:
            return f"{name} {value} must be from 0 to {int(largest):,}, or -1 or null if unknown"
    return "a further column is out of range"


def _shown(value: pa.Scalar) -> str:
    try:
        return str(value)
    except (OverflowError, ValueError):  # a time that Python's datetime cannot hold
        return str(value.value)


def kind_codes(names: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Convert the column `kind` to codes, uint8 [n]: null is a ping, an invalid name is len(KINDS)."""
    if pa.types.is_null(names.type):
        return np.full(len(names), PING, np.uint8)
    texts = pc.fill_null(names.cast(pa.string()), KINDS[PING])
    codes = pc.fill_null(pc.index_in(texts, pa.array(KINDS)), len(KINDS))
    return np.asarray(codes).astype(np.uint8)


def _array(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table[name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _addresses(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    # A block has far fewer distinct addresses than rows, so each is parsed once.
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()
    packed, valid = addresses.pack(texts)
    if valid.all():
        return packed, np.full(len(packed), GIVEN)
    absent = np.asarray(pc.fill_null(pc.equal(pc.utf8_length(texts.cast(pa.string())), 0), True))
    return packed, np.where(valid, GIVEN, np.where(absent, MISSING, BAD))


def _times(times: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    state = np.where(np.asarray(times.is_null()), MISSING, GIVEN)
    unit = times.type.unit if pa.types.is_timestamp(times.type) else "us"
    values = np.asarray(pc.fill_null(times.cast(pa.int64()), 0))
    if unit == "ns":
        return values // 1_000, state
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    # A time too large for µs in an int64 becomes a negative one, which breaks the rule as well.
    fits = np.abs(values) <= (2**63 - 1) // scale
    return np.where(fits, values, -1) * scale, state


def _numbers(table: pa.Table | pa.RecordBatch, name: str, bad: np.ndarray) -> np.ndarray:
    """An integer column, int64 [n], UNKNOWN where null or absent; sets `bad` where it exceeds int64."""
    if name not in table.schema.names or pa.types.is_null(table[name].type):
        return np.full(table.num_rows, UNKNOWN, np.int64)
    array = _array(table, name)
    if array.type == pa.uint64():
        large = np.asarray(pc.fill_null(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())), False))
        bad |= large
        array = pc.if_else(pa.array(large), pa.scalar(0, pa.uint64()), array)
    return np.asarray(pc.fill_null(array.cast(pa.int64()), UNKNOWN)).copy()


def _throughputs(table: pa.Table | pa.RecordBatch) -> np.ndarray | None:
    """The throughput column, float64 [n], UNKNOWN where null or NaN; None if there is no such column."""
    if THROUGHPUT not in table.schema.names or pa.types.is_null(table[THROUGHPUT].type):
        return None
    numbers = np.asarray(pc.fill_null(_array(table, THROUGHPUT).cast(pa.float64()), UNKNOWN))
    return np.where(np.isnan(numbers), UNKNOWN, numbers)
