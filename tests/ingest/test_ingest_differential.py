"""Where there are two ways through the same input, a quick and a careful one, both say the same.

The fuzzers here run a fixed number of seeded inputs; PING_LLM_FUZZ=50 runs fifty times as many. What a longer
run finds goes into the lists of finds.
"""

import json
import os
import random
from dataclasses import fields

import numpy as np
import pytest
from atlas_results import ping
from fuzz_ingest import RESULTS, check_results, compare
from hostile_inputs import block_of

from ping_llm.ingest import arrays, atlas, plain_results, tables
from ping_llm.ingest.options import IngestOptions
from ping_llm.measurements.rules import REASONS, judge

ROUNDS = int(os.environ.get("PING_LLM_FUZZ", "1"))

RESULT_FINDS = [
    ping(src_addr="", srcaddr="100.0.0.9"),
    ping(src_addr="", srcaddr="nowhere"),
    ping(src_addr=""),
    ping(dst_addr="", addr="192.0.2.9"),
    ping(dst_addr="", addr=7),
    ping(dst_addr=""),
    ping(**{"from": ""}, src_addr="", srcaddr="100.0.0.9"),
]


@pytest.mark.parametrize("source", ["auto", "from", "src_addr"])
def test_results_that_were_read_differently(source):
    texts = [json.dumps(result, separators=(",", ":")).encode() for result in RESULT_FINDS]
    for text in texts:
        compare([text], IngestOptions(source=source))
    compare(texts, IngestOptions(source=source))


def test_an_empty_address_gives_way_to_the_other_key():
    texts = [json.dumps(result).encode() for result in RESULT_FINDS[:4:3]]
    columns = atlas.read_block(block_of(texts), IngestOptions()).columns
    judge(columns)
    assert columns.verdict.tolist() == [0, 0]
    assert not plain_results.read_quickly(
        *(getattr(block_of(texts), name) for name in ("array", "starts", "ends"))
    ).taken.any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mutated_results(seed):
    texts = [json.dumps(result, separators=(",", ":")).encode() for result in [*RESULTS, *RESULT_FINDS]]
    noise = random.Random(seed)
    for _ in range(8 * ROUNDS):
        check_results(noise, texts)


CSV_FINDS = [
    # A carriage return makes two lines of one, and a quote one of two: the number of lines was right.
    [b"1,192.0.2.1,192.0.2.2,5,\r", b'2,192.0.2.1,192.0.2.2,6,"a', b'3,192.0.2.1,192.0.2.2,7,b"'],
    [b"1,192.0.2.1,192.0.2.2,4,\r9,192.0.2.1,192.0.2.2,5,", b'2,192.0.2.1,192.0.2.2,6,"', b'"'],
    [b'"1",192.0.2.1,192.0.2.2,5,x', b'"2,192.0.2.1,192.0.2.2,6,x', b'3,192.0.2.1,192.0.2.2,7,"x'],
    [b"1,192.0.2.1,192.0.2.2,5," + b"x" * 200_000, b"2,192.0.2.1,192.0.2.2,6,y"],
    [b"2020-01-01T00:00:00\0Z,192.0.2.1,192.0.2.2,5,", b"2020-01-01,192.0.2.1,192.0.2.2,5,"],
    [b"1,192.0.2.1,192.0.2.2,5,\0", b'2,"192.0.2.1"x,192.0.2.2,6,', b'3,""192.0.2.1,192.0.2.2,6,'],
]  # fmt: skip
FORM = tables.csv_format(b"time,src,dst,rtt,note")
WITH_THROUGHPUT = tables.csv_format(b"time,src,dst,rtt,throughput_mbps")
TOKENS = [
    b'"',
    b'""',
    b"\r",
    b",",
    b"\0",
    b"\xff",
    b" ",
    b"1e3",
    b"NULL",
    b"-1",
    b"\\N",
    b'","',
    b"\t",
    b";",
    b"'",
    b"nan",
]


