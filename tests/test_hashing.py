"""One hash in three forms: they agree to the bit, and with the published generator."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ping_llm import hashing

WORDS = st.lists(st.integers(0, hashing.MASK), min_size=1, max_size=20)


@given(WORDS)
def test_the_three_forms_agree(words):
    array = np.array(words, np.uint64)
    assert hashing.finalize(array).tolist() == [hashing.finalize_int(word) for word in words]
    assert hashing.mix(array).tolist() == [hashing.mix_int(word) for word in words]
    assert [int(hashing.finalize_one(word)) for word in array] == hashing.finalize(array).tolist()
    assert [int(hashing.mix_one(word)) for word in array] == hashing.mix(array).tolist()


def test_it_is_splitmix64():
    """The first outputs of the reference implementation (Vigna, splitmix64.c) from the state 0."""
    outputs = [hashing.mix_int(turn * hashing.GOLDEN_INT) for turn in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.integers(0, hashing.MASK), st.integers(0, hashing.MASK))
def test_no_two_words_share_a_hash(one, other):
    assert (hashing.mix_int(one) == hashing.mix_int(other)) == (one == other)
