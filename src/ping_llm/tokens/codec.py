"""The compiled encoder: functions that kernels call, each of which writes tokens starting at out[position].

Every put_* function returns the position after its tokens; the *_length functions return the number of tokens
beforehand. They do not hold the GIL and do not allocate memory. Rows are validated before, so a value that
has no tokens (NaN, a negative RTT) is a bug in the caller and raises ValueError.
"""

import math

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.measurements.address_kernels import is_ipv4_bytes
from ping_llm.tokens.rtt import (
    COMPACT_LARGEST,
    LOG_LAST_OCTAVE,
    LOG_OFFSET,
    LOG_OFFSET_BITS,
    LOG_PER_OCTAVE,
    MICROS_LARGEST,
    log_thresholds,
)
from ping_llm.tokens.vocab import (
    BYTE0,
    ERRORS,
    EXTRA,
    EXTRA_PROBE_ID,
    EXTRA_THROUGHPUT,
    FAILED,
    LARGEST_DELTA1,
    LARGEST_DELTA4,
    LARGEST_ERRORS,
    LARGEST_PROBE_ID,
    LARGEST_SIZE,
    LARGEST_THROUGHPUT,
    MSM_ID,
    PREFIX_END,
    RTT,
    SIZE,
    SRC_IPV4,
    SRC_IPV6,
    TIME_ABS,
    TIME_DELTA1,
    TIME_DELTA4,
)

_COMPACT, _FLOAT64, _MICROS, _LOG, _CLIPPED = range(5)
_LOG_THRESHOLDS = log_thresholds()
_NO_REPLY = -1.0


@kernel
def put_number(out, position, value, count):
    """Write the `count` big-endian bytes of a non-negative integer."""
    for index in range(count):
        out[position + index] = BYTE0 + ((value >> (8 * (count - 1 - index))) & 255)
    return position + count


@kernel
def put_address(out, position, role_ipv4, role_ipv6, packed, known_bytes):
    """Write an address (known_bytes 0), or its first 1..3 (IPv4) or 1..15 (IPv6) bytes and PREFIX_END."""
    if is_ipv4_bytes(packed):
        role, first, count = role_ipv4, 12, 4
    else:
        role, first, count = role_ipv6, 0, 16
    if known_bytes < 0 or known_bytes >= count:
        raise ValueError("known_bytes is 0, 1..3 for IPv4, 1..15 for IPv6")
    out[position] = role
    position += 1
    for index in range(known_bytes if known_bytes else count):
        out[position] = BYTE0 + int(packed[first + index])
        position += 1
    if known_bytes:
        out[position] = PREFIX_END
        position += 1
    return position


@kernel
def put_unnamed_source(out, position, ipv4):
    """Write `addresses.unnamed`, the prefix of an unknown source."""
    out[position] = SRC_IPV4 if ipv4 else SRC_IPV6
    out[position + 1] = BYTE0
    out[position + 2] = PREFIX_END
    return position + 3


@kernel
def address_length(packed, known_bytes):
    if known_bytes:
        return known_bytes + 2
    return 5 if is_ipv4_bytes(packed) else 17


@kernel
def put_time(out, position, seconds, previous_seconds):
    """Write seconds since 1970, or since `previous_seconds`, the last time stated (negative: none)."""
    delta = seconds - previous_seconds
    if previous_seconds < 0 or delta < 0 or delta > LARGEST_DELTA4:
        out[position] = TIME_ABS
        return put_number(out, position + 1, seconds, 8)
    if delta <= LARGEST_DELTA1:
        out[position] = TIME_DELTA1
        return put_number(out, position + 1, delta, 1)
    out[position] = TIME_DELTA4
    return put_number(out, position + 1, delta, 4)


@kernel
def time_length(seconds, previous_seconds):
    delta = seconds - previous_seconds
    if previous_seconds < 0 or delta < 0 or delta > LARGEST_DELTA4:
        return 9
    return 2 if delta <= LARGEST_DELTA1 else 5


@kernel
def _bit_length(value):
    return math.frexp(float(value))[1]  # exact below 2^53


@kernel
def _divide_half_to_even(value, divisor):
    quotient = value // divisor
    twice = 2 * (value - quotient * divisor)
    if twice > divisor or (twice == divisor and quotient & 1):
        quotient += 1
    return quotient


@kernel
def _compact_code(micros):
    micros = min(micros, COMPACT_LARGEST)
    if micros < 2048:
        return micros
    exponent = _bit_length(micros) - 11
    # A significand of 4096 carries into the exponent, which gives the same value.
    return (exponent << 11) + _divide_half_to_even(micros, np.int64(1) << (exponent - 1)) - 2048


