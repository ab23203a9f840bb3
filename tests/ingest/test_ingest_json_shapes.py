"""Results are found in every shape that JSON tools write, and a broken one costs only itself."""

import json
from dataclasses import fields

import numpy as np
import pytest
from atlas_results import ping, reply, traceroute, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.ingest import records, scan
from ping_llm.ingest.options import MAX_RECORD_BYTES, IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.ingest.records import Chunks, Trouble
from ping_llm.measurements.rules import ACCEPTED

RESULTS = [ping(timestamp=1_600_000_000 + index) for index in range(100)]


def one_packet_a_line(result, indent=""):
    """As jq and hand-made formatters lay it out: the fields on a line each, and each packet on its own."""
    packets = ",\n".join(indent + json.dumps(packet) for packet in result["result"])
    others = ",\n".join(
        f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items() if key != "result"
    )
    return "{\n" + others + ',\n  "result": [\n' + packets + "\n  ]\n}"


def list_on_the_next_line(result):
    packets = ",\n".join(map(json.dumps, result["result"]))
    others = {key: value for key, value in result.items() if key != "result"}
    return json.dumps(others)[:-1] + ', "result": [\n' + packets + "]}"


def value_on_the_next_line(result):
    return json.dumps(result)[:-1] + ', "more":\n{"fwd": 1}}'


SHAPES = {
    "lines": "\n".join(map(json.dumps, RESULTS)),
    "nothing between": "".join(map(json.dumps, RESULTS)),
    "spaces between": " ".join(map(json.dumps, RESULTS)),
    "commas between": ",".join(map(json.dumps, RESULTS)),
    "carriage returns": "\r".join(map(json.dumps, RESULTS)),
    "several a line": "\n".join("".join(map(json.dumps, RESULTS[at : at + 2])) for at in range(0, 100, 2)),
    "later several a line": json.dumps(RESULTS[0]) + "\n" + "".join(map(json.dumps, RESULTS[1:])),
    "later an array": json.dumps(RESULTS[0]) + "\n" + json.dumps(RESULTS[1:]),
    "array": json.dumps(RESULTS),
    "arrays": "".join(json.dumps([result]) for result in RESULTS),
    "indented": "\n".join(json.dumps(result, indent=2) for result in RESULTS),
    "not indented": "\n".join(json.dumps(result, indent=0) for result in RESULTS),
    "one packet a line": "\n".join(map(one_packet_a_line, RESULTS)),
    "one packet a line, indented": "\n".join(one_packet_a_line(result, "    ") for result in RESULTS),
    "one packet a line, no newline between": "".join(map(one_packet_a_line, RESULTS)),
    "one packet a line in an array": "[" + ",\n".join(map(one_packet_a_line, RESULTS)) + "]",
    "packets after the first line": "\n".join(map(list_on_the_next_line, RESULTS)),
    "packets after the first, in an array": "[\n" + ",\n".join(map(list_on_the_next_line, RESULTS)) + "\n]",
    "value on the next line": "\n".join(map(value_on_the_next_line, RESULTS)),
}  # fmt: skip


def read(tmp_path, text, **options):
    path = tmp_path / "input.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    file = InputFile(str(path), IngestOptions(**options))
    blocks = list(file)
    times = [
        int(time) // 1_000_000
        for block in blocks
        for time in block.columns.time_us[block.columns.verdict == ACCEPTED]
    ]
    rejected = [reject for block in blocks for reject in block.rejected]
    assert sum(block.results for block in blocks) == len(times) + len(rejected)
    return times, rejected, file.trouble.sentences


@pytest.mark.parametrize("shape", SHAPES)
def test_every_result_of_a_shape_is_read(shape, tmp_path):
    expected = [result["timestamp"] for result in RESULTS]
    assert read(tmp_path, SHAPES[shape]) == (expected, [], [])
    assert read(tmp_path, SHAPES[shape] + "\n") == (expected, [], [])


