"""Whatever comes in, ingest neither raises nor loses count, and both ways of reading agree.

The finds of longer runs are below, as examples.
"""

import json
from dataclasses import fields

import numpy as np
from atlas_results import ping
from hostile_inputs import SAMPLES, assert_good, block_of, check_file, json_values
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ping_llm.ingest import atlas, records
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.ingest.records import Chunks, Trouble
from ping_llm.measurements.rules import judge

few = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

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
    columns = atlas.read_block(block_of(texts), options).columns
    careful = atlas.read_carefully(texts, options).columns
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


def test_parquet_with_a_column_name_that_is_no_text(tmp_path):
    path = tmp_path / "input"
    sample = next(sample for sample in SAMPLES if sample.startswith(b"PAR1"))
    for name in (b"time", b"rtt"):
        path.write_bytes(sample.replace(name, name[:1] + b"\xe3" + name[2:]))
        check_file(path, tmp_path)
        file = InputFile(str(path), IngestOptions())
        assert list(file) == []
        assert len(file.trouble.sentences) == 1


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
