"""The compiled encoder writes what the plain one writes, to the token."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_strategies import ENCODINGS, contexts, encodings, packed_addresses, random_context, rtts

from ping_llm.measurements.addresses import Prefix, pack_one, parse_prefix
from ping_llm.measurements.schema import Measurement
from ping_llm.tokens import codec, reference, vocab
from ping_llm.tokens.columns import StatementColumns, columns_of, encode_columns
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import EncodeError, Statement, cut, state, whole
from ping_llm.tokens.vocab import DEFAULT_FIELDS, Field

PLAIN = Statement(
    order=DEFAULT_FIELDS,
    src=whole(pack_one("192.0.2.1")),
    dst=whole(pack_one("198.51.100.7")),
    seconds=1_700_000_000,
    rtt=12.345,
)


@given(contexts(), encodings)
def test_both_encoders_agree_on_a_context(context, encoding):
    check_agreement([context], encoding)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_both_encoders_agree_in_bulk(encoding):
    chance = Random(11)
    check_agreement([random_context(chance, chance.randint(0, 30)) for _ in range(100)], encoding)


def check_agreement(many, encoding):
    ids, offsets = encode_columns(StatementColumns.from_contexts(many), encoding)
    assert ids.dtype == np.int32
    assert ids.tolist() == [token for context in many for token in reference.encode(context, encoding)]
    statements = [statement for context in many for statement in context]
    assert len(offsets) == len(statements) + 1
    assert all(ids[start] == vocab.MEASUREMENT for start in offsets[:-1])
    assert ((ids > 0) & (ids < vocab.VOCABULARY_SIZE)).all()


@given(packed_addresses, st.integers(0, 15), st.integers(0, 2**62), st.integers(-1, 2**62), rtts, encodings)
def test_building_blocks_agree_with_the_reference(packed, known, seconds, previous, rtt, encoding):
    address = whole(packed)
    known = known if known < address.address_bits // 8 else 0
    row = np.frombuffer(packed, np.uint8)
    for dtype in (np.int32, np.uint16):
        out = np.zeros(80, dtype)
        end = codec.put_address(out, 5, 2, 3, row, known)
        assert out[5:end].tolist() == reference.encode_address(Field.SRC, cut(address, known))
        assert codec.address_length(row, known) == end - 5
        end = codec.put_time(out, 0, seconds, previous)
        assert out[:end].tolist() == reference.encode_time(seconds, previous if previous >= 0 else None)
        assert codec.time_length(seconds, previous) == end
        for value in (rtt, -1.0):
            end = codec.put_result(out, 0, value, encoding.id, encoding.clip_limit_ms)
            assert out[:end].tolist() == reference.encode_result(value, encoding)
            assert codec.result_length(value, encoding.id) == end


@pytest.mark.parametrize(
    ("delta", "role", "count"),
    [
        (0, vocab.TIME_DELTA1, 1),
        (255, vocab.TIME_DELTA1, 1),
        (256, vocab.TIME_DELTA4, 4),
        (2**32 - 1, vocab.TIME_DELTA4, 4),
        (2**32, vocab.TIME_ABS, 8),
        (-1, vocab.TIME_ABS, 8),
        (-1_000_000, vocab.TIME_ABS, 8),
    ],
)
def test_forms_of_time(delta, role, count):
    previous = 1_700_000_000
    out = np.zeros(9, np.int32)
    end = codec.put_time(out, 0, previous + delta, previous)
    written = previous + delta if role == vocab.TIME_ABS else delta
    assert out[:end].tolist() == [role, *(16 + byte for byte in written.to_bytes(count, "big"))]


def test_a_delta_is_to_the_last_stated_time():
    silent = replace(PLAIN, order=(Field.DST, Field.RESULT), seconds=1_700_009_999)
    later = replace(PLAIN, order=(Field.TIME, Field.RESULT), seconds=1_700_000_060)
    context = [PLAIN, silent, later]
    tokens = reference.encode(context)
    assert tokens[-5:-3] == [vocab.TIME_DELTA1, 16 + 60]
    assert encode_columns(StatementColumns.from_contexts([context]))[0].tolist() == tokens


def test_mapped_addresses_are_ipv4():
    packed = pack_one("::ffff:192.0.2.1")
    expected = [vocab.SRC_IPV4, 16 + 192, 16, 16 + 2, 16 + 1]
    assert reference.encode_address(Field.SRC, whole(packed)) == expected
    out = np.zeros(20, np.int32)
    end = codec.put_address(out, 0, vocab.SRC_IPV4, vocab.SRC_IPV6, np.frombuffer(packed, np.uint8), 0)
    assert out[:end].tolist() == expected


def test_optional_fields():
    out = np.zeros(20, np.int32)
    assert codec.put_size(out, 3, -1) == 3 == 3 + codec.size_length(-1)
    assert codec.put_errors(out, 3, -1) == 3 == 3 + codec.errors_length(-1)
    assert codec.put_msm_id(out, 3, -1) == 3 == 3 + codec.msm_id_length(-1)
    assert codec.put_size(out, 0, np.int32(1000)) == 3 == codec.size_length(1000)
    assert out[:3].tolist() == [vocab.SIZE, 16 + 3, 16 + 232]
    for errors, byte in ((0, 0), (255, 255), (256, 255), (2**31 - 1, 255)):
        assert codec.put_errors(out, 0, np.int32(errors)) == 2 == codec.errors_length(errors)
        assert out[:2].tolist() == [vocab.ERRORS, 16 + byte]
    assert codec.put_msm_id(out, 0, 2**63 - 1) == 9 == codec.msm_id_length(2**63 - 1)
    assert out[:9].tolist() == [vocab.MSM_ID, 16 + 127, *[16 + 255] * 7]
    assert codec.put_throughput(out, 3, -1) == 3 == 3 + codec.throughput_length(-1)
    assert codec.put_throughput(out, 0, 4094) == 4 == codec.throughput_length(4094)
    assert out[:4].tolist() == [vocab.EXTRA, 16 + 2, 16 + 15, 16 + 254]
    with pytest.raises(ValueError, match="65535"):
        codec.put_size(out, 0, 65_536)
    with pytest.raises(ValueError, match="4094"):
        codec.put_throughput(out, 0, 4095)


REFUSED = [
    ({"rtt": math.nan}, "rtt of nan"),
    ({"rtt": math.inf}, "rtt of inf"),
    ({"rtt": -math.inf}, "rtt of -inf"),
    ({"rtt": -0.001}, "rtt of -0.001"),
    ({"rtt": -2.0}, "rtt of -2"),
    ({"seconds": -2}, "time of -2"),
    ({"seconds": vocab.LARGEST_SECONDS + 1}, f"time of {vocab.LARGEST_SECONDS + 1}"),
    ({"size": 65_536}, "size of 65536"),
    ({"size": -2}, "size of -2"),
    ({"errors": -2}, "count of -2"),
    ({"msm_id": -2}, "id of -2"),
    ({"throughput": -2.0}, "throughput of -2"),
    ({"throughput": math.nan}, "throughput of nan"),
    ({"throughput": math.inf}, "throughput of inf"),
    ({"order": (Field.SRC,)}, "two fields|least 2 fields"),
    ({"order": ()}, "two fields|least 2 fields"),
    ({"order": (Field.DST, Field.SIZE)}, "two fields|least 2 fields"),
    ({"order": (Field.DST, Field.DST, Field.RESULT)}, "twice|at most once"),
    ({"src": None}, "source of -1 known|has none"),
    ({"seconds": None}, "time of -1|has none"),
    ({"rtt": None}, "rtt of nan|has none"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_both_encoders_refuse_what_has_no_tokens(change, reason):
    bad = replace(PLAIN, **change)
    with pytest.raises(EncodeError, match=reason):
        reference.encode([PLAIN, bad])
    with pytest.raises(EncodeError, match=f"measurement 1: .*({reason})"):
        encode_columns(StatementColumns.from_contexts([[PLAIN, bad]]))


@pytest.mark.parametrize("rtt", [math.nan, math.inf, -0.5, -2.0])
@pytest.mark.parametrize("encoding_id", range(5))
def test_the_kernel_refuses_too(rtt, encoding_id):
    with pytest.raises(ValueError, match="finite and not negative"):
        codec.put_result(np.zeros(9, np.int32), 0, rtt, encoding_id, 1000.0)


def test_prefixes_are_whole_bytes_of_the_address():
    assert cut(PLAIN.src, 3) == parse_prefix("192.0.2.0/24")
    assert cut(whole(pack_one("2001:db8::1")), 4) == parse_prefix("2001:db8::/32")
    row = np.frombuffer(PLAIN.src.packed, np.uint8)
    for known in (-1, 4, 16):
        with pytest.raises(EncodeError, match="1 to 3"):
            cut(PLAIN.src, known)
        with pytest.raises(ValueError, match="known_bytes"):
            codec.put_address(np.zeros(20, np.int32), 0, 2, 3, row, known)
    with pytest.raises(EncodeError, match="must end at a byte"):
        reference.encode([replace(PLAIN, dst=parse_prefix("192.0.0.0/20"))])
    with pytest.raises(EncodeError, match="must end at a byte"):
        reference.encode([replace(PLAIN, dst=Prefix(pack_one("0.0.0.0"), 96))])
    columns = StatementColumns.from_contexts([[PLAIN]])
    columns.dst_known[0] = 4
    with pytest.raises(EncodeError, match="destination of 4 known bytes"):
        encode_columns(columns)


def test_columns_as_probe_rows_have_them():
    rows = columns_of(
        src=np.tile(np.frombuffer(PLAIN.src.packed, np.uint8), (2, 1)),
        dst=np.tile(np.frombuffer(PLAIN.dst.packed, np.uint8), (2, 1)),
        time=np.array([1_700_000_000_999_999, 1_700_000_001_000_000]),
        rtt=np.array([12.345, -1.0]),
        size=np.array([64, -1], np.int32),
        order=(*DEFAULT_FIELDS, Field.SIZE),
    )
    ids, offsets = encode_columns(rows, rtt_encoding("log"))
    order = (*DEFAULT_FIELDS, Field.SIZE)
    both = [
        replace(PLAIN, order=order, size=64),
        replace(PLAIN, order=order, seconds=1_700_000_001, rtt=-1.0),
    ]
    assert ids.tolist() == reference.encode(both, rtt_encoding("log"))
    assert offsets.tolist() == [0, 26, len(ids)]


def test_a_measurement_of_the_api_becomes_a_statement():
    measurement = Measurement(
        datetime(2023, 11, 14, 22, 13, 20, 900_000, UTC), "192.0.2.1", "198.51.100.7", 12.345, size=64
    )
    assert state(measurement) == replace(PLAIN, size=64)


def test_numbers_may_be_numpys():
    numbers = {"seconds": np.int64(1_700_000_000), "rtt": np.float64(12.345), "size": np.int32(64)}
    assert reference.encode([replace(PLAIN, **numbers)]) == reference.encode([PLAIN])


def test_no_statements_no_tokens():
    ids, offsets = encode_columns(StatementColumns.from_contexts([]))
    assert ids.tolist() == reference.encode([]) == []
    assert offsets.tolist() == [0]
