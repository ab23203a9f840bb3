"""Whatever comes in, ingest neither raises nor loses count, and both ways of reading agree.

The finds of longer runs are below, as examples.
"""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from atlas_results import ping, write_lines
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ping_llm.ingest import atlas, records
from ping_llm.ingest.columns import ACCEPTED, NOT_PING, judge
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.ingest.records import Block
from ping_llm.ingest.streams import Chunks, Trouble
from ping_llm.schema import END_TIME_US, MAX_RTT_MS

few = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "ping", "192.0.2.1", "100.0.0.1", "2001:db8::1", "7", "-1", "1e3", "*", "NaN", "é", "\x00"]
    )
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
packets = st.lists(
    st.dictionaries(
        st.sampled_from(["rtt", "x", "error", "dup", "late", "ttl", "srcaddr", "y"]), json_values, max_size=3
    )
    | json_values
    | st.floats(0, 4e6).map(lambda rtt: {"rtt": rtt}),
    max_size=5,
)
keys = (
    "type", "timestamp", "from", "src_addr", "dst_addr", "af", "sent", "rcvd", "msm_id", "size", "prb_id",
    "avg", "min", "max", "addr", "srcaddr", "dst_name", "ttl",
)  # fmt: skip
results = st.builds(
    lambda changes, listed, removed: {
        key: value
        for key, value in (ping(result=[{"rtt": 1.5}]) | listed | changes).items()
        if key not in removed
    },
    st.dictionaries(st.sampled_from(keys), json_values, max_size=3),
    packets.map(lambda listed: {"result": listed}) | st.just({}),
    st.lists(st.sampled_from((*keys, "result")), max_size=3),
)


def block_of(texts):
    lengths = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(lengths)
    return Block(b"".join(texts), ends - lengths, ends, np.arange(1, len(texts) + 1))


def assert_good(columns):
    """What is accepted obeys the rules of the table."""
    good = columns.verdict == ACCEPTED
    assert ((columns.time_us[good] >= 0) & (columns.time_us[good] < END_TIME_US)).all()
    rtt = columns.rtt[good]
    assert ((rtt == -1.0) | ((rtt >= 0) & (rtt <= MAX_RTT_MS))).all()
    assert (columns.size[good] <= 65_535).all()
    for name in ("msm_id", "size", "packet_error_count", "probe_id"):
        assert (getattr(columns, name)[good] >= -1).all()
    if columns.packets is not None:
        counts = np.diff(columns.packet_offsets)
        assert (counts[good] > 0).all()
        owners = np.repeat(good, counts)
        assert ((columns.packets[owners] == -1) | (columns.packets[owners] >= 0)).all()


@few
@given(
    st.lists(results | json_values, min_size=1, max_size=5),
    st.sampled_from(["avg", "min", "max", "each"]),
    st.sampled_from(["auto", "from", "src_addr"]),
)
@example([ping(result=None, sent=2**62, rcvd=0)], "each", "auto")
@example([ping(timestamp=2**63)], "avg", "auto")
@example([ping(timestamp="1e400")], "avg", "auto")
@example([ping(result=[{"rtt": 1.0}, {"rtt": "1_0"}])], "avg", "auto")
@example([ping(msm_id="--1"), ping(msm_id="²")], "avg", "auto")
def test_any_json_has_a_verdict(values, rtt, source):
    texts = [json.dumps(value).encode() for value in values]
    options = IngestOptions(rtt=rtt, source=source)
    columns = atlas.read_block(block_of(texts), options)
    careful = atlas.read_carefully(texts, options)
    judge(columns)
    judge(careful)
    assert_good(columns)
    for field in fields(columns):
        np.testing.assert_array_equal(
            getattr(columns, field.name), getattr(careful, field.name), err_msg=field.name
        )


def mutated(draw_data, data):
    data = bytearray(data)
    for position, value in draw_data:
        data[position % len(data)] = value
    return bytes(data)


LINES = write_lines([ping(timestamp=index, result=[{"rtt": 1.25}, {"x": "*"}]) for index in range(20)])


def container_samples():
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", LINES)
        archive.writestr("b.json", LINES)
    parquet = io.BytesIO()
    columns = {"time": [1, 2], "src": ["192.0.2.1"] * 2, "dst": ["192.0.2.2"] * 2, "rtt": [1.0, 2.0]}
    pq.write_table(pa.table(columns), parquet)
    csv = b"time,src,dst,rtt\n" + b'5,192.0.2.1,192.0.2.2,7\n"6",192.0.2.1,192.0.2.2,"8"\n' * 5
    array = json.dumps([ping(timestamp=index) for index in range(20)]).encode()
    return [
        LINES, array, json.dumps([ping()], indent=1).encode(), csv, parquet.getvalue(), zipped.getvalue(),
        gzip.compress(LINES, mtime=0), bz2.compress(LINES), lzma.compress(LINES), zstandard.compress(LINES),
        gzip.compress(csv, mtime=0), b"",
    ]  # fmt: skip


SAMPLES = container_samples()
changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6)


@few
@given(st.integers(0, len(SAMPLES) - 1), changes, st.integers(0, 1 << 16) | st.none(), st.binary(max_size=20))
def test_any_bytes_are_accounted_for(tmp_path_factory, which, edits, cut, tail):
    data = mutated(edits, SAMPLES[which]) if SAMPLES[which] else b""
    data = data[: cut % (len(data) + 1)] if cut is not None else data
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    path = folder / "input"
    path.write_bytes(data + tail)
    check_file(path, folder)


def check_file(path, folder):
    for options in (IngestOptions(), IngestOptions(rtt="each")):
        file = InputFile(str(path), options, spool=folder)
        for block in file:
            verdict = block.columns.verdict
            rejected = int(((verdict != ACCEPTED) & (verdict != NOT_PING)).sum()) + block.apart
            assert len(block.rejected) == rejected
            assert_good(block.columns)
        assert file.bytes == path.stat().st_size


@few
@given(st.lists(json_values, max_size=6), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_arrays_split_into_their_elements_however_they_are_chunked(values, size, indent, as_array):
    text = (json.dumps(values, indent=indent) if as_array else "\n".join(map(json.dumps, values))).encode()
    if not as_array and any(isinstance(value, list) for value in values):
        return  # lists at the top are taken for arrays of results
    chunks = Chunks(
        iter([text[start : start + size] for start in range(0, len(text), size)]), "x", Trouble("x")
    )
    found = [json.loads(block.text(index)) for block in records.values(chunks) for index in range(len(block))]
    assert found == values
    assert chunks.trouble.sentences == []


@few
@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.integers(1, 20),
)
def test_lines_split_however_they_are_chunked(lines, size):
    text = b"\n".join(lines)
    chunks = Chunks(
        iter([text[start : start + size] for start in range(0, len(text), size)]), "x", Trouble("x")
    )
    found = [
        (int(block.numbers[index]), block.text(index))
        for block in records.lines(chunks)
        for index in range(len(block))
    ]
    expected = [(number, line) for number, line in enumerate(lines, 1) if len(line) > 2 or line.strip()]
    assert [pair for pair in found if pair[1].strip()] == [pair for pair in expected if pair[1].strip()]
