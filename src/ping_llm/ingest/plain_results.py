"""A fast reader of results that takes values from the JSON text without making Python objects.

Nearly all results since 2013 have the same form. This kernel reads only that form, strictly: valid JSON,
without escapes, with all expected fields of the expected types, each once. It gives up on a result at the
first deviation, and atlas.py then reads the result with orjson. So the kernel only makes reading faster, and
never changes the output.

Characters are ASCII codes.
"""

from dataclasses import dataclass

import numpy as np

from ping_llm.ascii import (
    BRACE,
    BRACE_END,
    BRACKET,
    BRACKET_END,
    COLON,
    COMMA,
    DOT,
    LOWER_E,
    LOWER_F,
    LOWER_N,
    LOWER_T,
    MINUS,
    NEWLINE,
    NINE,
    QUOTE,
    RETURN,
    SPACE,
    TAB,
    UPPER_E,
    ZERO,
)
from ping_llm.compiled import kernel
from ping_llm.ingest.columns import ERROR, IGNORED, LOST, REPLY
from ping_llm.measurements import address_kernels

# Integer fields, by column of `integers`.
TIMESTAMP, VERSION, SENT, RECEIVED, MSM_ID, SIZE, PROBE_ID = range(7)
# Address fields, by column of `spans`: start and end.
FROM, SRC, DST = 0, 2, 4

_EVERY_FIELD = (1 << 12) - 1

# Keys as numbers, made of their last eight characters.
_TYPE, _FROM, _SENT = (int.from_bytes(key) for key in (b"type", b"from", b"sent"))
_RCVD, _SIZE = (int.from_bytes(key) for key in (b"rcvd", b"size"))
_AF, _RESULT, _MSM_ID, _PRB_ID = (int.from_bytes(key) for key in (b"af", b"result", b"msm_id", b"prb_id"))
_SRC_ADDR, _DST_ADDR, _TIMESTAMP = (int.from_bytes(key) for key in (b"src_addr", b"dst_addr", b"imestamp"))
_RTT, _X, _TTL, _DUP, _LATE = (int.from_bytes(key) for key in (b"rtt", b"x", b"ttl", b"dup", b"late"))
_ERROR, _SRCADDR = int.from_bytes(b"error"), int.from_bytes(b"srcaddr")
_PING = int.from_bytes(b"ping")

#: Powers of ten. A division by them is rounded correctly if both numbers are exact: up to 2**53 and 10**22.
_POWERS = 10.0 ** np.arange(23)
_EXACT = 2**53

#: Characters that a plain string may contain: no quote, backslash or control character, and ASCII only.
_PLAIN = np.array([32 <= code <= 126 and code not in b'"\\' for code in range(256)])
_GIVE_UP = -1

#: Length of the shortest packet, `{"x":""}`, in characters.
_SHORTEST_PACKET = 8


@dataclass
class QuickResults:
    """Output of the kernel. Rows where `taken` is False hold no values."""

    taken: np.ndarray  # bool [n]
    integers: np.ndarray  # int64 [n, 7]
    addresses: np.ndarray  # uint8 [n, 3, 16]: from, src_addr, dst_addr
    address_valid: np.ndarray  # bool [n, 3]
    address_empty: np.ndarray  # bool [n, 3]
    offsets: np.ndarray  # int64 [n + 1]
    kinds: np.ndarray  # uint8, one per packet
    rtts: np.ndarray  # float64, one per packet