@kernel
def _log_code(micros):
    shifted = micros + LOG_OFFSET
    octave = _bit_length(shifted) - 1
    if octave > LOG_LAST_OCTAVE:
        return np.int64(65_535)
    scaled = shifted << (LOG_LAST_OCTAVE - octave)
    low, high = np.int64(0), np.int64(LOG_PER_OCTAVE)
    while low < high:
        middle = (low + high) >> 1
        if scaled > _LOG_THRESHOLDS[middle]:
            low = middle + 1
        else:
            high = middle
    return min(LOG_PER_OCTAVE * (octave - LOG_OFFSET_BITS) + low, np.int64(65_535))


@kernel
def _clipped_code(micros, clip_limit_ms):
    limit = np.int64(np.rint(clip_limit_ms * 1000.0))
    step = (limit + 65_534) // 65_535
    return min(_divide_half_to_even(micros, step), limit // step)


@kernel
def rtt_code(rtt, encoding_id, clip_limit_ms):
    """The code of an RTT in ms that is finite and not negative."""
    if not (rtt >= 0.0 and rtt < np.inf):
        raise ValueError("an rtt is -1 (no reply), or finite and not negative")
    if encoding_id == _FLOAT64:
        return np.float64(rtt + 0.0).view(np.int64)
    micros = np.int64(np.rint(min(rtt * 1000.0, float(MICROS_LARGEST))))
    if encoding_id == _COMPACT:
        return _compact_code(micros)
    if encoding_id == _MICROS:
        return micros
    if encoding_id == _LOG:
        return _log_code(micros)
    if encoding_id == _CLIPPED:
        return _clipped_code(micros, clip_limit_ms)
    raise ValueError("an encoding_id is 0 to 4")


@kernel
def _rtt_bytes(encoding_id):
    return 8 if encoding_id in (_FLOAT64, _MICROS) else 2


@kernel
def put_result(out, position, rtt, encoding_id, clip_limit_ms):
    """Write FAILED for an rtt of -1, otherwise RTT and its bytes. Only `clipped` uses clip_limit_ms."""
    if rtt == _NO_REPLY:
        out[position] = FAILED
        return position + 1
    out[position] = RTT
    return put_number(out, position + 1, rtt_code(rtt, encoding_id, clip_limit_ms), _rtt_bytes(encoding_id))


@kernel
def result_length(rtt, encoding_id):
    return 1 if rtt == _NO_REPLY else 1 + _rtt_bytes(encoding_id)


@kernel
def put_size(out, position, size):
    """Write the size; nothing if it is unknown (-1)."""
    if size < 0:
        return position
    if size > LARGEST_SIZE:
        raise ValueError("a size is at most 65535")
    out[position] = SIZE
    return put_number(out, position + 1, size, 2)


@kernel
def size_length(size):
    return 0 if size < 0 else 3


@kernel
def put_errors(out, position, errors):
    """Write the number of packet errors; nothing if it is unknown (-1). 255 means 255 or more."""
    if errors < 0:
        return position
    out[position] = ERRORS
    return put_number(out, position + 1, min(errors, LARGEST_ERRORS), 1)


@kernel
def errors_length(errors):
    return 0 if errors < 0 else 2


@kernel
def put_msm_id(out, position, msm_id):
    """Write the measurement id; nothing if it is unknown (-1)."""
    if msm_id < 0:
        return position
    out[position] = MSM_ID
    return put_number(out, position + 1, msm_id, 8)


@kernel
def msm_id_length(msm_id):
    return 0 if msm_id < 0 else 9


@kernel
def put_probe_id(out, position, probe_id):
    """Write the probe id; nothing if unknown (-1) or longer than four bytes (Atlas has fewer probes)."""
    if probe_id < 0 or probe_id > LARGEST_PROBE_ID:
        return position
    out[position] = EXTRA
    out[position + 1] = BYTE0 + EXTRA_PROBE_ID
    return put_number(out, position + 2, probe_id, 4)


@kernel
def probe_id_length(probe_id):
    return 0 if probe_id < 0 or probe_id > LARGEST_PROBE_ID else 6


@kernel
def put_throughput(out, position, code):
    """Write the code of a throughput (see `measurements.throughput`); nothing if it is unknown (-1)."""
    if code < 0:
        return position
    if code > LARGEST_THROUGHPUT:
        raise ValueError("a code of a throughput is at most 4094")
    out[position] = EXTRA
    out[position + 1] = BYTE0 + EXTRA_THROUGHPUT
    return put_number(out, position + 2, code, 2)


@kernel
def throughput_length(code):
    return 0 if code < 0 else 4