def line(noise, last=(b"note",)):
    quote = noise.choice([b"", b"", b'"'])
    values = [
        noise.choice([b"1600000000", b"2020-01-01T00:00:00Z", b"2020-01-01"]), b"192.0.2.1",
        noise.choice([b"192.0.2.2", b"2001:db8::1"]), noise.choice([b"5", b"-1.0", b"1e1", b""]),
        noise.choice(last),
    ]  # fmt: skip
    data = bytearray(b",".join(quote + value + quote for value in values))
    for _ in range(noise.choice([0, 0, 0, 1, 1, 2, 4])):
        where = noise.randrange(len(data) + 1)
        if noise.random() < 0.3:
            del data[where : where + noise.randrange(1, 5)]
        else:
            data[where:where] = noise.choice(TOKENS)
    return bytes(data) if data.strip() else b"-"


def assert_lines_are_read_alone(lines, form=FORM):
    """A line's columns do not depend on the lines beside it, nor on the parser."""
    assert form is not None
    together = tables.read_csv_block(lines, form)
    arrays_, unparsable = tables._parse_singly(lines, form)
    singly = tables.from_arrays(arrays_, len(lines))
    singly.verdict[unparsable] = 1 + REASONS.index("unparsable")
    judge(together)
    judge(singly)
    np.testing.assert_array_equal(together.verdict, singly.verdict)
    good = together.verdict == 0
    for field in fields(together)[:-2]:
        if field.name == "throughput_mbps" and form is FORM:
            assert together.throughput_mbps is singly.throughput_mbps is None
        elif field.name not in ("verdict",):
            np.testing.assert_array_equal(
                getattr(together, field.name)[good], getattr(singly, field.name)[good], err_msg=field.name
            )


@pytest.mark.parametrize("lines", CSV_FINDS, ids=range(len(CSV_FINDS)))
def test_csv_lines_that_were_read_differently(lines):
    assert_lines_are_read_alone(lines)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mutated_csv_lines(seed):
    noise = random.Random(seed)
    quickly = 0
    for turn in range(300 * ROUNDS):
        form, last = FORM, [b"note"]
        if turn % 2:
            form, last = WITH_THROUGHPUT, [b"94.3", b"-1", b"", b"nan", b"-7"]
        lines = [line(noise, last) for _ in range(noise.randrange(1, 5))]
        quickly += tables._parse_quickly(lines, form) is not None
        try:
            assert_lines_are_read_alone(lines, form)
        except AssertionError:
            print(lines)
            raise
    assert quickly > 30 * ROUNDS


DATES = [
    "2020-01-01", "2020-01-01T12:00:00", "2020-01-01 12:00:00.5", "2020-01-01T12:00:00.123456789Z",
    "2020-01-01T12:00:00+02:00", "2020-01-01T12:00Z", "2020-01-01T12", "20200101T120000Z",
    "2020-01-01T12:00:00-0130", "1969-12-31T23:59:59.999999", "9999-12-31T23:59:59-01:00",
]  # fmt: skip
DATE_TOKENS = [
    "2020",
    "-",
    "01",
    "30",
    "T",
    " ",
    "12",
    ":",
    "59",
    "60",
    ".",
    "5",
    "123456",
    "Z",
    "+",
    "02",
    "24",
    "W",
    "z",
]


def test_mutated_dates():
    """One odd text sends all texts of a column another way: the others mean the same there."""
    import pyarrow as pa

    noise = random.Random(0)
    for _ in range(600 * ROUNDS):
        text = noise.choice(DATES)
        for _ in range(noise.choice([0, 1, 1, 2])):
            where = noise.randrange(len(text) + 1)
            text = text[:where] + noise.choice(DATE_TOKENS) + text[where + noise.randrange(3) :]
        if not text.strip():
            continue
        alone, state = (column[0] for column in arrays.times(pa.array([text])))
        beside, beside_state = (column[0] for column in arrays.times(pa.array([text, "2020-W01-1T00"])))
        assert (state == beside_state and (state or alone == beside)) or text.startswith("0000"), text
