"""Decoding is total: fields, or an error at the first token that cannot be right. Two decoders agree."""

import random
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from compiled_decoder import decode_columns
from hypothesis import given
from hypothesis import strategies as st
from token_strategies import ENCODINGS, contexts, encodings, random_context

from ping_llm.measurements.addresses import parse_prefix
from ping_llm.measurements.throughput import mbps_of, plain_code
from ping_llm.tokens import reference
from ping_llm.tokens.columns import NO_FIELD, NOT_STATED, StatementColumns
from ping_llm.tokens.reference import DecodeError, Problem
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import BYTE0, ROLE_NAMES, VOCABULARY_SIZE, Field


def ids_of(text: str) -> list[int]:
    """Tokens by name, bytes in hexadecimal; other words are ids as they are."""
    named = {name: index for index, name in enumerate(ROLE_NAMES)} | {"M": 1, "T": 6}
    return [named[word] if word in named else BYTE0 + int(word, 16) for word in text.split()]


def outcome(decode, ids, encoding):
    """Statements, or the error's problem, position and sentence."""
    try:
        return decode(ids, encoding)
    except DecodeError as error:
        return error.problem, error.position, error.reason


def decode_compiled(ids, encoding):
    return statements_of(decode_columns(ids, encoding))


def statements_of(c: StatementColumns) -> list[Statement]:
    statements = []
    for row in range(len(c)):

        def known(values, row=row):
            return None if values[row] == -1 else int(values[row])

        def address(packed, known_bytes, row=row):
            if known_bytes[row] == NOT_STATED:
                return None
            whole = reference.Prefix(packed[row].tobytes(), 128)
            bits = whole.address_bits if known_bytes[row] == 0 else 8 * int(known_bytes[row])
            return replace(whole, bits=bits)

        statements.append(
            Statement(
                order=tuple(Field(field) for field in c.order[row] if field != NO_FIELD),
                src=address(c.src, c.src_known),
                dst=address(c.dst, c.dst_known),
                seconds=known(c.seconds),
                rtt=None if np.isnan(c.rtt[row]) else float(c.rtt[row]),
                size=known(c.size),
                errors=known(c.errors),
                msm_id=known(c.msm_id),
                probe_id=known(c.probe_id),
                throughput=None if c.throughput[row] == -1 else float(c.throughput[row]),
            )
        )
    return statements


def expected(context, encoding):
    """What decoding must restore: what was stated, the inherited source, the quantised RTT."""
    source = None
    for statement in context:
        order = tuple(field for field in statement.order if statement.value(field) is not None)
        source = statement.src if Field.SRC in order else source
        rtt = statement.rtt
        if rtt != -1.0:
            rtt = encoding.decode(encoding.encode(rtt))
        yield Statement(
            order=order,
            src=source,
            dst=statement.dst if Field.DST in order else None,
            seconds=statement.seconds if Field.TIME in order else None,
            rtt=rtt if Field.RESULT in order else None,
            size=statement.size if Field.SIZE in order else None,
            errors=min(statement.errors, 255) if Field.ERRORS in order else None,
            msm_id=statement.msm_id if Field.MSM_ID in order else None,
            probe_id=statement.probe_id if Field.PROBE_ID in order else None,
            throughput=mbps_of(plain_code(statement.throughput)) if Field.THROUGHPUT in order else None,
        )


@given(contexts(), encodings)
def test_decoding_restores_sources_and_times(context, encoding):
    ids = reference.encode(context, encoding)
    restored = list(expected(context, encoding))
    assert reference.decode(ids, encoding) == restored
    assert decode_compiled(ids, encoding) == restored
    assert reference.encode(restored, encoding) == ids


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_many_contexts_at_once_inherit_nothing_from_each_other(encoding):
    chance = random.Random(5)
    many = [random_context(chance, chance.randint(0, 20)) for _ in range(50)]
    encoded = [reference.encode(context, encoding) for context in many]
    starts = np.cumsum([0, *map(len, encoded)])[:-1]
    columns = decode_columns(np.array([*chain(*encoded)], np.int32), encoding, starts)
    assert statements_of(columns) == [s for context in many for s in expected(context, encoding)]
    firsts = [index == 0 for context in many for index in range(len(context))]
    assert columns.first.tolist() == firsts


