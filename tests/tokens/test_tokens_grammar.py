"""The masks and the decoder draw the same line."""

import random

import numpy as np
import pytest
from hypothesis import given
from token_strategies import ENCODINGS, contexts, encodings, random_context

from ping_llm.measurements.addresses import parse_prefix
from ping_llm.tokens import reference, vocab
from ping_llm.tokens.grammar import Grammar
from ping_llm.tokens.reference import DecodeError
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import DEFAULT_FIELDS, VOCABULARY_SIZE, Field


def first_forbidden(ids, encoding):
    """Index of the first token that a mask forbids, or the length if the context may not end; else None."""
    place = Grammar(encoding)
    for index, token in enumerate(ids):
        if not (0 <= token < VOCABULARY_SIZE) or not place.allowed()[token]:
            return index
        place = place.after(token)
    return None if place.may_end else len(ids)


def error_position(ids, encoding):
    try:
        reference.decode(ids, encoding)
    except DecodeError as error:
        return error.position
    return None


@given(contexts(max_size=2), encodings)
def test_whatever_is_encoded_is_allowed(context, encoding):
    assert first_forbidden(reference.encode(context, encoding), encoding) is None


def test_the_first_forbidden_token_is_the_decoders_error():
    chance = random.Random(13)
    for _ in range(400):
        encoding = chance.choice(ENCODINGS)
        ids = reference.encode(random_context(chance, chance.randint(0, 2)), encoding)
        ids = ids[: chance.randint(0, len(ids))]
        for _ in range(chance.randint(0, 2)):
            noise = chance.choice([chance.randint(-1, 15), chance.randint(16, 272)])
            ids.insert(chance.randint(0, len(ids)), noise)
        assert first_forbidden(ids, encoding) == error_position(ids, encoding)


def test_random_walks_along_the_masks_decode():
    chance = random.Random(3)
    generator = np.random.default_rng(3)
    measurements = 0
    for _ in range(40):
        encoding = chance.choice(ENCODINGS)
        # Bytes at the edges of their range: numbers at their largest, addresses close to IPv4-mapped.
        extreme = chance.random() < 0.5
        place, ids = Grammar(encoding), []
        for _ in range(90):
            assert (error_position(ids, encoding) is None) == place.may_end
            choices = np.flatnonzero(place.allowed())
            assert len(choices)
            token = int(chance.choice([choices[0], choices[-1]]) if extreme else generator.choice(choices))
            ids.append(token)
            place = place.after(token)
        position = error_position(ids, encoding)
        assert position in (None, len(ids))
        measurements += ids.count(vocab.MEASUREMENT)
    assert measurements > 100


def test_every_forbidden_token_is_an_error_and_every_allowed_one_is_not():
    """At places of every kind, all 272 tokens are tried."""
    for encoding in ENCODINGS:
        for prefix in (
            [],
            [1],
            [1, 10],
            [1, 9],
            [1, 9, 16 + 0x7F],
            [1, 9, 16 + 0xF4],
            [1, 6, 16, 16, 16 + 8],
            [1, 14],
            [1, 15],
            [1, 15, 17],
            [1, 15, 18],
            [1, 15, 18, 16 + 15],
            [1, 15, 18, 16, 16 + 9, 15],
            [1, 15, 17, 16, 16, 16, 16, 15],
            [1, 15, 17, 16, 16, 16, 16, 15, 18, 16, 16],
            [1, 3, *[16] * 10, 271],
            [1, 2],
            [1, 2, 17],
            [1, 10, 6, 16, 16, *[16] * 6, 1, 7],
            [1, 10, 2, 17, 11],
        ):
            if error_position(prefix, encoding) not in (None, len(prefix)):
                continue
            allowed = Grammar(encoding).follow(prefix).allowed()
            for token in range(VOCABULARY_SIZE):
                position = error_position([*prefix, token], encoding)
                assert (position != len(prefix)) == allowed[token], (encoding, prefix, token)


