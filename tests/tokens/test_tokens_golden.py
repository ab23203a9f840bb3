"""Golden tokens: the format's bytes may not change. Both codecs are held to the same files."""

import math
from pathlib import Path

import numpy as np
import pytest
from compiled_decoder import decode_columns

from ping_llm.measurements.addresses import parse_prefix
from ping_llm.tokens import codec, reference
from ping_llm.tokens.columns import StatementColumns, encode_columns
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import BYTE0, VOCABULARY_SIZE, Field, token_name

GOLDEN = Path(__file__).parents[1] / "golden"
IDS = {token_name(token): token for token in range(VOCABULARY_SIZE)}


def read_statement(line: str) -> Statement:
    """`src=192.0.2.1 rtt=12.345`: what is stated, in this order."""
    values, order = {}, []
    for word in line.split():
        name, text = word.split("=")
        number = float if name in ("rtt", "throughput") else int
        order.append(Field.RESULT if name == "rtt" else Field[name.upper()])
        if name in ("src", "dst"):
            values[name] = parse_prefix(text)
        else:
            values["seconds" if name == "time" else name] = number(text)
    return Statement(tuple(order), **values)


def golden_contexts():
    for block in (GOLDEN / "tokens.txt").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if lines:
            encoding, title = lines[0].split(" | ")
            yield pytest.param(encoding, lines[1::2], lines[2::2], id=title)


@pytest.mark.parametrize(("encoding", "statements", "tokens"), [*golden_contexts()])
def test_golden_contexts(encoding, statements, tokens):
    rtt = rtt_encoding(encoding)
    context = [read_statement(line) for line in statements]
    ids = [IDS[word] for line in tokens for word in line.split()]
    assert reference.encode(context, rtt) == ids
    compiled, offsets = encode_columns(StatementColumns.from_contexts([context]), rtt)
    assert compiled.tolist() == ids
    assert np.diff(offsets).tolist() == [len(line.split()) for line in tokens]
    decoded = reference.decode(ids, rtt)
    assert reference.encode(decoded, rtt) == ids
    assert encode_columns(decode_columns(ids, rtt), rtt)[0].tolist() == ids
    for plain, restored in zip(context, decoded, strict=True):
        assert restored.order == plain.order
        assert restored.seconds == plain.seconds
        assert restored.dst == plain.dst


def golden_rtts():
    for line in (GOLDEN / "tokens_rtt.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            yield line.split()


@pytest.mark.parametrize("name", ["compact", "float64", "micros", "log", "clipped"])
def test_golden_rtts(name):
    encoding = rtt_encoding(name)
    rows = [row[1:] for row in golden_rtts() if row[0] == name]
    assert len(rows) >= 8
    for rtt, written, decoded, low, high in rows:
        code = int(written, 16)
        assert encoding.to_bytes(encoding.encode(float(rtt))).hex() == written
        out = np.zeros(9, np.int32)
        end = codec.put_result(out, 0, float(rtt), encoding.id, encoding.clip_limit_ms)
        assert bytes((out[1:end] - BYTE0).tolist()).hex() == written
        assert encoding.decode(code) == float(decoded)
        assert encoding.edges(code) == (float(low), float(high) if high != "inf" else math.inf)


def test_the_vocabulary_does_not_move():
    names = [line.split() for line in (GOLDEN / "tokens_vocabulary.txt").read_text().splitlines()]
    assert [(int(token), name) for token, name in names] == [
        (t, token_name(t)) for t in range(VOCABULARY_SIZE)
    ]