def test_hops_on_a_line_each(tmp_path):
    results = [traceroute([reply(1.0 + index)], [reply(2.0)], timestamp=index) for index in range(9)]
    text = "\n".join(map(one_packet_a_line, results))
    times, rejected, trouble = read(tmp_path, text, traceroutes="hops")
    assert (len(times), rejected, trouble) == (18, [], [])


def test_a_split_line_keeps_its_number_and_its_broken_end(tmp_path):
    first, second = (json.dumps(result) for result in RESULTS[:2])
    times, rejected, trouble = read(
        tmp_path, first + "\n" + first + second + second[:-9] + "\n" + second + "\n"
    )
    assert len(times) == 4
    assert [(reject.number, reject.reason.value) for reject in rejected] == [(2, "unparsable")]
    assert trouble == []


def test_words_after_an_object_are_one_reject(tmp_path):
    line = json.dumps(RESULTS[0])
    times, rejected, _ = read(tmp_path, f"{line}\n{line} and more words\n")
    assert (len(times), len(rejected)) == (1, 1)


@pytest.mark.parametrize("cut", [1, 5, 60, -2, -40])
@pytest.mark.parametrize("lay_out", [json.dumps, list_on_the_next_line])
def test_a_broken_result_of_an_array_costs_only_itself(cut, lay_out, tmp_path):
    texts = [lay_out(result) for result in RESULTS[:9]]
    texts[4] = texts[4][:cut]
    times, rejected, _ = read(tmp_path, "[\n" + ",\n".join(texts) + "\n]")
    whole = [result["timestamp"] for result in RESULTS[:9] if result is not RESULTS[4]]
    assert times == whole
    assert rejected


def test_a_list_that_ends_after_a_comma_costs_only_its_result(tmp_path):
    """Where an object may stand, the next line is one of the list or the next result: its first key tells."""
    broken = json.dumps(RESULTS[1])
    broken = broken[: broken.index("},") + 2]
    text = "[\n" + ",\n".join([json.dumps(RESULTS[0]), broken[:-1], json.dumps(RESULTS[2])]) + "\n]"
    times, rejected, _ = read(tmp_path, text)
    assert times == [RESULTS[0]["timestamp"], RESULTS[2]["timestamp"]]
    assert len(rejected) == 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 700))
def test_shapes_split_the_same_however_they_are_chunked(shape, size):
    text = SHAPES[shape][:6000].encode()

    def split(size):
        pieces = iter([text[start : start + size] for start in range(0, len(text), size)])
        chunks = Chunks(pieces, "x", Trouble("x"))
        return [block.text(index) for block in records.values(chunks) for index in range(len(block))]

    assert split(size) == split(len(text))
    starts, ends, _ = scan.split_text(text)
    assert split(len(text)) == [text[start:end] for start, end in zip(starts, ends, strict=True)]


def test_a_record_that_is_too_large_ends_where_the_next_begins(tmp_path):
    """In an unending list of packets, the line that begins as results do is the next result."""
    large = (
        json.dumps(RESULTS[0])[:-1] + ', "more": [\n' + '{"rtt": 1},\n' * (MAX_RECORD_BYTES // 12 + 20_000)
    )
    text = "[\n" + large + ",\n".join(map(json.dumps, RESULTS[1:4])) + "\n]"
    times, rejected, _ = read(tmp_path, text)
    assert times == [result["timestamp"] for result in RESULTS[1:4]]
    assert [(reject.number, reject.reason.value, reject.length) for reject in rejected] == [
        (1, "too_large", len(large) - 1)
    ]


def test_lines_that_are_split_have_the_columns_of_whole_lines(tmp_path):
    def columns(text):
        path = tmp_path / "input.json"
        path.write_bytes(text)
        return [block.columns for block in InputFile(str(path), IngestOptions())]

    lines = write_lines(RESULTS)
    whole, split = columns(lines), columns(lines.replace(b"\n", b"", 1))
    # A column that is None is one that the input does not have.
    names = [field.name for field in fields(whole[0]) if getattr(whole[0], field.name) is not None]
    assert len(names) >= 16
    for name in names:
        parts = [np.concatenate([getattr(block, name) for block in blocks]) for blocks in (whole, split)]
        np.testing.assert_array_equal(*parts)
