"""A measurement as nine unsigned words of 8 bytes, in the sort order of rows.

The words are source (2), time, destination (2), rtt, msm_id, probe_id, and one word for size with kind and
throughput, and packet_error_count. Each value is mapped so that unsigned order is the order of the values; -1
(unknown, no reply) comes first. So sorting does not need to know the columns, the order is total without
tie-breaks, and only 72 bytes per measurement are moved.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ping_llm.compiled import kernel
from ping_llm.hashing import GOLDEN, mix_int, mix_one
from ping_llm.measurements.address_kernels import is_ipv4_words, pack_texts
from ping_llm.measurements.rules import RULES
from ping_llm.measurements.schema import (
    END_TIME_US,
    LAST,
    MAX_PACKET_ERRORS,
    MAX_RTT_MS,
    MAX_SIZE,
    MAX_THROUGHPUT_MBPS,
    NO_REPLY,
    PING,
    THROUGHPUT,
)
from ping_llm.measurements.throughput import UNKNOWN_THROUGHPUT
from ping_llm.measurements.throughput_kernels import throughput_code
from ping_llm.rows.block import KIND_BITS, THROUGHPUT_BITS

WORDS = 9
SRC_HIGH, SRC_LOW, TIME, DST_HIGH, DST_LOW, RTT, MSM_ID, PROBE_ID, SIZE_ERRORS = range(WORDS)

# Values in place of null. Both break a rule, so that a valid value is never taken for a missing one.
_NO_TIME = -(2**63)
_NO_RTT = -1.7976931348623157e308
# Status of an address text.
BAD, GOOD, MISSING = range(3)
_SEEN_BITS = 17
_SEEN = 1 << _SEEN_BITS
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class Sortable:
    """The valid measurements of a batch, and the number of rows that broke each rule."""

    words: np.ndarray  # uint64 [n, 9]
    rejected: np.ndarray  # int64 [len(RULES)]


def from_batch(batch: pa.RecordBatch, scratch: np.ndarray | None = None) -> Sortable:
    """Validate a batch with the columns of `inputs.select` and convert it to words.

    The words are stored in `scratch` if it is given and large enough: new memory costs as much as filling it.
    """
    sources, sources_status = packed_words(batch.column("src_addr"))
    destinations, destinations_status = packed_words(batch.column("dst_addr"))
    if scratch is None or len(scratch) < batch.num_rows:
        scratch = np.empty((batch.num_rows, WORDS), np.uint64)
    words = scratch[: batch.num_rows]
    rejected = np.zeros(len(RULES), np.int64)
    kept = _fill(
        _filled(batch.column("event_time"), _NO_TIME),
        sources,
        sources_status,
        destinations,
        destinations_status,
        _filled(batch.column("ip_version"), -1),
        _filled(batch.column("rtt"), _NO_RTT),
        _filled(batch.column("msm_id"), -1),
        _filled(batch.column("size"), -1),
        _filled(batch.column("packet_error_count"), -1),
        _filled(batch.column("probe_id"), -1),
        _filled(batch.column("kind"), PING) if "kind" in batch.schema.names else np.full(len(batch), PING),
        _throughputs(batch),
        words,
        rejected,
    )
    return Sortable(words[:kept], rejected)


def _throughputs(batch: pa.RecordBatch) -> np.ndarray:
    """Throughputs in Mbit/s; null and NaN, which some programs write for null, are unknown."""
    if THROUGHPUT not in batch.schema.names:
        return np.full(len(batch), float(UNKNOWN_THROUGHPUT))
    mbps = _filled(batch.column(THROUGHPUT), UNKNOWN_THROUGHPUT)
    return np.where(np.isnan(mbps), float(UNKNOWN_THROUGHPUT), mbps)


def _filled(column: pa.Array, stand_in: int | float) -> np.ndarray:
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(stand_in, column.type))
    return column.to_numpy(zero_copy_only=False)


def packed_words(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Addresses as two big-endian words each, uint64 [n, 2], and the status of each (GOOD, BAD, MISSING)."""
    count = len(texts)
    words, status = np.empty((count, 2), np.uint64), np.full(count, MISSING, np.uint8)
    texts = texts.cast(pa.string())
    _, offsets, data = texts.buffers()
    if count and data is not None:
        starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
        seen = np.full(_SEEN, -1, np.int32)
        _pack_words(np.frombuffer(data, np.uint8), starts, seen, words, status)
        if texts.null_count:
            status[np.asarray(texts.is_null())] = MISSING
    return words, status


@kernel
def _eight(data, at):
    """Eight bytes as a word; this compiles to one instruction."""
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@kernel
def _pack_words(data, offsets, seen, words, status):
    """Parse each text, or copy the result of an earlier equal text.

    Addresses repeat: 80 to 99 % of a batch have occurred before. Finding one takes 25 ns, parsing 80 to 130
    ns. `seen` holds the last row for each hash.
    """
    packed = np.zeros((1, 16), np.uint8)
    valid = np.zeros(1, np.bool_)
    eight = np.uint64(8)
    for row in range(len(status)):
        start, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        size = end - start
        if size == 0:
            continue
        if eight <= size <= np.uint64(45):  # the last eight bytes may overlap those before
            hashed = size
            at = start
            while at + eight < end:
                hashed = (hashed ^ _eight(data, at)) * GOLDEN
                hashed ^= hashed >> np.uint64(32)
                at += eight
            hashed = (hashed ^ _eight(data, end - eight)) * GOLDEN
            slot = np.int64(hashed >> np.uint64(64 - _SEEN_BITS))
            other = seen[slot]
            if other >= 0 and _same_text(data, start, end, np.uint64(offsets[other]), offsets[other + 1]):
                words[row, 0] = words[other, 0]
                words[row, 1] = words[other, 1]
                status[row] = status[other]
                continue
            seen[slot] = row
        for i in range(16):
            packed[0, i] = 0
        valid[0] = False
        pack_texts(data, offsets[row : row + 2], packed, valid)
        high, low = np.uint64(0), np.uint64(0)
        for i in range(8):
            high = high << eight | np.uint64(packed[0, i])
            low = low << eight | np.uint64(packed[0, 8 + i])
        words[row, 0] = high
        words[row, 1] = low
        status[row] = GOOD if valid[0] else BAD