@given(st.lists(st.integers(-3, VOCABULARY_SIZE + 2), max_size=60), encodings)
def test_random_sequences_decode_or_say_where_not(ids, encoding):
    assert outcome(reference.decode, ids, encoding) == outcome(decode_compiled, ids, encoding)


def test_mutated_and_truncated_sequences_decode_or_say_where_not():
    chance = random.Random(9)
    for _ in range(1500):
        encoding = chance.choice(ENCODINGS)
        ids = reference.encode(random_context(chance, chance.randint(0, 3)), encoding)
        ids = ids[: chance.choice([len(ids), chance.randint(0, len(ids))])]
        for _ in range(chance.randint(0, 3)):
            mutate(ids, chance)
        check_total(ids, encoding)


def mutate(ids: list[int], chance: random.Random) -> None:
    at = chance.randint(0, len(ids))
    kind = chance.randint(0, 3)
    token = chance.choice(
        [chance.randint(0, 15), chance.randint(16, 271), chance.choice([-1, 272, 10**30, 16, 271])]
    )
    if kind == 0:
        ids.insert(at, token)
    elif kind == 1 and ids:
        del ids[at % len(ids)]
    elif kind == 2 and ids:
        ids[at % len(ids)] = token
    elif ids:
        other = chance.randint(0, len(ids))
        ids[at:at] = ids[min(at, other) : max(at, other)]


def check_total(ids, encoding):
    plain = outcome(reference.decode, ids, encoding)
    assert outcome(decode_compiled, ids, encoding) == plain
    if isinstance(plain, list):
        assert reference.decode(reference.encode(plain, encoding), encoding) == plain
        return
    problem, position, reason = plain
    assert 0 <= position <= len(ids)
    assert reason
    if position < len(ids):
        # The tokens before it can still become right, it cannot: cut off there, nothing but the end is wrong.
        ending = outcome(reference.decode, ids[:position], encoding)
        assert isinstance(ending, list) or ending[0] in (Problem.TRUNCATED, Problem.TOO_FEW_FIELDS)
        assert isinstance(ending, list) or ending[1] == position
        assert outcome(reference.decode, ids[: position + 1], encoding)[:2] == (problem, position)


def test_fuzz_grammar_like_noise():
    """Plain random ids fail at the first token: noise made of the right roles gets deeper."""
    chance = random.Random(7)
    whole = 0
    problems = set()
    for _ in range(3000):
        encoding = chance.choice(ENCODINGS)
        ids = [1]
        for _ in range(chance.randint(0, 12)):
            role = chance.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, chance.randint(0, 15)])
            lengths = {2: 4, 3: 16, 4: 4, 5: 16, 6: 8, 7: 1, 8: 4, 9: encoding.bytes, 12: 2, 13: 1, 14: 8}
            count = lengths.get(role, 0)
            if chance.random() < 0.1:
                count = chance.randint(0, 17)
            ids.append(role)
            ids += [
                BYTE0 + (chance.choice([0, 0, 255]) if chance.random() < 0.7 else chance.randrange(256))
            ] * count
            if role in (2, 3, 4, 5) and chance.random() < 0.3:
                ids[-1:] = [11]
        result = outcome(reference.decode, ids, encoding)
        assert outcome(decode_compiled, ids, encoding) == result
        if isinstance(result, list):
            whole += 1
        else:
            problems.add(result[0])
    assert whole > 100
    # NOT_AN_ID and NO_MEASUREMENT cannot arise here; a mapped address is too rare.
    assert problems >= set(Problem) - {Problem.NOT_AN_ID, Problem.NO_MEASUREMENT, Problem.MAPPED_ADDRESS}


