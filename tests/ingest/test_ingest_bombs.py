"""Memory and time stay in proportion to what is read, however little stands for how much."""

import gzip
import io
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from atlas_results import ping, write_lines

from ping_llm.ingest import parquet_tables, records
from ping_llm.ingest.options import MAX_RECORD_BYTES, IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.ingest.records import PIECE_BYTES, Chunks, Trouble


def read(tmp_path, data):
    path = tmp_path / "input"
    path.write_bytes(data)
    file = InputFile(str(path), IngestOptions())
    results, rejected = 0, []
    for block in file:
        results += block.results
        rejected += block.rejected
    return results, rejected, file.trouble.sentences


def repeated_text(length, rows):
    """A Parquet file that holds a long text once, and refers to it in every row."""
    source = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["x" * length])
    columns = {"time": [1] * rows, "src": source, "dst": ["192.0.2.1"] * rows, "rtt": [1.0] * rows}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False)
    return file.getvalue()


LIMITED = """
import resource, sys
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import InputFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
results = sum(block.results for block in InputFile(sys.argv[1], IngestOptions()))
print(results, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_text_that_is_stored_once_is_not_held_once_per_row(tmp_path):
    """20,000 rows of 131,072 bytes are 2.6 GB, in a file of 2 kB."""
    data = repeated_text(131_072, 20_000)
    assert len(data) < 3_000
    (tmp_path / "bomb.parquet").write_bytes(data)
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "bomb.parquet")]
    results, megabytes = map(
        int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    )
    assert results == 20_000
    assert megabytes < 600


def test_rows_of_a_repeated_long_text_are_rejects_each(tmp_path):
    results, rejected, trouble = read(tmp_path, repeated_text(131_072, 6_000))
    assert (results, trouble) == (6_000, [])
    assert [reject.number for reject in rejected] == list(range(1, 6_001))
    assert {reject.reason.value for reject in rejected} == {"bad_source"}


def test_ordinary_tables_are_not_read_as_dictionaries(tmp_path):
    path = tmp_path / "table.parquet"
    path.write_bytes(repeated_text(20, 6_000))
    ((_, batch),) = parquet_tables.read_parquet(path)
    assert not any(pa.types.is_dictionary(kind) for kind in batch.schema.types)


def test_a_row_group_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_tables, "MAX_GROUP_BYTES", 100_000)
    monkeypatch.setattr(parquet_tables, "MAX_RATIO", 10)
    results, _, trouble = read(tmp_path, repeated_text(2_000_000, 10))
    assert results == 0
    assert "row group 0 unpacks from" in trouble[0]


def test_blank_lines_cost_little(tmp_path, monkeypatch):
    """Not one Python object per line: 20 million newlines in 20 kB."""
    made = []
    monkeypatch.setattr(records, "Block", lambda *a, **k: made.append(len(a[1])) or REAL_BLOCK(*a, **k))
    line = write_lines([ping()])
    assert read(tmp_path, gzip.compress(line + b"\n" * 20_000_000 + b" \r\n\t\n" + line))[0] == 2
    assert sum(made) == 2


REAL_BLOCK = records.Block


@pytest.mark.parametrize("blank", [b"", b" ", b"\r", b"\t\r", b"\x0b\x0c", b"  "])
@pytest.mark.parametrize("full", [b"1", b"a ", b" b", b"\x00", b"  c", b"   "])
def test_which_lines_are_blank(blank, full):
    text = b"\n".join([full, blank, full, blank, blank, full]) + b"\n"
    chunks = Chunks(iter([text]), "x", Trouble("x"))
    blocks = list(records.lines(chunks))
    found = [(int(block.numbers[i]), block.text(i)) for block in blocks for i in range(len(block))]
    assert found == [(1, full), (3, full), (6, full)]


@pytest.mark.parametrize("shape", ["lines", "array"])
def test_the_limit_of_a_record_holds_in_whatever_a_decompressor_gives(shape, tmp_path):
    """A kilobyte of zstd may unpack to 32 MiB: several lines, each too long, in one piece."""
    long = {"type": "ping", "x": "a" * (MAX_RECORD_BYTES + 100)}
    values = [ping(), long, ping(), long, ping()]
    text = write_lines(values) if shape == "lines" else json.dumps(values).encode()
    results, rejected, trouble = read(tmp_path, zstandard.compress(text))
    assert (results, trouble) == (5, [])
    assert [(reject.number, reject.reason.value) for reject in rejected] == [
        (2, "too_large"),
        (4, "too_large"),
    ]


def test_chunks_are_never_larger_than_a_piece():
    chunks = Chunks(iter([b"x" * (3 * PIECE_BYTES + 7), b"y"]), "x", Trouble("x"))
    assert chunks.peek(PIECE_BYTES + 1) == b"x" * (PIECE_BYTES + 1)
    pieces = list(chunks)
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert b"".join(pieces) == b"x" * (3 * PIECE_BYTES + 7) + b"y"
