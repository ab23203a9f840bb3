"""Random statements, contexts and encodings, with the edges drawn often."""

from hypothesis import strategies as st

from ping_llm.addresses import MAPPED_PREFIX
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import Statement, cut, whole
from ping_llm.tokens.vocab import LARGEST_SECONDS, Field

ENCODINGS = [
    rtt_encoding("compact"),
    rtt_encoding("float64"),
    rtt_encoding("micros"),
    rtt_encoding("log"),
    rtt_encoding("clipped"),
    rtt_encoding("clipped", 99.9),
]

RTT_EDGES = [
    *(0.0, -0.0, 5e-324, 0.0005, 0.001, 0.0015, 2.0475, 2.048, 4.095, 4.0955, 4.096, 4.097, 8.191, 8.1925),
    *(99.9, 999.992, 999.993, 1000.0, 302_281.66, 3_600_000.0, 41_499_416.964, 41_503_000.0, 2**32 / 1000),
    *(4_396_972_769.28, 4_398_046_511.104, (2**48 - 1) / 1000, 2.0**50, 1.7976931348623157e308),
]

rtts = st.one_of(
    st.sampled_from(RTT_EDGES),
    st.floats(0, 500),
    st.floats(-4, 7).map(lambda exponent: 10**exponent),
    st.integers(0, 4_000_000).map(lambda micros: micros / 1000),
    st.integers(0, 8_000_000).map(lambda halves: halves / 2000),
    st.floats(0, allow_infinity=False),
)

packed_addresses = st.one_of(
    st.binary(min_size=4, max_size=4).map(lambda tail: MAPPED_PREFIX + tail),
    st.binary(min_size=16, max_size=16),
    # One byte from being IPv4-mapped, or looking like it.
    st.binary(min_size=4, max_size=4).map(lambda tail: bytes(10) + b"\xff\xfe" + tail),
    st.binary(min_size=4, max_size=4).map(lambda tail: bytes(9) + b"\x01\xff\xff" + tail),
    st.sampled_from([bytes(16), bytes([255] * 16), bytes(15) + b"\x01", MAPPED_PREFIX + bytes(4)]),
)


@st.composite
def addresses(draw):
    address = whole(draw(packed_addresses))
    return cut(address, draw(st.one_of(st.just(0), st.integers(0, address.address_bits // 8 - 1))))


seconds = st.one_of(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 2**32 - 1, 2**32, LARGEST_SECONDS]),
    st.integers(0, LARGEST_SECONDS),
)
deltas = st.one_of(
    st.sampled_from([0, 1, 255, 256, 2**32 - 1, 2**32, -1, -256, -(2**32)]), st.integers(-(2**33), 2**33)
)


def unknown_or(values):
    return st.one_of(st.none(), values)


@st.composite
def contexts(draw, max_size=6):
    """Statements as an encoder is given them: with None for unknown optional fields, in any order."""
    statements = []
    clock = draw(seconds)
    for _ in range(draw(st.integers(0, max_size))):
        clock = min(max(clock + draw(deltas), 0), LARGEST_SECONDS)
        required = st.sampled_from([Field.SRC, Field.DST, Field.TIME, Field.RESULT])
        stated = set(draw(st.lists(required, min_size=2, max_size=4, unique=True)))
        stated |= set(draw(st.lists(st.sampled_from(list(Field)), max_size=7)))
        statements.append(
            Statement(
                order=tuple(draw(st.permutations(sorted(stated)))),
                src=draw(addresses()),
                dst=draw(addresses()),
                seconds=clock,
                rtt=draw(st.one_of(st.just(-1.0), rtts)),
                size=draw(unknown_or(st.one_of(st.sampled_from([0, 65_535]), st.integers(0, 65_535)))),
                errors=draw(unknown_or(st.one_of(st.sampled_from([0, 255, 256]), st.integers(0, 2**31 - 1)))),
                msm_id=draw(
                    unknown_or(st.one_of(st.sampled_from([0, 2**63 - 1]), st.integers(0, 2**63 - 1)))
                ),
            )
        )
    return statements


encodings = st.sampled_from(ENCODINGS)
