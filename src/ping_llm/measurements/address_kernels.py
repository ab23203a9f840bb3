"""The compiled loops of `addresses`: parse, format and classify, one address per iteration."""

import numpy as np

from ping_llm.ascii import COLON, DOT, LOWER_A, LOWER_F, NINE, UPPER_A, UPPER_F, ZERO
from ping_llm.compiled import kernel


@kernel
def _hex_value(character: int) -> int:
    if ZERO <= character <= NINE:
        return character - ZERO
    if LOWER_A <= character <= LOWER_F:
        return character - LOWER_A + 10
    if UPPER_A <= character <= UPPER_F:
        return character - UPPER_A + 10
    return -1


@kernel
def _parse_ipv4(data: np.ndarray, start: int, end: int, out: np.ndarray, position: int) -> bool:
    """Write four octets at out[position:]; return False unless data[start:end] is exactly a dotted quad."""
    octets = 0
    value = 0
    digits = 0
    for index in range(start, end + 1):
        character = data[index] if index < end else np.uint8(DOT)
        if character == DOT:
            if digits == 0 or octets == 4:
                return False
            out[position + octets] = value
            octets += 1
            value = 0
            digits = 0
        elif ZERO <= character <= NINE:
            # A leading zero may mean octal to other programs: ambiguous, so refused, as in ipaddress.
            if digits > 0 and value == 0:
                return False
            value = value * 10 + int(character) - ZERO
            digits += 1
            if value > 255:
                return False
        else:
            return False
    return octets == 4


@kernel
def _parse_ipv6(data: np.ndarray, start: int, end: int, out: np.ndarray) -> bool:
    position = 0  # bytes written
    gap = -1  # bytes before the "::"
    index = start
    if end - start >= 2 and data[start] == COLON and data[start + 1] == COLON:
        gap = 0
        index = start + 2
    while index < end:
        group_start = index
        value = 0
        while index < end and _hex_value(data[index]) >= 0:
            value = value * 16 + _hex_value(data[index])
            index += 1
            if index - group_start > 4:
                break
        digits = index - group_start
        if index < end and data[index] == DOT:
            if position > 12 or not _parse_ipv4(data, group_start, end, out, position):
                return False
            position += 4
            index = end
            break
        if digits == 0 or digits > 4 or position > 14:
            return False
        out[position] = value >> 8
        out[position + 1] = value & 255
        position += 2
        if index == end:
            break
        if data[index] != COLON:
            return False
        index += 1
        if index == end:
            return False  # a single colon at the end
        if data[index] == COLON:
            if gap >= 0:
                return False
            gap = position
            index += 1
    if gap < 0:
        return position == 16
    if position > 14:
        return False
    tail = position - gap
    for offset in range(tail):
        out[15 - offset] = out[position - 1 - offset]
    for offset in range(gap, 16 - tail):
        out[offset] = 0
    return True


@kernel
def pack_texts(data: np.ndarray, offsets: np.ndarray, packed: np.ndarray, valid: np.ndarray) -> None:
    for row in range(len(valid)):
        start, end = offsets[row], offsets[row + 1]
        out = packed[row]
        # 45 characters: the longest text of an address, an IPv6 address that ends in a dotted quad.
        if end - start < 2 or end - start > 45:
            continue
        colon = False
        for index in range(start, min(end, start + 5)):
            if data[index] == COLON:
                colon = True
                break
        if colon:
            good = _parse_ipv6(data, start, end, out)
        else:
            good = _parse_ipv4(data, start, end, out, 12)
            out[10] = 255
            out[11] = 255
        if not good:
            out[:] = 0
        valid[row] = good


@kernel
def is_ipv4_bytes(packed: np.ndarray) -> bool:
    """Whether 16 packed bytes are an IPv4 address: `addresses.is_ipv4` for one address, in kernels."""
    for index in range(10):
        if packed[index] != 0:
            return False
    out: bool = packed[10] == 255 and packed[11] == 255
    return out


@kernel
def is_ipv4_words(high: np.uint64, low: np.uint64) -> bool:
    """`is_ipv4_bytes` for an address as two big-endian words."""
    out: bool = high == 0 and low >> np.uint64(32) == np.uint64(0x0000FFFF)
    return out


@kernel
def _write_octet(data: np.ndarray, position: int, value: int) -> int:
    if value >= 100:
        data[position] = ZERO + value // 100
        position += 1
    if value >= 10:
        data[position] = ZERO + value // 10 % 10
        position += 1
    data[position] = ZERO + value % 10
    return position + 1


@kernel
def _write_group(data: np.ndarray, position: int, value: int) -> int:
    started = False
    for shift in (12, 8, 4, 0):
        digit = (value >> shift) & 15
        if digit or started or shift == 0:
            data[position] = ZERO + digit if digit < 10 else LOWER_A + digit - 10
            position += 1
            started = True
    return position


@kernel
def unpack_texts(packed: np.ndarray, data: np.ndarray, offsets: np.ndarray) -> None:
    position = 0
    for row in range(len(packed)):
        address = packed[row]
        if is_ipv4_bytes(address):
            for octet in range(12, 16):
                position = _write_octet(data, position, np.int64(address[octet]))
                if octet < 15:
                    data[position] = DOT
                    position += 1
        else:
            # RFC 5952: the first longest run of at least two zero groups becomes "::".
            best_start, best_length, run = -1, 1, 0
            for group in range(8):
                if address[2 * group] == 0 and address[2 * group + 1] == 0:
                    run += 1
                    if run > best_length:
                        best_length = run
                        best_start = group - run + 1
                else:
                    run = 0
            group = 0
            while group < 8:
                if group == best_start:
                    data[position] = COLON
                    data[position + 1] = COLON
                    position += 2
                    group += best_length
                    continue
                value = np.int64(address[2 * group]) * 256 + np.int64(address[2 * group + 1])
                position = _write_group(data, position, value)
                group += 1
                if group < 8 and group != best_start:
                    data[position] = COLON
                    position += 1
        offsets[row + 1] = position


@kernel
def _shares_prefix(address: np.ndarray, network: np.ndarray, bits: int) -> bool:
    whole = bits // 8
    for index in range(whole):
        if address[index] != network[index]:
            return False
    rest = bits % 8
    return rest == 0 or (address[whole] >> (8 - rest)) == (network[whole] >> (8 - rest))


@kernel
def are_public(packed: np.ndarray, table: np.ndarray, bits: np.ndarray) -> np.ndarray:
    public = np.empty(len(packed), np.bool_)
    for row in range(len(packed)):
        address = packed[row]
        answer = is_ipv4_bytes(address) or (address[0] >> 5) == 1  # IPv4, or 2000::/3
        if answer:
            for entry in range(len(table)):
                if _shares_prefix(address, table[entry], bits[entry]):
                    answer = False
                    break
        public[row] = answer
    return public
