"""Random statements, contexts and encodings, with the edges drawn often."""

from random import Random

from hypothesis import strategies as st

from ping_llm.measurements.addresses import MAPPED_PREFIX
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
    st.integers(0, 8_000_000).map(lambda halves: halves / 2000),
    st.floats(0, 500),
    st.floats(0, allow_infinity=False),
)

# How an address begins: IPv4, one byte from being IPv4-mapped or looking like it, or anything.
_BEGINNINGS = (
    MAPPED_PREFIX,
    b"",
    b"",
    bytes(10) + b"\xff\xfe",
    bytes(9) + b"\x01\xff\xff",
    bytes(12),
    b"\xff" * 15,
)

packed_addresses = st.tuples(st.sampled_from(_BEGINNINGS), st.binary(min_size=16, max_size=16)).map(
    lambda parts: (parts[0] + parts[1])[:16]
)
addresses = st.tuples(packed_addresses, st.integers(-16, 15)).map(lambda parts: _cut_if_possible(*parts))

_EDGE_DELTAS = (0, 1, 255, 256, 2**32 - 1, 2**32, -1, -256, -(2**32), LARGEST_SECONDS, -LARGEST_SECONDS)
deltas = st.one_of(st.sampled_from(_EDGE_DELTAS), st.integers(-(2**33), 2**33))


def _cut_if_possible(packed, known_bytes):
    address = whole(packed)
    return cut(address, known_bytes if 0 <= known_bytes < address.address_bits // 8 else 0)


def _with_edges(largest, *edges):
    return st.one_of(st.none(), st.sampled_from([0, largest, *edges]), st.integers(0, largest))


_sizes, _errors, _ids = _with_edges(65_535), _with_edges(2**31 - 1, 255, 256), _with_edges(2**63 - 1)
_probes = _with_edges(2**32 - 1)
THROUGHPUT_EDGES = [
    *(0.0, 0.0004, 0.0005, 0.001, 0.127, 0.1275, 0.128, 0.255, 0.2555, 0.256, 0.257, 0.511, 94.3, 1000.0),
    *(272_730_423.296, 272_999_999.0, 1e12, 1.7976931348623157e308),
]
_throughputs = st.one_of(
    st.none(),
    st.sampled_from(THROUGHPUT_EDGES),
    st.integers(0, 10_000).map(lambda halves: halves / 2000),
    st.floats(0, allow_infinity=False),
)


@st.composite
def contexts(draw, max_size=4):
    """Statements as an encoder is given them: any order, None for unknown optional fields."""
    statements = []
    clock = 0
    for _ in range(draw(st.integers(0, max_size))):
        clock = min(max(clock + draw(deltas), 0), LARGEST_SECONDS)
        order = draw(st.permutations(list(Field)))[: draw(st.integers(2, len(Field)))]
        values = [draw(_sizes), draw(_errors), draw(_ids), draw(_probes), draw(_throughputs)]
        for field in order[:2]:  # two fields at least must be known
            if field >= Field.SIZE and values[field - Field.SIZE] is None:
                values[field - Field.SIZE] = 7
        rtt = draw(st.one_of(st.just(-1.0), rtts))
        statements.append(Statement(tuple(order), draw(addresses), draw(addresses), clock, rtt, *values))
    return statements


encodings = st.sampled_from(ENCODINGS)


def random_context(chance: Random, count: int) -> list[Statement]:
    """The same kind of context from a seeded generator: a hundred times as fast, for tests in bulk."""

    def address():
        packed = (chance.choice(_BEGINNINGS) + chance.randbytes(16))[:16]
        return _cut_if_possible(packed, chance.randint(-16, 15))

    statements = []
    clock = chance.randrange(2**32)
    for _ in range(count):
        delta = chance.choice([*_EDGE_DELTAS, chance.randint(0, 300), chance.randint(0, 10**6)])
        clock = min(max(clock + delta, 0), LARGEST_SECONDS)
        statements.append(
            Statement(
                order=(
                    *chance.sample(list(Field)[:4], 2),
                    *chance.sample(list(Field)[4:], chance.randint(0, 5)),
                ),
                src=address(),
                dst=address(),
                seconds=clock,
                rtt=chance.choice(
                    [-1.0, chance.choice(RTT_EDGES), chance.random() * 500, 10 ** chance.uniform(-4, 7)]
                ),
                size=chance.choice([None, 0, 65_535, chance.randrange(65_536)]),
                errors=chance.choice([None, 0, 255, 256, chance.randrange(2**31)]),
                msm_id=chance.choice([None, 0, 2**63 - 1, chance.randrange(2**63)]),
                probe_id=chance.choice([None, 0, 2**32 - 1, chance.randrange(2**32)]),
                throughput=chance.choice([None, *THROUGHPUT_EDGES, chance.random() * 1000]),
            )
        )
    return statements
