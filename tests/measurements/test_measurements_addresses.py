import ipaddress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ping_llm.measurements import address_kernels, addresses

_ipv4 = st.integers(0, 2**32 - 1).map(lambda value: str(ipaddress.IPv4Address(value)))
# Mostly zero groups, so that "::" appears in every place.
_sparse = st.lists(st.sampled_from([0, 0, 0, 1, 0xAB, 0x2001, 0xFFFF]), min_size=8, max_size=8)
_ipv6 = st.one_of(
    st.integers(0, 2**128 - 1),
    _sparse.map(lambda groups: sum(group << (16 * index) for index, group in enumerate(groups))),
).map(ipaddress.IPv6Address)
_ipv6_texts = _ipv6.flatmap(
    lambda address: st.sampled_from([str(address), address.exploded, str(address).upper()])
)
_rubbish = st.text(alphabet="0123456789abcdefABCDEFg:.% x", max_size=48)


def _oracle(text: str | None) -> bytes | None:
    try:
        return addresses.pack_one(text or "")
    except ValueError:
        return None


@given(st.lists(st.one_of(_ipv4, _ipv6_texts, _rubbish, st.none()), max_size=20))
@example(["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", ":1::", "1:"])
@example(["::ffff:192.0.2.1", "::192.0.2.1", "1:2:3:4:5:6:192.0.2.1", "1:2:3:4:5:6:7:192.0.2.1", "::1.2.3"])
@example(
    [
        "01.2.3.4",
        "1.2.3.256",
        "1.2.3",
        "1.2.3.4.5",
        "1..2.3",
        "",
        "12345::",
        "fe80::1%eth0",
        ":::",
        ":",
        "1::2::3",
    ]
)
@example(
    ["1:2:3:4::5:6:7:8", "::1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8::", "1:2:3:4:5:6::1.2.3.4", "1::2::3", None]
)
def test_pack_agrees_with_ipaddress(texts):
    packed, valid = addresses.pack(texts)
    for text, row, good in zip(texts, packed, valid, strict=True):
        expected = _oracle(text)
        assert good == (expected is not None), text
        assert row.tobytes() == (expected or bytes(16)), text


@given(st.lists(st.one_of(_ipv4, _ipv6.map(str)), min_size=1, max_size=20))
def test_unpack_is_canonical_and_inverts_pack(texts):
    packed, _ = addresses.pack(texts)
    assert addresses.unpack(packed).to_pylist() == [addresses.unpack_one(row.tobytes()) for row in packed]
    assert (addresses.pack(addresses.unpack(packed))[0] == packed).all()


@given(st.lists(st.one_of(_ipv4, _ipv6.map(str), st.just("::ffff:0:0")), min_size=1, max_size=20))
@example(["::fffe:1.2.3.4", "::ff:ffff:1.2.3.4", "::1:0:ffff:1.2.3.4", "1::ffff:1.2.3.4", "255.255.255.255"])
def test_every_form_of_is_ipv4_agrees(texts):
    packed, _ = addresses.pack(texts)
    expected = [row[:12].tobytes() == addresses.MAPPED_PREFIX for row in packed]
    words = packed.view(">u8").astype(np.uint64)
    assert addresses.is_ipv4(packed).tolist() == expected
    assert [address_kernels.is_ipv4_bytes(row) for row in packed] == expected
    assert [address_kernels.is_ipv4_words(high, low) for high, low in words] == expected


def test_pack_takes_slices_chunks_and_dictionaries():
    texts = pa.array(["192.0.2.1", None, "2001:db8::1", "no", "192.0.2.1"])
    expected, valid = addresses.pack(texts.to_pylist())
    assert valid.tolist() == [True, False, True, False, True]
    forms = {
        "slice": pa.concat_arrays([pa.array(["x"]), texts]).slice(1),
        "chunked": pa.chunked_array([texts.slice(0, 2), texts.slice(2)]),
        "dictionary": texts.dictionary_encode(),
    }
    for name, form in forms.items():
        packed, good = addresses.pack(form)
        assert (packed == expected).all(), name
        assert (good == valid).all(), name
    assert addresses.pack(pa.array([], pa.string()))[0].shape == (0, 16)


