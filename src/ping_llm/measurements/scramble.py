"""Pseudonyms of addresses that keep prefixes: the same key gives the same map, another key another one.

Byte by byte, each is sent through a permutation of the 256 bytes that depends on the key and on the bytes
before it. So two addresses share exactly as many leading bytes after as before, and the map is one to one.
It hides addresses from a model, which sees another key in each context; it is not encryption.

An IPv4 address stays one, an IPv6 address stays one. `scramble_one` is the oracle of the kernels.
"""

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.hashing import GOLDEN, GOLDEN_INT, MASK, finalize_int, finalize_one
from ping_llm.measurements.address_kernels import is_ipv4_bytes
from ping_llm.measurements.addresses import MAPPED_PREFIX, Prefix

_BYTE = np.uint64(255)
_ONE = np.uint64(1)


@kernel
def _permuted_byte(byte: np.uint64, bits: np.uint64) -> np.uint64:
    """Two multiplications by odd numbers and two shifts, each one to one; the sum makes it uniform."""
    value = ((byte ^ bits) & _BYTE) * (((bits >> np.uint64(8)) & _BYTE) | _ONE) & _BYTE
    value ^= value >> np.uint64(4)
    value = (value * (((bits >> np.uint64(16)) & _BYTE) | _ONE) + ((bits >> np.uint64(24)) & _BYTE)) & _BYTE
    mixed: np.uint64 = value ^ (value >> np.uint64(4))
    return mixed


@kernel
def scramble_into(out: np.ndarray, packed: np.ndarray, key: np.uint64) -> None:
    """The pseudonym of one packed address under a key (uint64), written to `out`, uint8 [16]."""
    first = 12 if is_ipv4_bytes(packed) else 0
    bits = finalize_one(key + GOLDEN * np.uint64(first + 1))
    for index in range(first):
        out[index] = packed[index]
    for index in range(first, 16):
        byte = np.uint64(packed[index])
        out[index] = _permuted_byte(byte, bits)
        bits = finalize_one(bits + GOLDEN * (byte + _ONE))


@kernel
def _scramble_all(out: np.ndarray, packed: np.ndarray, keys: np.ndarray) -> None:
    for row in range(len(packed)):
        scramble_into(out[row], packed[row], keys[row])


def scramble(packed: np.ndarray, keys: np.ndarray | int) -> np.ndarray:
    """The pseudonyms of packed addresses, uint8 [n, 16], under one key or a key for each."""
    packed = np.ascontiguousarray(packed, np.uint8)
    out = np.empty_like(packed)
    _scramble_all(out, packed, np.broadcast_to(np.asarray(keys, np.uint64), len(packed)))
    return out


def scramble_prefix(prefix: Prefix, key: int) -> Prefix:
    """The pseudonym of a prefix that ends at a byte: the prefix of its addresses' pseudonyms."""
    packed = np.frombuffer(prefix.packed, np.uint8)[None]
    whole = scramble(packed, key)[0]
    whole[prefix.packed_length :] = 0
    return Prefix(whole.tobytes(), prefix.bits)


def scramble_one(packed: bytes, key: int) -> bytes:
    """`scramble` of one address, in plain Python."""
    first = 12 if packed[:12] == MAPPED_PREFIX else 0
    bits = finalize_int((key + GOLDEN_INT * (first + 1)) & MASK)
    out = bytearray(packed[:first])
    for byte in packed[first:]:
        value = ((byte ^ bits) & 255) * ((bits >> 8) & 255 | 1) & 255
        value ^= value >> 4
        value = (value * ((bits >> 16) & 255 | 1) + ((bits >> 24) & 255)) & 255
        out.append(value ^ (value >> 4))
        bits = finalize_int((bits + GOLDEN_INT * (byte + 1)) & MASK)
    return bytes(out)
