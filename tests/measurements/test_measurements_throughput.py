"""The code of a throughput: what docs/formats.md says, the kernel as the plain function."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.measurements.throughput import LARGEST_CODE, mbps_of, plain_code, stored_mbps
from ping_llm.measurements.throughput_kernels import stored_codes, throughput_code

EDGES = [0.0, 0.0005, 0.0015, 0.127, 0.1275, 0.1285, 0.255, 0.2555, 0.256, 0.257, 0.259, 94.3, 1e8, 1e300]
throughputs = st.one_of(
    st.sampled_from(EDGES),
    st.integers(0, 1 << 40).map(lambda halves: halves / 2000),
    st.floats(0, allow_infinity=False),
)


@given(throughputs)
def test_the_kernel_is_the_plain_function(mbps):
    assert throughput_code(mbps) == plain_code(mbps)
    assert stored_codes(np.array([mbps, -1.0])).tolist() == [plain_code(mbps) + 1, 0]


def test_every_code_comes_back_and_a_larger_one_is_more():
    values = [mbps_of(code) for code in range(LARGEST_CODE + 1)]
    assert [plain_code(value) for value in values] == [*range(LARGEST_CODE + 1)]
    assert all(low < high for low, high in pairwise(values))
    stored = np.arange(LARGEST_CODE + 2, dtype=np.uint16)
    assert stored_mbps(stored).tolist() == [-1.0, *values]
    assert (stored_codes(stored_mbps(stored)) == stored).all()


@given(st.floats(0.0005, 2.7e8))
def test_the_error_is_what_the_format_promises(mbps):
    back = mbps_of(plain_code(mbps))
    kbits = round(mbps * 1000)
    if kbits < 256:
        assert back == kbits / 1000
    else:
        assert abs(back * 1000 - kbits) * 256 <= kbits


def test_what_is_no_throughput_has_no_code():
    for bad in (math.nan, math.inf, -1.0, -0.5):
        with pytest.raises(ValueError, match="finite and not negative"):
            plain_code(bad)
    for code in (-1, LARGEST_CODE + 1):
        with pytest.raises(ValueError, match="0 to 4094"):
            mbps_of(code)
