"""Prefix-preserving pseudonyms of addresses, determined by a key.

Each byte is mapped by a permutation of the 256 bytes that depends on the key and on the preceding bytes. So
two pseudonyms share exactly as many leading bytes as their addresses, and the map is one to one. It hides
addresses from a model, which sees a different key in each context; it is not encryption.

An IPv4 address stays IPv4, an IPv6 address stays IPv6. `scramble_one` is the reference for the kernels.

The 16 bytes of an IPv6 address would fill a context three times as fast as those of an IPv4 address, and most
of them carry no information. `short` pseudonyms have four bytes: one each for the /32, the /48, the /64 and
the whole address. They preserve common prefixes of these lengths. Two different addresses get the same short
pseudonym with a probability of 2^-32 or, in the same /64, of 2^-8; different networks may share a first byte
by chance, as in IPv4.
"""

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.hashing import GOLDEN, GOLDEN_INT, MASK, finalize_int, finalize_one
from ping_llm.measurements.address_kernels import is_ipv4_bytes
from ping_llm.measurements.addresses import Prefix, is_ipv4, is_ipv4_one

_BYTE = np.uint64(255)
_ONE = np.uint64(1)


@kernel
def _permuted_byte(byte: np.uint64, bits: np.uint64) -> np.uint64:
    """Permute a byte: two multiplications by odd numbers and two shifts, each one to one.

    The addition makes the result uniform.
    """
    value = ((byte ^ bits) & _BYTE) * (((bits >> np.uint64(8)) & _BYTE) | _ONE) & _BYTE
    value ^= value >> np.uint64(4)
    value = (value * (((bits >> np.uint64(16)) & _BYTE) | _ONE) + ((bits >> np.uint64(24)) & _BYTE)) & _BYTE
    mixed: np.uint64 = value ^ (value >> np.uint64(4))
    return mixed


@kernel
def scramble_into(out: np.ndarray, packed: np.ndarray, key: np.uint64) -> None:
    """Write the pseudonym of one packed address under a key (uint64) to `out`, uint8 [16]."""
    first = 12 if is_ipv4_bytes(packed) else 0
    bits = finalize_one(key + GOLDEN * np.uint64(first + 1))
    for index in range(first):
        out[index] = packed[index]
    for index in range(first, 16):
        byte = np.uint64(packed[index])
        out[index] = _permuted_byte(byte, bits)
        bits = finalize_one(bits + GOLDEN * (byte + _ONE))


#: Number of leading address bytes that each byte of a short IPv6 pseudonym stands for.
SHORT_ENDS = (4, 6, 8, 16)
SHORT = len(SHORT_ENDS)


@kernel
def short_into(out: np.ndarray, packed: np.ndarray, key: np.uint64) -> None:
    """Write the short pseudonym of a packed IPv6 address to `out`; the bytes after it are 0."""
    bits = finalize_one(key + GOLDEN)
    level = 0
    for index in range(16):
        bits = finalize_one(bits + GOLDEN * (np.uint64(packed[index]) + _ONE))
        if index + 1 == SHORT_ENDS[level]:
            out[level] = bits & _BYTE
            level += 1
    out[level:] = 0


@kernel
def _scramble_all(out: np.ndarray, packed: np.ndarray, keys: np.ndarray) -> None:
    for row in range(len(packed)):
        scramble_into(out[row], packed[row], keys[row])


@kernel
def _short_all(out: np.ndarray, packed: np.ndarray, key: np.uint64) -> None:
    for row in range(len(packed)):
        short_into(out[row], packed[row], key)


def scramble(packed: np.ndarray, keys: np.ndarray | int) -> np.ndarray:
    """The pseudonyms of packed addresses, uint8 [n, 16], under one key or one key per address."""
    packed = np.ascontiguousarray(packed, np.uint8)
    out = np.empty_like(packed)
    _scramble_all(out, packed, np.broadcast_to(np.asarray(keys, np.uint64), len(packed)))
    return out


def pseudonyms(packed: np.ndarray, key: int) -> tuple[np.ndarray, int]:
    """The pseudonyms that a context shows for addresses of one IP version, and the number of bytes of each.

    The number is 0 if all bytes are shown (IPv4), else SHORT.
    """
    packed = np.ascontiguousarray(packed, np.uint8)
    if not len(packed) or is_ipv4(packed[:1])[0]:
        return scramble(packed, key), 0
    out = np.empty_like(packed)
    _short_all(out, packed, np.uint64(key))
    return out, SHORT


def pseudonym(prefix: Prefix, key: int) -> Prefix:
    """The pseudonym of an address, or of a prefix that ends at a byte boundary.

    For an IPv6 prefix it has the bytes of the short pseudonym that the prefix covers (/32, /48, /64, the
    whole address), at least one.
    """
    packed = np.frombuffer(prefix.packed, np.uint8)[None]
    whole, known = pseudonyms(packed, key)
    stated = 12 + prefix.bits // 8
    if known:
        stated = known = max(1, sum(prefix.bits // 8 >= end for end in SHORT_ENDS))
    whole[0, stated:] = 0
    return Prefix(whole.tobytes(), 8 * known if known else prefix.bits)


def short_one(packed: bytes, key: int) -> bytes:
    """The short pseudonym of an IPv6 address, in plain Python."""
    bits = finalize_int((key + GOLDEN_INT) & MASK)
    out = bytearray()
    for end, byte in enumerate(packed, start=1):
        bits = finalize_int((bits + GOLDEN_INT * (byte + 1)) & MASK)
        if end in SHORT_ENDS:
            out.append(bits & 255)
    return bytes(out).ljust(16, b"\0")


def scramble_one(packed: bytes, key: int) -> bytes:
    """`scramble` for one address, in plain Python."""
    first = 12 if is_ipv4_one(packed) else 0
    bits = finalize_int((key + GOLDEN_INT * (first + 1)) & MASK)
    out = bytearray(packed[:first])
    for byte in packed[first:]:
        value = ((byte ^ bits) & 255) * ((bits >> 8) & 255 | 1) & 255
        value ^= value >> 4
        value = (value * ((bits >> 16) & 255 | 1) + ((bits >> 24) & 255)) & 255
        out.append(value ^ (value >> 4))
        bits = finalize_int((bits + GOLDEN_INT * (byte + 1)) & MASK)
    return bytes(out)
