"""bench encodings: what is compared is over the same bins, and the whole of it runs."""

import numpy as np
import pytest

from ping_llm.bench.encodings import EncodingsBench, beyond_bits, measure
from ping_llm.errors import UsageError
from ping_llm.measurements.schema import MAX_RTT_MS
from ping_llm.tokens.rtt import RTT_ENCODINGS, rtt_encoding


def test_saying_only_above_the_limit_costs_the_bins_above_it():
    rtt = np.array([-1.0, 20.0, 1000.0, 1000.5, 60_000.0])
    for name in RTT_ENCODINGS:
        bits = beyond_bits(rtt_encoding(name, 1000.0), rtt)
        expected = np.log2(MAX_RTT_MS - 1000) if name == "clipped" else 0.0
        np.testing.assert_allclose(bits, [0, 0, 0, expected, expected])


def test_an_unknown_encoding_is_named():
    with pytest.raises(UsageError, match="no RTT encoding 'morse'"):
        measure(EncodingsBench(encodings=("compact", "morse")))


@pytest.mark.slow
def test_the_whole_of_it(tmp_path):
    figures = measure(
        EncodingsBench(("log",), steps=2, batch=2, layers=1, width=32, questions=2), keep=tmp_path
    )
    assert figures["questions"] == {"later": 2, "pairs": 2}
    assert figures["encodings"]["log"]["bytes"] == 2
    for test in ("later", "pairs"):
        assert figures["encodings"]["log"][test]["seconds_per_question"] > 0
        assert figures["reference"]["truth"][test]["bits"] < figures["encodings"]["log"][test]["bits"] <= 64
