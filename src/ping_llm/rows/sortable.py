"""A measurement as nine unsigned words of 8 bytes that sort as rows are sorted.

Word by word: source (2), time, destination (2), rtt, msm_id, probe_id, size and packet_error_count. Each is
mapped so that unsigned order is the order of the values; -1 (unknown, no reply) comes first. So sorting needs
no knowledge of columns, a total order needs no tie-break, and 72 bytes are all that is ever moved around.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ping_llm import addresses
from ping_llm.compiled import kernel
from ping_llm.schema import END_TIME_US, MAX_PACKET_ERRORS, MAX_RTT_MS, MAX_SIZE, NO_REPLY, Reject

WORDS = 9
SRC_HIGH, SRC_LOW, TIME, DST_HIGH, DST_LOW, RTT, MSM_ID, PROBE_ID, SIZE_ERRORS = range(WORDS)

#: The rules in the order in which they are tried: a measurement counts under the first that it breaks.
RULES = (
    Reject.MISSING_TIME,
    Reject.BAD_TIME,
    Reject.MISSING_SOURCE,
    Reject.BAD_SOURCE,
    Reject.MISSING_DESTINATION,
    Reject.BAD_DESTINATION,
    Reject.MIXED_VERSIONS,
    Reject.WRONG_VERSION,
    Reject.MISSING_RTT,
    Reject.BAD_RTT,
    Reject.BAD_FIELD,
)

# Stand-ins for null. Both break a rule by themselves, so that no valid value is taken for a missing one.
_NO_TIME = -(2**63)
_NO_RTT = -1.7976931348623157e308
_SIGN = np.uint64(1 << 63)
_MAPPED = np.uint64(0x0000FFFF)  # bytes 8 to 11 of an IPv4-mapped address


@dataclass(frozen=True)
class Sortable:
    """The valid measurements of a batch, and how many broke each rule."""

    words: np.ndarray  # uint64 [n, 9]
    rejected: np.ndarray  # int64 [len(RULES)]


def from_batch(batch: pa.RecordBatch | pa.Table) -> Sortable:
    """Validate a batch with the columns of `inputs.SELECTED` and turn it into words."""
    sources, sources_valid = addresses.pack(batch.column("src_addr"))
    destinations, destinations_valid = addresses.pack(batch.column("dst_addr"))
    words = np.empty((batch.num_rows, WORDS), np.uint64)
    rejected = np.zeros(len(RULES), np.int64)
    kept = _fill(
        _filled(batch.column("event_time"), _NO_TIME),
        _big_endian(sources),
        sources_valid,
        _missing_text(batch.column("src_addr")),
        _big_endian(destinations),
        destinations_valid,
        _missing_text(batch.column("dst_addr")),
        _filled(batch.column("ip_version"), -1),
        _filled(batch.column("rtt"), _NO_RTT),
        _filled(batch.column("msm_id"), -1),
        _filled(batch.column("size"), -1),
        _filled(batch.column("packet_error_count"), -1),
        _filled(batch.column("probe_id"), -1),
        words,
        rejected,
    )
    return Sortable(words[:kept], rejected)


def _filled(column: pa.Array | pa.ChunkedArray, stand_in: int | float) -> np.ndarray:
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(stand_in, column.type))
    return column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()


def _missing_text(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """True where a text is null or empty."""
    lengths = pc.fill_null(pc.binary_length(column), 0)
    return np.asarray(lengths) == 0


def _big_endian(packed: np.ndarray) -> np.ndarray:
    """Addresses as two words each, in the order of their bytes."""
    return packed.view(">u8").astype(np.uint64).reshape(-1, 2)


@kernel
def is_mapped(high, low):
    """Whether two words are an IPv4 address."""
    return high == 0 and low >> np.uint64(32) == _MAPPED


@kernel
def rtt_word(rtt):
    """Order-preserving: negative values have all bits turned, others only the sign."""
    bits = np.float64(rtt).view(np.uint64)
    return ~bits if bits & _SIGN else bits | _SIGN


@kernel
def rtt_bits(word):
    """The inverse of rtt_word, as the bits of the double."""
    return word ^ _SIGN if word & _SIGN else ~word


@kernel
def _fill(
    time, src, src_valid, src_missing, dst, dst_valid, dst_missing, version, rtt, msm_id, size, errors,
    probe_id, words, rejected,
):  # fmt: skip
    kept = 0
    for i in range(len(time)):
        rule = -1
        four = is_mapped(src[i, 0], src[i, 1])
        if time[i] == _NO_TIME:
            rule = 0
        elif time[i] < 0 or time[i] >= END_TIME_US:
            rule = 1
        elif src_missing[i]:
            rule = 2
        elif not src_valid[i]:
            rule = 3
        elif dst_missing[i]:
            rule = 4
        elif not dst_valid[i]:
            rule = 5
        elif four != is_mapped(dst[i, 0], dst[i, 1]):
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
        words[kept, 5] = rtt_word(rtt[i] + 0.0)  # -0.0 becomes 0.0: two bit patterns of one value
        words[kept, 6] = np.uint64(msm_id[i] + 1)
        words[kept, 7] = np.uint64(probe_id[i] + 1)
        words[kept, 8] = np.uint64(((size[i] + 1) << 32) | (errors[i] + 1))
        kept += 1
    return kept
