"""Addresses in bulk: text ↔ 16 packed bytes.

The packed form is the IPv6 address, with IPv4 as IPv4-mapped (::ffff:a.b.c.d). So the version
is a property of the bytes and is never stored beside them; the text ::ffff:192.0.2.1 *is* 192.0.2.1.
"""

import ipaddress
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

MAPPED_PREFIX = bytes(10) + b"\xff\xff"


def pack_one(text: str) -> bytes:
    """Return the 16 bytes of one address, or raise ValueError."""
    if "%" in text:
        raise ValueError(f"{text!r} has a zone: not an address of the Internet")
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return MAPPED_PREFIX + address.packed
    return address.packed


def unpack_one(packed: bytes) -> str:
    """Return the canonical text (dotted quad, or RFC 5952) of 16 packed bytes."""
    if packed[:12] == MAPPED_PREFIX:
        return str(ipaddress.IPv4Address(packed[12:]))
    return str(ipaddress.IPv6Address(packed))


def pack(texts: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Pack many addresses.

    Returns:
      uint8 [n, 16] and a bool mask [n]: False where the text is null or not an address (bytes then zero).
    """
    values = texts.to_pylist() if isinstance(texts, pa.Array | pa.ChunkedArray) else texts
    packed = np.zeros((len(values), 16), np.uint8)
    valid = np.zeros(len(values), bool)
    for index, text in enumerate(values):
        try:
            packed[index] = np.frombuffer(pack_one(text or ""), np.uint8)
            valid[index] = True
        except ValueError:
            pass
    return packed, valid


def unpack(packed: np.ndarray) -> pa.StringArray:
    """Canonical texts of uint8 [n, 16]."""
    return pa.array([unpack_one(row.tobytes()) for row in packed], pa.string())


def is_ipv4(packed: np.ndarray) -> np.ndarray:
    """bool [n] of uint8 [n, 16]."""
    return (packed[:, :12] == np.frombuffer(MAPPED_PREFIX, np.uint8)).all(axis=1)
