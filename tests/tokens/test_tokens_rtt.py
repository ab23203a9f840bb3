"""The RTT encodings: exact round trips, monotone, bins that tile, and the compiled codes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_strategies import ENCODINGS, RTT_EDGES, encodings, rtts

from ping_llm.measurements.schema import MAX_RTT_MS
from ping_llm.tokens import codec
from ping_llm.tokens.rtt import RTT_ENCODINGS, Clipped, Compact, Log, rtt_encoding

TWO_BYTES = [encoding for encoding in ENCODINGS if encoding.bytes == 2]


@pytest.mark.parametrize("encoding", TWO_BYTES, ids=str)
def test_every_code_of_two_bytes_comes_back_and_owns_its_bin(encoding):
    edges = encoding.edges_table()
    assert len(edges) == encoding.largest_code + 2
    assert edges[0] == 0
    assert edges[-1] == math.inf
    assert (np.diff(edges) > 0).all(), "no code is dead, no bin overlaps the next"
    values = np.array([encoding.decode(code) for code in range(encoding.largest_code + 1)])
    assert (values >= edges[:-1]).all()
    assert (values <= edges[1:]).all()
    codes = np.arange(len(values))
    # 0.1 µs inside either edge: more than a double errs at 50 days.
    for inside in (values, edges[:-1] + 1e-4, np.append(edges[1:-1] - 1e-4, values[-1])):
        compiled = [codec.rtt_code(float(ms), encoding.id, encoding.clip_limit_ms) for ms in inside]
        np.testing.assert_array_equal(compiled, codes)
    for code in range(0, len(values), 61):
        assert encoding.encode(values[code]) == code
        assert encoding.edges(code) == (edges[code], edges[code + 1])


@given(encodings, st.lists(rtts, min_size=1, max_size=20))
def test_compiled_codes_are_the_plain_ones(encoding, values):
    for ms in values:
        assert codec.rtt_code(ms, encoding.id, encoding.clip_limit_ms) == encoding.encode(ms)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("ms", RTT_EDGES)
def test_edges_agree(encoding, ms):
    code = encoding.encode(ms)
    assert codec.rtt_code(ms, encoding.id, encoding.clip_limit_ms) == code
    assert encoding.encode(encoding.decode(code)) == code
    assert encoding.to_bytes(code) == code.to_bytes(encoding.bytes, "big")


@given(encodings, rtts, rtts)
def test_encodings_are_monotone(encoding, one, other):
    low, high = sorted((one, other))
    assert encoding.encode(low) <= encoding.encode(high) <= encoding.largest_code
    assert encoding.decode(encoding.encode(low)) <= encoding.decode(encoding.encode(high))


@given(encodings, rtts)
def test_a_value_lies_in_its_bin(encoding, ms):
    low, high = encoding.edges(encoding.encode(ms))
    assert low - 1e-9 * low <= ms <= high + 1e-9 * high


@given(encodings, rtts, st.integers(0, 8))
def test_bins_of_byte_prefixes_hold_the_bins_below(encoding, ms, length):
    code = encoding.encode(ms)
    prefix = encoding.to_bytes(code)[: min(length, encoding.bytes)]
    low, high = encoding.prefix_edges(prefix)
    bin_low, bin_high = encoding.edges(code)
    assert low <= bin_low < bin_high <= high


@given(st.floats(0.001, MAX_RTT_MS))
def test_errors_are_as_documented(ms):
    micro = 0.0005 * (1 + 1e-9)  # rounding to whole µs
    assert abs(Compact().decode(Compact().encode(ms)) - ms) <= ms / 4096 + micro
    assert abs(Log().decode(Log().encode(ms)) - ms) <= (ms + 4.096) / 8124 + 2 * micro
    assert abs(rtt_encoding("micros").decode(rtt_encoding("micros").encode(ms)) - ms) <= micro
    assert rtt_encoding("float64").decode(rtt_encoding("float64").encode(ms)) == ms
    if ms <= 1000:
        assert abs(Clipped().decode(Clipped().encode(ms)) - ms) <= 0.008 + micro


def test_known_codes():
    compact = Compact()
    # 302,281.66 ms: 302281660 µs = 2306.226… << 17, so e = 18, m = 2306 - 2048.
    assert compact.encode(302_281.66) == (18 << 11) | 258
    assert compact.decode((18 << 11) | 258) == (2306 << 17) / 1000
    assert [compact.encode(ms) for ms in (0, 0.001, 2.047, 2.048, 4.095, 4.096)] == [
        0,
        1,
        2047,
        2048,
        4095,
        4096,
    ]
    assert [compact.encode(ms) for ms in (4.097, 4.098, 4.099)] == [4096, 4097, 4098]  # ties go to even
    assert [compact.encode(ms) for ms in (0.0005, 0.0015, 0.0025)] == [0, 2, 2]  # half a µs goes to even
    assert Log().encode(4.096) == 2816  # one octave above the offset of 4096 µs
    assert Log().decode(2 * 2816) == 3 * 4.096
    assert rtt_encoding("float64").encode(1.0) == 0x3FF0_0000_0000_0000
    assert rtt_encoding("micros").encode(1.0) == 1000
    assert Clipped(1000.0).step == 16
    assert Clipped(1000.0).encode(1.0) == 62  # 62.5 steps, to even


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_above_the_largest_saturates(encoding):
    largest = encoding.largest_ms
    assert encoding.encode(largest) == encoding.largest_code
    assert encoding.encode(1.7e308) in (encoding.largest_code, rtt_encoding("float64").encode(1.7e308))
    if encoding.name != "clipped":
        assert largest > MAX_RTT_MS
        assert encoding.encode(MAX_RTT_MS) < encoding.largest_code
    with pytest.raises(ValueError, match="is not a code of"):
        encoding.decode(encoding.largest_code + 1)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("ms", [math.nan, math.inf, -math.inf, -1e-9, -1.0, -2.0])
def test_what_is_no_rtt_is_refused(encoding, ms):
    with pytest.raises(ValueError, match="finite and not negative"):
        encoding.encode(ms)
    with pytest.raises(ValueError, match="finite and not negative"):
        codec.rtt_code(ms, encoding.id, encoding.clip_limit_ms)


def test_encodings_by_name_and_id():
    assert [rtt_encoding(name).id for name in RTT_ENCODINGS] == [0, 1, 2, 3, 4]
    assert [rtt_encoding(name).bytes for name in RTT_ENCODINGS] == [2, 8, 8, 2, 2]
    with pytest.raises(ValueError, match="choose one of compact, float64, micros, log, clipped"):
        rtt_encoding("gzip")
    for limit in (0.5, math.nan, 1e9):
        with pytest.raises(ValueError, match="clip limit"):
            rtt_encoding("clipped", limit)
    with pytest.raises(ValueError, match="no micros code begins with the bytes 01"):
        rtt_encoding("micros").prefix_edges(b"\x01")
    with pytest.raises(ValueError, match="single bins"):
        rtt_encoding("micros").edges_table()