V4 = "SRC_IPV4 c0 00 02 01"
NOW = "T 00 00 00 00 65 53 f1 00"
WRONG = [
    ("FAILED", Problem.NO_MEASUREMENT, 0),
    ("PAD", Problem.PADDING, 0),
    ("00", Problem.NO_MEASUREMENT, 0),
    (f"M {V4} FAILED PAD", Problem.PADDING, 7),
    ("M SRC_IPV4 c0 PAD", Problem.PADDING, 3),
    ("M EXTRA 03", Problem.RESERVED, 2),
    ("M EXTRA 00 01", Problem.RESERVED, 2),
    ("M EXTRA RTT", Problem.MISSING_BYTE, 2),
    ("M EXTRA", Problem.TRUNCATED, 2),
    ("M EXTRA 01 00 00 00", Problem.TRUNCATED, 6),
    ("M EXTRA 01 00 00 00 07 EXTRA", Problem.TRUNCATED, 8),
    ("M EXTRA 01 00 00 00 07 EXTRA 01", Problem.REPEATED_FIELD, 8),
    ("M EXTRA 02 00 07 EXTRA 02", Problem.REPEATED_FIELD, 6),
    ("M EXTRA 01 00 00 00 07 EXTRA 02 00 07 EXTRA", Problem.REPEATED_FIELD, 11),
    ("M EXTRA 02 00", Problem.TRUNCATED, 4),
    ("M EXTRA 02 10", Problem.OUT_OF_RANGE, 3),
    ("M EXTRA 02 0f ff", Problem.OUT_OF_RANGE, 4),
    ("M FAILED 00", Problem.STRAY_BYTE, 2),
    (f"M {V4} 05", Problem.STRAY_BYTE, 6),
    (f"M {V4} PREFIX_END", Problem.STRAY_PREFIX_END, 6),
    ("M SRC_IPV4 PREFIX_END", Problem.STRAY_PREFIX_END, 2),
    ("M RTT 00 PREFIX_END", Problem.STRAY_PREFIX_END, 3),
    ("M RTT 00 FAILED", Problem.MISSING_BYTE, 3),
    ("M SRC_IPV4 c0 00 DST_IPV4", Problem.MISSING_BYTE, 4),
    ("M RTT 00 MEASUREMENT", Problem.MISSING_BYTE, 3),
    ("M RTT 00 00 FAILED", Problem.REPEATED_FIELD, 4),
    ("M FAILED FAILED", Problem.REPEATED_FIELD, 2),
    (f"M {V4} SRC_IPV6", Problem.REPEATED_FIELD, 6),
    (f"M {NOW} TIME_DELTA1", Problem.REPEATED_FIELD, 10),
    ("M ERRORS 00 ERRORS", Problem.REPEATED_FIELD, 3),
    ("M", Problem.TOO_FEW_FIELDS, 1),
    ("M M", Problem.TOO_FEW_FIELDS, 1),
    ("M FAILED", Problem.TOO_FEW_FIELDS, 2),
    ("M FAILED M", Problem.TOO_FEW_FIELDS, 2),
    (f"M {V4} RTT 00", Problem.TRUNCATED, 8),
    (f"M {V4} RTT", Problem.TRUNCATED, 7),
    ("M SRC_IPV6 20 01", Problem.TRUNCATED, 4),
    (f"M {V4} TIME_DELTA1", Problem.NO_EARLIER_TIME, 6),
    (f"M {V4} FAILED M FAILED TIME_DELTA4", Problem.NO_EARLIER_TIME, 9),
    ("M T 00 01", Problem.OUT_OF_RANGE, 3),
    ("M T 00 00 08 63 7b d0 5a f7", Problem.OUT_OF_RANGE, 9),  # a second after the last of timestamp[us]
    ("M FAILED T 00 00 08 63 7b d0 5a f6 M FAILED TIME_DELTA1 01", Problem.OUT_OF_RANGE, 14),
    ("M FAILED T 00 00 08 63 7b d0 5a f0 M FAILED TIME_DELTA4 00 00 00 07", Problem.OUT_OF_RANGE, 17),
    ("M MSM_ID 80", Problem.OUT_OF_RANGE, 2),
    ("M DST_IPV6 00 00 00 00 00 00 00 00 00 00 ff ff", Problem.MAPPED_ADDRESS, 13),
]


