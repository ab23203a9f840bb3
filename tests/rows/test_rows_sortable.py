"""Addresses and values as words."""

import ipaddress

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.measurements import addresses
from ping_llm.rows import sortable

TEXTS = st.one_of(
    st.none(),
    st.sampled_from(
        ["", "::", "1.1.1.1", "255.255.255.255", "::ffff:1.2.3.4", "fe80::1%eth0", "2001:DB8::1"]
    ),
    st.integers(0, 2**32 - 1).map(lambda value: str(ipaddress.IPv4Address(value))),
    st.integers(0, 2**128 - 1).map(lambda value: str(ipaddress.IPv6Address(value))),
    st.text(alphabet="0123456789abcdef:.", max_size=50),
)


@given(st.lists(TEXTS, max_size=30), st.data())
@settings(deadline=None, max_examples=150)
def test_addresses_are_packed_as_everywhere(texts, data):
    """With repeats, since those are remembered, and from the middle of an array, where offsets matter."""
    repeated = [data.draw(st.sampled_from(texts)) for _ in range(len(texts))] + texts if texts else []
    array = pa.array(["padding", *repeated], pa.string()).slice(1)
    words, status = sortable.packed_words(array)
    packed, valid = addresses.pack(array)
    assert ((status == sortable.GOOD) == valid).all()
    assert ((status == sortable.MISSING) == [not text for text in repeated]).all()
    assert (words[valid].astype(">u8").view(np.uint8).reshape(-1, 16) == packed[valid]).all()


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=20))
@settings(deadline=None)
def test_rtt_words_sort_as_numbers_and_come_back(values):
    values = [value + 0.0 for value in values]
    ordered = sorted(values)
    words = [int(sortable.rtt_word(value)) for value in values]
    assert sorted(words) == [int(sortable.rtt_word(value)) for value in ordered]
    bits = [int(sortable.rtt_bits(np.uint64(word))) for word in words]
    assert [float(np.uint64(one).view(np.float64)) for one in bits] == values