@kernel
def _same_text(data, start, end, other, other_end):
    eight = np.uint64(8)
    if np.uint64(other_end) - other != end - start:
        return False
    last = np.uint64(other_end) - eight
    while start + eight < end:
        if _eight(data, start) != _eight(data, other):
            return False
        start += eight
        other += eight
    return _eight(data, end - eight) == _eight(data, last)


@kernel
def rtt_word(rtt):
    """Map an RTT to a word of the same order: negative values have all bits inverted, others the sign."""
    bits = np.float64(rtt).view(np.uint64)
    return ~bits if bits & _SIGN else bits | _SIGN


@kernel
def rtt_bits(word):
    """The inverse of rtt_word, as the bits of the double."""
    return word ^ _SIGN if word & _SIGN else ~word


@kernel
def _fill(
    time,
    src,
    src_status,
    dst,
    dst_status,
    version,
    rtt,
    msm_id,
    size,
    errors,
    probe_id,
    kind,
    throughput,
    words,
    rejected,
):
    kept = 0
    for i in range(len(time)):
        rule = -1
        four = is_ipv4_words(src[i, 0], src[i, 1])
        if time[i] == _NO_TIME:
            rule = 0
        elif time[i] < 0 or time[i] >= END_TIME_US:
            rule = 1
        elif src_status[i] == MISSING:
            rule = 2
        elif src_status[i] == BAD:
            rule = 3
        elif dst_status[i] == MISSING:
            rule = 4
        elif dst_status[i] == BAD:
            rule = 5
        elif four != is_ipv4_words(dst[i, 0], dst[i, 1]):
            rule = 6
        elif version[i] != -1 and version[i] != (4 if four else 6):
            rule = 7
        elif rtt[i] == _NO_RTT:
            rule = 8
        elif not (rtt[i] == NO_REPLY or 0.0 <= rtt[i] <= MAX_RTT_MS):
            rule = 9
        elif (
            msm_id[i] < -1 or probe_id[i] < -1
            or not -1 <= size[i] <= MAX_SIZE or not -1 <= errors[i] <= MAX_PACKET_ERRORS
            or not 0 <= kind[i] <= LAST
            or not (throughput[i] == UNKNOWN_THROUGHPUT or 0.0 <= throughput[i] <= MAX_THROUGHPUT_MBPS)
        ):  # fmt: skip
            rule = 10
        if rule >= 0:
            rejected[rule] += 1
            continue
        words[kept, 0] = src[i, 0]
        words[kept, 1] = src[i, 1]
        words[kept, 2] = np.uint64(time[i])
        words[kept, 3] = dst[i, 0]
        words[kept, 4] = dst[i, 1]
        words[kept, 5] = rtt_word(rtt[i] + 0.0)  # -0.0 becomes 0.0, so that equal values have equal bits
        words[kept, 6] = np.uint64(msm_id[i] + 1)
        words[kept, 7] = np.uint64(probe_id[i] + 1)
        both = size[i] + 1 + (kind[i] << KIND_BITS)
        both += (throughput_code(throughput[i]) + 1) << THROUGHPUT_BITS
        words[kept, 8] = np.uint64((both << 32) | (errors[i] + 1))
        kept += 1
    return kept


@kernel
def hash_source(high, low):
    """Hash of 16 packed bytes, given as two big-endian words."""
    return mix_one(mix_one(high) + low)


@kernel
def hash_key(words, row, by_probe):
    """Hash of a measurement's key. When grouping by probe, one without a probe is grouped by its source."""
    if by_probe and words[row, PROBE_ID] != 0:
        return mix_one(words[row, PROBE_ID])
    return hash_source(words[row, SRC_HIGH], words[row, SRC_LOW])


@kernel
def part_of(hashed, table):
    """The part for a hash. The last split takes all remaining hashes, so there is always a part."""
    upper = hashed >> np.uint64(32)
    split = 0
    while upper >= table[split, 1]:
        split += 1
    begin, end, parts = table[split, 0], table[split, 1], table[split, 2]
    return np.int64(table[split, 3] + (upper - begin) * parts // (end - begin))


#: Factors mix(0) | 1, mix(1) | 1, …: odd, so that every change of one word changes the sum.
_FACTORS = np.array([mix_int(value) | 1 for value in range(WORDS)], np.uint64)


@kernel
def content(words, row):
    """A hash of a measurement. The sums (mod 2^64) show whether two sets of measurements are equal."""
    value = np.uint64(0)
    for word in range(WORDS):
        value += words[row, word] * _FACTORS[word]
    return mix_one(value)