def test_a_model_knows_only_its_fields():
    place = Grammar(fields=frozenset(DEFAULT_FIELDS)).after(vocab.MEASUREMENT)
    allowed = set(np.flatnonzero(place.allowed()).tolist())
    assert allowed == {2, 3, 4, 5, vocab.TIME_ABS, vocab.RTT, vocab.FAILED}
    place = place.follow([vocab.FAILED, vocab.TIME_ABS, *[16] * 8])
    assert place.may_end
    assert place.previous_seconds == 0
    assert set(np.flatnonzero(place.allowed()).tolist()) == {1, 2, 3, 4, 5}
    deltas = place.after(vocab.MEASUREMENT).allowed()[[vocab.TIME_DELTA1, vocab.TIME_DELTA4]]
    assert deltas.all()
    with pytest.raises(ValueError, match="may not come"):
        place.after(vocab.RTT)
    with pytest.raises(ValueError, match="may not come"):
        place.after(-1)
    with pytest.raises(ValueError, match="at least 2"):
        Grammar(fields=frozenset([Field.RESULT]))


def test_one_can_begin_in_the_middle_of_a_context():
    place = Grammar(previous_seconds=1_700_000_000).after(vocab.MEASUREMENT).after(vocab.TIME_DELTA1)
    assert place.after(16 + 60).previous_seconds == 1_700_000_060


def test_every_token_belongs_to_the_role_before_it():
    prefix, whole = parse_prefix("203.0.113.0/24"), parse_prefix("198.51.100.7")
    context = [
        Statement((Field.SRC, Field.TIME, Field.DST, Field.RESULT), prefix, whole, 1_700_000_000, 12.5),
        Statement((Field.DST, Field.RESULT), None, prefix, None, -1.0),
    ]
    ids = np.array(reference.encode(context))
    assert vocab.PREFIX_END in ids
    expected, role = [], vocab.PAD
    for token in ids.tolist():
        role = token if token < vocab.BYTE0 and token != vocab.PREFIX_END else role
        expected.append(role)
    assert vocab.roles_of(ids).tolist() == expected
    assert vocab.roles_of(np.stack([ids, ids])).tolist() == [expected, expected]
    named = {vocab.FIELD_OF_ROLE[role] for role in expected if role != vocab.MEASUREMENT}
    assert named == {Field.SRC, Field.DST, Field.TIME, Field.RESULT}


def test_every_token_belongs_to_a_field_and_the_byte_after_extra_says_which():
    optional = {"size": 64, "errors": 1, "msm_id": 1001, "probe_id": 6012, "throughput": 94.3}
    whole = parse_prefix("198.51.100.7")
    order = (Field.SRC, *list(Field)[4:], Field.DST)
    context = [Statement(order, whole, whole, 1_700_000_000, 1.0, **optional)]
    ids = np.array(reference.encode(context))
    lengths = {Field.SRC: 5, Field.DST: 5, **{vocab.OPTIONAL[n]: vocab.OPTIONAL_LENGTHS[n] for n in optional}}
    expected = [vocab.NO_FIELD, *(field for field in context[0].order for _ in range(lengths[field]))]
    assert vocab.fields_of(ids).tolist() == expected
    assert vocab.fields_of(np.stack([ids, ids])).tolist() == [expected, expected]
    assert vocab.fields_of(np.array([vocab.MEASUREMENT, vocab.EXTRA])).tolist() == [vocab.NO_FIELD] * 2


def test_a_model_without_a_field_of_extra_does_not_begin_it():
    for known, byte in ((Field.PROBE_ID, 1), (Field.THROUGHPUT, 2)):
        place = Grammar(fields=frozenset([*DEFAULT_FIELDS, known])).follow([vocab.MEASUREMENT, vocab.EXTRA])
        assert np.flatnonzero(place.allowed()).tolist() == [vocab.BYTE0 + byte]
        assert place.stated == frozenset()
        assert place.after(vocab.BYTE0 + byte).stated == {known}
    both = Grammar().follow([vocab.MEASUREMENT, vocab.EXTRA])
    assert np.flatnonzero(both.allowed()).tolist() == [vocab.BYTE0 + 1, vocab.BYTE0 + 2]
