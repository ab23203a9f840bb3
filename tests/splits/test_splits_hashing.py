"""The hash is for ever: a plain reimplementation and fixed values."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.measurements import addresses
from ping_llm.splits.assign import address_words, hash_words, pair_words, split_of_hash
from ping_llm.splits.run import share_out

MASK = 2**64 - 1


def plain_mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def plain_hash(seed: int, words: list[int]) -> int:
    value = plain_mix(seed)
    for word in words:
        value = plain_mix(value ^ word)
    return value


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, MASK), min_size=1, max_size=10))
def test_hash_is_as_specified(seed, words):
    assert int(hash_words(seed, np.array([words], np.uint64))[0]) == plain_hash(seed, words)


def test_hashes_of_known_addresses_never_change():
    packed, _ = addresses.pack(["193.0.14.129", "2001:7fd::1"])
    assert [f"{value:016x}" for value in hash_words(0, address_words(packed)).tolist()] == [
        f"{plain_hash(0, [0, 0x0000FFFFC1000E81]):016x}",
        f"{plain_hash(0, [0x200107FD00000000, 1]):016x}",
    ]
    assert f"{hash_words(0, address_words(packed))[0]:016x}" == "7e77070bf811c68b"
    assert f"{hash_words(0, address_words(packed))[1]:016x}" == "5933709d3950c651"


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_a_pair_has_no_direction(one, other):
    a, b = (np.frombuffer(value, np.uint8)[None] for value in (one, other))
    np.testing.assert_array_equal(pair_words(a, b), pair_words(b, a))
    assert sorted([one, other]) == [
        pair_words(a, b).astype(">u8").tobytes()[part] for part in (slice(16), slice(16, 32))
    ]


def test_fractions_of_hashes():
    hashed = hash_words(1, np.arange(200_000, dtype=np.uint64)[:, None])
    shares = np.bincount(split_of_hash(hashed, (0.8, 0.1, 0.1))) / len(hashed)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.003)
    edges = np.array([0, 2**63 - 1, 2**63, MASK], np.uint64)
    assert split_of_hash(edges, (0.5, 0.5)).tolist() == [0, 0, 1, 1]
    assert split_of_hash(edges, (0.0, 1.0)).tolist() == [1, 1, 1, 1]
    assert split_of_hash(edges, (1.0, 0.0)).tolist() == [0, 0, 0, 0]
    assert split_of_hash(edges, (0.5, 0.0, 0.5)).tolist() == [0, 0, 2, 2]


@given(st.integers(3, 500), st.lists(st.integers(0, 10**6), min_size=3, max_size=3).filter(any))
def test_shards_are_shared_out_by_rows(shards, rows):
    counts = share_out(shards, np.array(rows))
    assert sum(counts) == shards
    assert all((count > 0) == (n > 0) for count, n in zip(counts, rows, strict=True))