@pytest.mark.parametrize(("text", "problem", "position"), WRONG)
def test_errors_are_precise(text, problem, position):
    for decode in (reference.decode, decode_compiled):
        assert outcome(decode, ids_of(text), rtt_encoding())[:2] == (problem, position)


@pytest.mark.parametrize(
    ("encoding", "text", "position"),
    [
        ("float64", "M RTT 7f f0", 3),  # infinity
        ("float64", "M RTT 80", 2),  # negative
        ("micros", "M RTT 00 01", 3),  # 2^48 µs
        ("clipped", "M RTT f4 25", 3),  # 62,501 steps of 16 µs
    ],
)
def test_codes_above_the_largest_are_errors(encoding, text, position):
    for decode in (reference.decode, decode_compiled):
        result = outcome(decode, ids_of(text), rtt_encoding(encoding))
        assert result[:2] == (Problem.OUT_OF_RANGE, position)


@pytest.mark.parametrize("bad", [-1, 272, 2**63, -(2**70), 1.5, 1.0, None, "1", float("nan")])
def test_what_is_no_id_is_an_error(bad):
    for ids in ([bad], [1, 10, bad], [1, 9, bad]):
        for decode in (reference.decode, decode_compiled):
            problem, position, reason = outcome(decode, ids, rtt_encoding())
            assert (problem, position) == (Problem.NOT_AN_ID, len(ids) - 1)
            assert str(bad) in reason


def test_arrays_of_any_integers_decode():
    ids = ids_of(f"M {V4} FAILED")
    for dtype in (np.int32, np.uint16, np.uint64, np.int64):
        assert reference.decode(np.array(ids, dtype)) == decode_compiled(np.array(ids, dtype), rtt_encoding())
    for huge in (np.array([2**64 - 1], np.uint64), np.array([-1], np.int8)):
        for decode in (reference.decode, decode_compiled):
            assert outcome(decode, huge, rtt_encoding())[:2] == (Problem.NOT_AN_ID, 0)


def test_a_sentence_names_token_and_place():
    with pytest.raises(
        DecodeError, match=r"^token 4: DST_IPV4 after 2 bytes of SRC_IPV4: more bytes are due$"
    ):
        reference.decode(ids_of("M SRC_IPV4 c0 00 DST_IPV4"))
    with pytest.raises(DecodeError, match=r"^token 3: the sequence ends after 1 bytes of RTT$"):
        reference.decode(ids_of("M RTT 00"))


def test_inheriting():
    first, second, third, fourth = reference.decode(
        ids_of(f"M SRC_IPV4 cb 00 71 PREFIX_END {NOW} M DST_IPV4 01 02 03 04 FAILED M TIME_DELTA1 05 FAILED")
        + ids_of("M SRC_IPV4 01 01 01 01 TIME_DELTA4 00 00 00 01")
    )
    assert first.src == second.src == third.src == parse_prefix("203.0.113.0/24")
    assert second.seconds is None
    assert third.seconds == 0x6553F100 + 5
    assert third.dst is None
    assert (fourth.src, fourth.seconds) == (parse_prefix("1.1.1.1"), 0x6553F100 + 6)
    assert reference.decode(ids_of("M DST_IPV4 01 02 03 04 FAILED"))[0].src is None
