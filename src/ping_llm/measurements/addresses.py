"""Addresses in bulk: text ↔ 16 packed bytes, prefixes, and which addresses are public.

The packed form is the IPv6 address, with IPv4 as IPv4-mapped (::ffff:a.b.c.d). So the IP version follows
from the bytes and is never stored separately; the text ::ffff:192.0.2.1 *is* 192.0.2.1.

The bulk functions are compiled and read Arrow's string buffers (7.7 M texts per second, 60 times faster than
`ipaddress`). `pack_one` and `unpack_one` use `ipaddress`, for single addresses and as the reference that the
compiled functions are tested against.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

MAPPED_PREFIX = bytes(10) + b"\xff\xff"

#: Length of the longest canonical text of 16 bytes: eight groups of four and seven colons.
_LONGEST_TEXT = 39

# Entries of the IANA special-purpose registries that are not globally reachable. IPv6 outside 2000::/3 is
# never public and needs no entry.
_NOT_PUBLIC = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",  # multicast, reserved and broadcast
    "2001:2::/48",
    "2001:10::/28",
    "2001:db8::/32",
    "3fff::/20",
)


def pack_one(text: str) -> bytes:
    """Return the 16 bytes of one address, or raise ValueError."""
    if "%" in text:
        raise ValueError(f"{text!r} has a zone; addresses must be without one")
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return MAPPED_PREFIX + address.packed
    return address.packed


def is_ipv4_one(packed: bytes) -> bool:
    """Whether 16 packed bytes are an IPv4 address."""
    return packed[:12] == MAPPED_PREFIX


def unpack_one(packed: bytes) -> str:
    """Return the canonical text (dotted quad, or RFC 5952) of 16 packed bytes."""
    if is_ipv4_one(packed):
        return str(ipaddress.IPv4Address(packed[12:]))
    return str(ipaddress.IPv6Address(packed))


def pack(texts: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Pack many addresses.

    Args:
      texts: Strings, or an Arrow array of them; dictionary-encoded arrays are packed once per value.

    Returns:
      uint8 [n, 16] and a bool mask [n]: False where the text is null or not an address (its bytes are zero).
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks() if texts.num_chunks != 1 else texts.chunk(0)
    if isinstance(texts, pa.DictionaryArray):
        packed, valid = pack(texts.dictionary)
        known = np.asarray(texts.indices.is_valid())
        if not len(packed):
            return np.zeros((len(texts), 16), np.uint8), np.zeros(len(texts), bool)
        indices = np.asarray(texts.indices.fill_null(0))
        packed, valid = packed[indices], valid[indices] & known
        packed[~valid] = 0
        return packed, valid
    array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    array = array.cast(pa.large_string())
    count = len(array)
    packed = np.zeros((count, 16), np.uint8)
    valid = np.zeros(count, np.bool_)
    _, offsets_buffer, data_buffer = array.buffers()
    if count and data_buffer is not None:
        offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + count + 1]
        from ping_llm.measurements import (
            address_kernels,  # imported only where needed: importing Numba takes half a second
        )

        address_kernels.pack_texts(np.frombuffer(data_buffer, np.uint8), offsets, packed, valid)
    if array.null_count:
        valid &= np.asarray(array.is_valid())
        packed[~valid] = 0
    return packed, valid


def unpack(packed: np.ndarray) -> pa.StringArray:
    """The canonical texts of packed addresses, uint8 [n, 16]."""
    count = len(packed)
    data = np.empty(max(count * _LONGEST_TEXT, 1), np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    from ping_llm.measurements import address_kernels

    address_kernels.unpack_texts(np.ascontiguousarray(packed, np.uint8), data, offsets)
    size = int(offsets[-1])
    texts = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data[:size]))
    return texts.cast(pa.string())


def is_ipv4(packed: np.ndarray) -> np.ndarray:
    """Whether each packed address, uint8 [n, 16], is IPv4; bool [n]."""
    words = np.ascontiguousarray(packed).view("<u4").reshape(-1, 4)
    out: np.ndarray = (words[:, 0] == 0) & (words[:, 1] == 0) & (words[:, 2] == 0xFFFF0000)
    return out


def is_public(packed: np.ndarray) -> np.ndarray:
    """Whether each packed address, uint8 [n, 16], is globally reachable; bool [n]."""
    from ping_llm.measurements import address_kernels

    out: np.ndarray = address_kernels.are_public(
        np.ascontiguousarray(packed, np.uint8), _PUBLIC_TABLE, _PUBLIC_BITS
    )
    return out


@dataclass(frozen=True)
class Prefix:
    """The first `bits` bits of an address of one IP version; with all its bits it is a whole address."""

    packed: bytes  # 16, zero after the prefix
    bits: int  # 1 to 32, or 1 to 128

    @classmethod
    def of(cls, packed: np.ndarray, known: int | None = None) -> "Prefix":
        """The prefix of the first `known` bytes of an address, uint8 [16]; None: the whole address."""
        start = 12 if packed[:12].tobytes() == MAPPED_PREFIX else 0
        known = 16 - start if known is None else known
        return cls(packed[: start + known].tobytes().ljust(16, b"\0"), 8 * known)

    @property
    def version(self) -> int:
        return 4 if is_ipv4_one(self.packed) else 6

    @property
    def address_bits(self) -> int:
        return 32 if self.version == 4 else 128

    @property
    def is_whole(self) -> bool:
        return self.bits == self.address_bits

    @property
    def known_bytes(self) -> bytes:
        """The full bytes of the prefix: 4 or 16 for a whole address, 2 for 192.0.0.0/20."""
        start = 12 if self.version == 4 else 0
        return self.packed[start : start + self.bits // 8]

    @property
    def packed_length(self) -> int:
        """Full bytes of `packed` that the prefix sets: 16 for a whole address, 14 for 192.0.0.0/20."""
        return len(self.known_bytes) + (12 if self.version == 4 else 0)

    def covers(self, packed: bytes) -> bool:
        length = self.bits + 128 - self.address_bits
        return int.from_bytes(self.packed) >> (128 - length) == int.from_bytes(packed) >> (128 - length)

    def __str__(self) -> str:
        return unpack_one(self.packed) + ("" if self.is_whole else f"/{self.bits}")


def unnamed(version: int) -> Prefix:
    """The prefix 0.0.0.0/8 or ::/8, which stands for an unknown source.

    It contains no public address; in RFC 1122, 0.0.0.0/8 is a host that does not know its own address.
    """
    return Prefix((MAPPED_PREFIX if version == 4 else b"").ljust(16, b"\0"), 8)


def parse_prefix(text: str) -> Prefix:
    """Parse 192.0.2.1, 203.0.113.0/24, 203.0.113.?, 2001:db8::/32 or 2001:db8:?.

    Raises:
      ValueError: the text is not a valid prefix; the message is a sentence that says why.
    """
    text = text.strip()
    if text.endswith("?"):
        text = _without_wildcard(text)
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither an address nor a prefix such as 203.0.113.0/24{_hint(text)}"
        ) from None
    if network.prefixlen == 0:
        raise ValueError(f"{text!r} covers all addresses: a prefix must have at least one bit")
    if ipaddress.ip_address(text.split("/")[0]) != network.network_address:
        raise ValueError(f"{text!r} has bits set after its prefix: write {network}")
    packed = network.network_address.packed
    if isinstance(network, ipaddress.IPv4Network):
        return Prefix(MAPPED_PREFIX + packed, network.prefixlen)
    if packed[:12] == MAPPED_PREFIX:
        if network.prefixlen <= 96:
            raise ValueError(f"{text!r} covers all of IPv4: a prefix must have at least one bit")
        return Prefix(packed, network.prefixlen - 96)
    return Prefix(packed, network.prefixlen)


def _hint(text: str) -> str:
    """A hint for an invalid prefix: the zeros are missing, or it is a host name."""
    short = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3}){0,2})\.?/(\d{1,2})", text)
    if short:
        octets = short[1].split(".")
        return f": write {'.'.join(octets + ['0'] * (4 - len(octets)))}/{short[2]}"
    if re.fullmatch(r"(?=.*[a-zA-Z])[\w-]+(\.[\w-]+)+\.?", text):
        return f": host names are not resolved; `getent hosts {text}` prints its address"
    return ""


def _without_wildcard(text: str) -> str:
    """Replace a wildcard by a prefix length: 203.0.113.? → 203.0.113.0/24; 2001:db8:? → 2001:db8::/32."""
    known = text[:-1]
    if known.endswith(":") and "::" not in known:
        groups = known[:-1].split(":")
        return f"{':'.join(groups)}::/{16 * len(groups)}"
    if known.endswith(".") and ":" not in known:
        octets = known[:-1].split(".")
        if len(octets) < 4:
            return f"{'.'.join(octets + ['0'] * (4 - len(octets)))}/{8 * len(octets)}"
    raise ValueError(f"{text!r}: '?' stands for the rest of an address, as in 203.0.113.? or 2001:db8:?")


def _public_table() -> tuple[np.ndarray, np.ndarray]:
    prefixes = [parse_prefix(text) for text in _NOT_PUBLIC]
    table = np.array([list(prefix.packed) for prefix in prefixes], np.uint8)
    return table, np.array([prefix.bits + 128 - prefix.address_bits for prefix in prefixes], np.int64)


_PUBLIC_TABLE, _PUBLIC_BITS = _public_table()
