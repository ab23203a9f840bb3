"""Real results of every firmware: what each of the 236 known shapes becomes, and what sagan makes of all.

Expectations (tests/golden/ingest_shapes.tsv) come from the results' own summaries and, where those are
missing or wrong, from reading the result; never from the parser.
"""

import csv
import gzip
import ipaddress
import logging
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import orjson
import pytest

from ping_llm.ingest import atlas
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.ingest.records import Block
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.rules import ACCEPTED, REASONS, judge

ROOT = Path(__file__).parents[2]
ATLAS = ROOT / "../shared/data/atlas"
SHAPES = ATLAS / "ping_shapes.jsonl"
FILES = ("menog-2019", "v6-path-inflation-2019", "dense-series-2023", "starlink-vs-hardwired-2022")

needs_data = pytest.mark.skipif(not SHAPES.exists(), reason="no real results in ../shared/data/atlas")

with (ROOT / "tests/golden/ingest_shapes.tsv").open() as file:
    EXPECTED = list(csv.DictReader(file, delimiter="\t"))


def block_of(texts):
    ends = np.cumsum([len(text) for text in texts])
    return Block(b"".join(texts), ends - [len(text) for text in texts], ends, np.arange(1, len(texts) + 1))


def real_texts(name):
    path = ATLAS / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no real results in ../shared/data/atlas: {path.name} is missing")
    return gzip.decompress(path.read_bytes()).splitlines()


@pytest.fixture(scope="module")
def shapes():
    """The 236 texts, and the columns they become for each way to take the RTT."""
    texts = SHAPES.read_bytes().splitlines()
    columns = {}
    for rtt in ("avg", "min", "max"):
        columns[rtt] = atlas.read_block(block_of(texts), IngestOptions(rtt=rtt)).columns
        judge(columns[rtt])
    return texts, columns


@needs_data
def test_every_shape_has_an_expectation(shapes):
    assert [int(row["shape"]) for row in EXPECTED] == list(range(1, len(shapes[0]) + 1))
    assert len(EXPECTED) == 236


@needs_data
@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["shape"])
def test_shape(row, shapes):
    texts, columns = shapes
    index = int(row["shape"]) - 1
    avg = columns["avg"]
    if row["outcome"] != "measurement":
        assert REASONS[avg.verdict[index] - 1] == row["outcome"]
        return
    assert avg.verdict[index] == ACCEPTED
    for rtt, judged in columns.items():
        assert judged.rtt[index] == pytest.approx(float(row[rtt]), abs=1e-6)
    assert avg.packet_error_count[index] == int(row["sent"]) - int(row["received"])
    result = orjson.loads(texts[index])
    assert avg.time_us[index] == result["timestamp"] * 1_000_000
    assert avg.msm_id[index] == result["msm_id"]
    assert avg.probe_id[index] == result["prb_id"]
    assert avg.size[index] == result.get("size", -1)
    source = ipaddress.ip_address(unpack(avg.src[index : index + 1])[0].as_py())
    assert source == ipaddress.ip_address(result[row["source"]])
    assert source.version == int(row["version"])
    destination = ipaddress.ip_address(unpack(avg.dst[index : index + 1])[0].as_py())
    assert destination == ipaddress.ip_address(result.get("dst_addr") or result["addr"])


@needs_data
def test_the_shapes_file_by_the_reader():
    blocks = list(InputFile(str(SHAPES), IngestOptions()))
    assert sum(block.results for block in blocks) == 236
    rejected = [(reject.number, reject.reason) for block in blocks for reject in block.rejected]
    assert rejected == [
        (int(row["shape"]), row["outcome"]) for row in EXPECTED if row["outcome"] != "measurement"
    ]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("rtt", ["avg", "each"])
def test_the_quick_way_and_the_careful_way_agree(name, rtt):
    texts = real_texts(name)[:20_000]
    options = IngestOptions(rtt=rtt)
    quick = atlas.read_block(block_of(texts), options).columns
    careful = atlas.read_carefully(texts, options).columns
    assert_same_columns(quick, careful)


def assert_same_columns(ours, theirs):
    for field in fields(ours):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if a is None or b is None:
            assert a is b
        else:
            np.testing.assert_array_equal(a, b, err_msg=field.name)


# Each deliberate difference from sagan, as docs/ingest.md gives it, by shape: what sagan says instead.
STATED_OTHERWISE = {
    25: {"packets_sent": None},  # `sent` is missing; three packets are listed
    27: {"rtt_average": 10.002},  # no reply, no packet listed, and yet an average
    200: {"rtt_average": None, "rtt_min": None, "rtt_max": None},  # three replies listed, and -1 stated
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, "ping_shapes"])
def test_sagan_counts_the_same(name):
    """min, avg, max, sent and received of every real result equal those of ripe.atlas.sagan."""
    sagan = pytest.importorskip("ripe.atlas.sagan", reason="ripe.atlas.sagan is not installed")
    logging.getLogger("ripe.atlas.sagan").setLevel(logging.CRITICAL)
    if name == "ping_shapes":
        if not SHAPES.exists():
            pytest.skip("no real results in ../shared/data/atlas")
        texts = SHAPES.read_bytes().splitlines()
    else:
        texts = real_texts(name)
    if not os.environ.get("PING_LLM_TEST_ALL"):
        # sagan takes 30 µs a result: the largest file would take half the time that all tests of ingest may.
        texts = texts[:: max(1, len(texts) // 60_000)]
    results = [orjson.loads(text) for text in texts]
    for start in range(0, len(results), 10_000):
        some = results[start : start + 10_000]
        ours = atlas.summarize(
            some, *([result.get(key) for result in some] for key in ("result", "sent", "rcvd"))
        )
        values = zip(ours.avg, ours.min, ours.max, ours.sent, ours.received, strict=True)
        for number, (result, mine) in enumerate(zip(some, values, strict=True), start + 1):
            quiet = sagan.PingResult.ACTION_IGNORE
            theirs = sagan.PingResult(result, on_error=quiet, on_malformation=quiet)
            compare(theirs, mine, STATED_OTHERWISE.get(number, {}) if name == "ping_shapes" else {}, number)


def compare(theirs, mine, otherwise, number):
    names = ("rtt_average", "rtt_min", "rtt_max", "packets_sent", "packets_received")
    for name, value in zip(names, mine, strict=True):
        stated = getattr(theirs, name)
        if name in otherwise:
            assert stated == otherwise[name], (number, name)
        elif name == "rtt_average" and stated is not None:
            # sagan rounds averages to three decimals.
            assert abs(stated - value) <= 0.0005 + 1e-9, (number, name)
        else:
            assert (-1.0 if stated is None else stated) == value, (number, name)