def test_version_is_a_property_of_the_bytes():
    packed, _ = addresses.pack(["192.0.2.1", "::ffff:192.0.2.1", "::192.0.2.1", "2001:db8::1"])
    assert addresses.is_ipv4(packed).tolist() == [True, True, False, False]
    assert (packed[0] == packed[1]).all()


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("8.8.8.8", True),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("100.128.0.1", True),
        ("172.15.0.1", True),
        ("172.31.255.255", False),
        ("192.168.1.1", False),
        ("203.0.113.9", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("2001:67c:2e8::1", True),
        ("2001:db8::1", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("::1", False),
        ("::", False),
        ("ff02::1", False),
    ],
)
def test_is_public(text, public):
    packed, _ = addresses.pack([text])
    assert addresses.is_public(packed).tolist() == [public]


@given(st.one_of(_ipv4, _ipv6.map(str)))
def test_nothing_private_is_public(text):
    address = ipaddress.ip_address(text)
    packed, _ = addresses.pack([text])
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        assert not addresses.is_public(packed)[0]


@pytest.mark.parametrize(
    ("text", "canonical", "known"),
    [
        ("192.0.2.1", "192.0.2.1", 4),
        ("203.0.113.0/24", "203.0.113.0/24", 3),
        ("203.0.113.?", "203.0.113.0/24", 3),
        ("203.?", "203.0.0.0/8", 1),
        ("192.0.0.0/20", "192.0.0.0/20", 2),
        ("2001:db8::/32", "2001:db8::/32", 4),
        ("2001:DB8:?", "2001:db8::/32", 4),
        ("2001:db8::1", "2001:db8::1", 16),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24", 3),
    ],
)
def test_prefixes(text, canonical, known):
    prefix = addresses.parse_prefix(text)
    assert str(prefix) == canonical
    assert len(prefix.known_bytes) == known
    assert prefix.covers(prefix.packed)


_BAD_PREFIXES = [
    "",
    "?",
    "0.0.0.0/0",
    "::/0",
    "::ffff:0:0/96",
    "203.0.113.9/24",
    "1.2.3.4.?",
    "2001::?",
    "host",
]


@pytest.mark.parametrize("text", _BAD_PREFIXES)
def test_bad_prefixes_get_a_sentence(text):
    with pytest.raises(ValueError, match=r"\w+ .*"):
        addresses.parse_prefix(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("10.0.0/8", "write 10.0.0.0/8"),
        ("10/8", "write 10.0.0.0/8"),
        ("server-1.example.org", "host names are not resolved"),
    ],
)
def test_near_misses_are_told_what_to_write(text, hint):
    with pytest.raises(ValueError, match=hint):
        addresses.parse_prefix(text)


def test_covers():
    prefix = addresses.parse_prefix("192.0.0.0/20")
    packed, _ = addresses.pack(["192.0.15.255", "192.0.16.0", "::c000:f00"])
    assert [prefix.covers(row.tobytes()) for row in packed] == [True, False, False]
    assert np.frombuffer(prefix.packed, np.uint8)[:10].sum() == 0


def test_a_prefix_of_packed_bytes_is_that_of_its_text():
    packed = addresses.pack(["203.0.113.7", "2001:db8:1:2::5"])[0]
    for address, known, text in (
        (packed[0], 3, "203.0.113.0/24"),
        (packed[0], None, "203.0.113.7"),
        (packed[1], 4, "2001:db8::/32"),
        (packed[1], None, "2001:db8:1:2::5"),
    ):
        assert addresses.Prefix.of(address, known) == addresses.parse_prefix(text)