def read_quickly(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> QuickResults:
    """Read the results data[starts[i]:ends[i]]."""
    count = len(starts)
    room = len(data) // _SHORTEST_PACKET + 1
    results = QuickResults(
        np.zeros(count, np.bool_),
        np.zeros((count, 7), np.int64),
        np.zeros((count, 3, 16), np.uint8),
        np.zeros((count, 3), np.bool_),
        np.zeros((count, 3), np.bool_),
        np.zeros(count + 1, np.int64),
        np.empty(room, np.uint8),
        np.empty(room, np.float64),
    )
    packets = _read_block(
        data, starts, ends, results.taken, results.integers, results.addresses, results.address_valid,
        results.address_empty, results.offsets, results.kinds, results.rtts,
    )  # fmt: skip
    results.kinds, results.rtts = results.kinds[:packets], results.rtts[:packets]
    return results


@kernel
def _read_block(data, starts, ends, taken, integers, packed, valid, empty, offsets, kinds, rtts):
    spans = np.zeros(6, np.int64)
    packets = 0
    for row in range(len(starts)):
        after = _read_result(data, starts[row], ends[row], integers[row], spans, kinds, rtts, packets)
        if after != _GIVE_UP:
            taken[row] = True
            packets = after
            for which in range(3):
                span = spans[2 * which : 2 * which + 2]
                empty[row, which] = span[0] == span[1]
                one = slice(which, which + 1)
                address_kernels.pack_texts(data, span, packed[row, one], valid[row, one])
        offsets[row + 1] = packets
    return packets


@kernel
def _read_result(data, index, end, integers, spans, kinds, rtts, packets):
    """Read one object; return the number of packets read so far, or _GIVE_UP."""
    index = _skip_space(data, index, end)
    if index >= end or data[index] != BRACE:
        return _GIVE_UP
    index += 1
    seen = 0
    while True:
        index = _skip_space(data, index, end)
        key_start = index + 1
        index, length, key = _read_key(data, index, end)
        if index == _GIVE_UP:
            return _GIVE_UP
        field = -1
        column = -1
        span = -1
        if length == 4:
            if key == _TYPE:
                field = 0
            elif key == _FROM:
                field, span = 1, FROM
            elif key == _SENT:
                field, column = 2, SENT
            elif key == _RCVD:
                field, column = 3, RECEIVED
            elif key == _SIZE:
                field, column = 4, SIZE
        elif length == 6:
            if key == _RESULT:
                field = 5
            elif key == _MSM_ID:
                field, column = 6, MSM_ID
            elif key == _PRB_ID:
                field, column = 7, PROBE_ID
        elif length == 8:
            if key == _SRC_ADDR:
                field, span = 8, SRC
            elif key == _DST_ADDR:
                field, span = 9, DST
        elif length == 2 and key == _AF:
            field, column = 10, VERSION
        elif length == 9 and key == _TIMESTAMP and data[key_start] == LOWER_T:
            field, column = 11, TIMESTAMP
        if field >= 0:
            if seen & (1 << field):
                return _GIVE_UP
            seen |= 1 << field
        if column >= 0:
            start = index
            index, mantissa, exponent = _read_number(data, index, end)
            if index == _GIVE_UP or exponent != 0:
                return _GIVE_UP
            # "1.0" has an exponent of -1, "-0" none: both are left to orjson.
            if mantissa == 0 and data[start] == MINUS:
                return _GIVE_UP
            integers[column] = mantissa
        elif span >= 0:
            start = index + 1
            index = _skip_string(data, index, end)
            if index == _GIVE_UP:
                return _GIVE_UP
            # If these are empty, other keys may hold the address: `srcaddr`, `addr`.
            if index - 1 == start and span != FROM:
                return _GIVE_UP
            spans[span] = start
            spans[span + 1] = index - 1
        elif field == 0:
            start = index + 1
            index = _skip_string(data, index, end)
            if index == _GIVE_UP or index - 1 - start != 4 or _as_number(data, start, 4) != _PING:
                return _GIVE_UP
        elif field == 5:
            index, packets = _read_packets(data, index, end, kinds, rtts, packets)
            if index == _GIVE_UP:
                return _GIVE_UP
        else:
            index = _skip_value(data, index, end)
            if index == _GIVE_UP:
                return _GIVE_UP
        index = _skip_space(data, index, end)
        if index >= end:
            return _GIVE_UP
        if data[index] == BRACE_END:
            break
        if data[index] != COMMA:
            return _GIVE_UP
        index += 1
    if _skip_space(data, index + 1, end) != end or seen != _EVERY_FIELD:
        return _GIVE_UP
    return packets


@kernel
def _read_packets(data, index, end, kinds, rtts, packets):
    """Read a list of packets, at least one of them sent; return (position or _GIVE_UP, packets so far)."""
    if index >= end or data[index] != BRACKET:
        return _GIVE_UP, packets
    index += 1
    sent = False
    while True:
        index = _skip_space(data, index, end)
        if index >= end or data[index] != BRACE:
            return _GIVE_UP, packets
        index += 1
        ignored, replied, lost, failed = False, False, False, False
        rtt = np.nan
        while True:
            index = _skip_space(data, index, end)
            index, length, key = _read_key(data, index, end)
            if index == _GIVE_UP:
                return _GIVE_UP, packets
            if length == 3 and key == _RTT:
                if replied:
                    return _GIVE_UP, packets
                replied = True
                index, mantissa, exponent = _read_number(data, index, end)
                if index == _GIVE_UP or abs(mantissa) > _EXACT or exponent < -22:
                    return _GIVE_UP, packets
                rtt = mantissa / _POWERS[-exponent]
            else:
                if length == 1 and key == _X:
                    lost = True
                elif length == 5 and key == _ERROR:
                    failed = True
                elif (length == 3 and key == _DUP) or (length == 4 and key == _LATE):
                    ignored = True
                elif not ((length == 3 and key == _TTL) or (length == 7 and key == _SRCADDR)):
                    return _GIVE_UP, packets
                index = _skip_value(data, index, end)
                if index == _GIVE_UP:
                    return _GIVE_UP, packets
            index = _skip_space(data, index, end)
            if index >= end:
                return _GIVE_UP, packets
            if data[index] == BRACE_END:
                break
            if data[index] != COMMA:
                return _GIVE_UP, packets
            index += 1
        rtts[packets] = rtt
        if ignored:
            kinds[packets] = IGNORED
        elif replied:
            kinds[packets] = REPLY
            sent = True
        elif lost:
            kinds[packets] = LOST
            sent = True
        elif failed:
            kinds[packets] = ERROR
        else:
            return _GIVE_UP, packets
        packets += 1
        index = _skip_space(data, index + 1, end)
        if index >= end:
            return _GIVE_UP, packets
        if data[index] == BRACKET_END:
            break
        if data[index] != COMMA:
            return _GIVE_UP, packets
        index += 1
    if not sent:
        return _GIVE_UP, packets
    return index + 1, packets


@kernel
def _skip_space(data, index, end):
    while index < end and data[index] in (SPACE, TAB, NEWLINE, RETURN):
        index += 1
    return index


@kernel
def _skip_string(data, index, end):
    """Return the position after a string at `index`; it must be plain ASCII without escapes."""
    if index >= end or data[index] != QUOTE:
        return _GIVE_UP
    index += 1
    while index < end and _PLAIN[data[index]]:
        index += 1
    return index + 1 if index < end and data[index] == QUOTE else _GIVE_UP


@kernel
def _read_key(data, index, end):
    """Read a key and its colon; return (position after, length of the key, the key as a number)."""
    start = index + 1
    if index >= end or data[index] != QUOTE:
        return _GIVE_UP, 0, 0
    index = start
    number = 0
    while index < end and _PLAIN[data[index]]:
        number = (number << 8) | data[index]
        index += 1
    length = index - start
    if index >= end or data[index] != QUOTE:
        return _GIVE_UP, 0, 0
    index = _skip_space(data, index + 1, end)
    if index >= end or data[index] != COLON:
        return _GIVE_UP, 0, 0
    return _skip_space(data, index + 1, end), length, number


@kernel
def _as_number(data, start, length):
    number = 0
    for index in range(start, start + length):
        number = (number << 8) | data[index]
    return number


@kernel
def _read_number(data, index, end):
    """Read a number without exponent; return (position after, all digits as an integer, power of ten)."""
    negative = index < end and data[index] == MINUS
    if negative:
        index += 1
    start = index
    mantissa = 0
    while index < end and ZERO <= data[index] <= NINE:
        mantissa = mantissa * 10 + (int(data[index]) - ZERO)
        index += 1
    digits = index - start
    if digits == 0 or digits > 18 or (digits > 1 and data[start] == ZERO):
        return _GIVE_UP, 0, 0
    exponent = 0
    if index < end and data[index] == DOT:
        index += 1
        point = index
        while index < end and ZERO <= data[index] <= NINE:
            mantissa = mantissa * 10 + (int(data[index]) - ZERO)
            index += 1
        exponent = point - index
        if exponent == 0 or digits - exponent > 18:
            return _GIVE_UP, 0, 0
    if index < end and (data[index] == LOWER_E or data[index] == UPPER_E):
        return _GIVE_UP, 0, 0
    if negative:
        mantissa = -mantissa
    return index, mantissa, exponent


@kernel
def _skip_value(data, index, end):
    """Return the position after a string, a number or a literal; _GIVE_UP for objects and arrays."""
    if index >= end:
        return _GIVE_UP
    character = data[index]
    if character == QUOTE:
        return _skip_string(data, index, end)
    if character == LOWER_T:
        return _skip_literal(data, index, end, 4, 0x74727565)  # true
    if character == LOWER_F:
        return _skip_literal(data, index, end, 5, 0x66616C7365)  # false
    if character == LOWER_N:
        return _skip_literal(data, index, end, 4, 0x6E756C6C)  # null
    position, _, _ = _read_number(data, index, end)
    return position


@kernel
def _skip_literal(data, index, end, length, literal):
    if index + length > end or _as_number(data, index, length) != literal:
        return _GIVE_UP
    return index + length
