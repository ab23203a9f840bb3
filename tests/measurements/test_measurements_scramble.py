"""Pseudonyms keep prefixes and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.measurements.addresses import MAPPED_PREFIX, Prefix, is_ipv4, parse_prefix
from ping_llm.measurements.scramble import (
    SHORT,
    SHORT_ENDS,
    pseudonym,
    pseudonyms,
    scramble,
    scramble_one,
    short_into,
    short_one,
)

keys = st.integers(0, 2**64 - 1)
ipv4 = st.binary(min_size=4, max_size=4).map(lambda host: MAPPED_PREFIX + host)
ipv6 = st.binary(min_size=15, max_size=15).map(lambda rest: b"\x20" + rest)


def _array(*addresses):
    return np.frombuffer(b"".join(addresses), np.uint8).reshape(-1, 16)


def _common(one, other):
    return next((place for place in range(16) if one[place] != other[place]), 16)


@given(address=ipv4 | ipv6, key=keys)
def test_compiled_and_plain_are_equal_and_the_version_stays(address, key):
    (got,) = scramble(_array(address), key)
    assert got.tobytes() == scramble_one(address, key)
    assert is_ipv4(got[None])[0] == (address[:12] == MAPPED_PREFIX)


@given(one=ipv4 | ipv6, tail=st.binary(min_size=1, max_size=15), key=keys)
def test_two_addresses_share_as_many_bytes_after_as_before(one, tail, key):
    kept = max(16 - len(tail), 12 if one[:12] == MAPPED_PREFIX else 0)
    other = one[:kept] + tail[-(16 - kept) :]
    after = scramble(_array(one, other), key)
    assert _common(*after) == _common(one, other)


def test_the_map_of_a_byte_is_a_permutation_and_uniform():
    addresses = _array(*(MAPPED_PREFIX + bytes([byte, 1, 2, 3]) for byte in range(256)))
    counts = np.zeros(256, int)
    for key in range(2000):
        after = scramble(addresses, key)[:, 12]
        assert len(set(after.tolist())) == 256
        counts[after[:8]] += 1
    expected = 2000 * 8 / 256
    assert ((counts - expected) ** 2 / expected).sum() < 360  # χ² of 255 degrees: 1 in 10^5


def test_another_key_or_another_prefix_gives_another_map():
    hosts = _array(*(MAPPED_PREFIX + bytes([192, 0, 2, byte]) for byte in range(256)))
    beside = _array(*(MAPPED_PREFIX + bytes([192, 0, 3, byte]) for byte in range(256)))
    one, other, neighbour = scramble(hosts, 1), scramble(hosts, 2), scramble(beside, 1)
    assert (one[:, 15] == other[:, 15]).mean() < 0.1
    assert (one[:, 15] == neighbour[:, 15]).mean() < 0.1


@given(address=ipv4 | ipv6, key=keys, data=st.data())
def test_a_prefix_becomes_the_prefix_of_its_addresses(address, key, data):
    whole = Prefix.of(np.frombuffer(address, np.uint8))
    if whole.version == 4:
        known = data.draw(st.integers(1, 4))
    else:
        known = data.draw(st.sampled_from(SHORT_ENDS))
    prefix = Prefix.of(np.frombuffer(address, np.uint8), known)
    (stated,), count = pseudonyms(_array(address), key)
    assert pseudonym(prefix, key).covers(stated.tobytes())
    assert pseudonym(whole, key).packed == stated.tobytes()
    assert count == (0 if whole.version == 4 else SHORT)
    if whole.version == 4:
        assert pseudonym(prefix, key).bits == prefix.bits


def test_keys_of_each_address():
    addresses = _array(*[parse_prefix("192.0.2.1").packed] * 3)
    assert len({row.tobytes() for row in scramble(addresses, np.array([1, 2, 1], np.uint64))}) == 2


@given(one=ipv6, tail=st.binary(min_size=1, max_size=15), key=keys)
def test_short_pseudonyms_keep_the_prefixes_that_matter(one, tail, key):
    other = one[: 16 - len(tail)] + tail
    out = np.empty(16, np.uint8)
    short_into(out, np.frombuffer(one, np.uint8), np.uint64(key))
    assert out.tobytes() == short_one(one, key)
    assert not out[SHORT:].any()
    shared = _common(one, other)
    for level, end in enumerate(SHORT_ENDS):
        if shared >= end:
            assert short_one(one, key)[: level + 1] == short_one(other, key)[: level + 1]


def test_short_pseudonyms_of_different_addresses_differ():
    random = np.random.default_rng(1)
    addresses = random.integers(0, 256, (3000, 16), np.uint8)
    addresses[:, :4] = addresses[0, :4]
    short = {short_one(address.tobytes(), 7) for address in addresses}
    assert len(short) > 2990
    first = {short_one(addresses[0].tobytes(), key)[0] for key in range(2000)}
    assert len(first) > 250
