"""A wrong Parquet row is a reject, whatever its values; what is wrong with a file stays with that file."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from atlas_results import ping, write_lines

from ping_llm.errors import PingError
from ping_llm.ingest import parquet_tables, reader, tables
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.measurements.parquet import open_input
from ping_llm.rows.inputs import find_files as find_row_files

YEAR_0_S, YEAR_10000_S = -62_167_219_201, 253_402_300_800
EXTREMES = [0, 1, -1, 1_600_000_000, 1_600_000_000_123_456_789, YEAR_0_S, YEAR_10000_S, 2**63 - 1, -(2**63)]
ZONES = (None, "UTC", "No/Where", "+99:99")
WIDE = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ZONES),
    *map(pa.duration, ("s", "ms", "us", "ns")),
    pa.time64("us"), pa.time64("ns"), pa.date64(),
]  # fmt: skip
NARROW = [pa.date32(), pa.time32("s"), pa.time32("ms")]


def hostile_columns():
    for kind in WIDE:
        yield pa.array(EXTREMES, pa.int64()).view(kind)
    for kind in NARROW:
        yield pa.array([max(min(value, 2**31 - 1), -(2**31)) for value in EXTREMES], pa.int32()).view(kind)
    nanoseconds = pa.array(EXTREMES, pa.int64()).view(pa.timestamp("ns", "UTC"))
    yield nanoseconds.dictionary_encode()
    yield pa.StructArray.from_arrays([nanoseconds], ["inner"])
    yield pa.ListArray.from_arrays(pa.array(range(len(EXTREMES) + 1), pa.int32()), nanoseconds)
    yield pa.MapArray.from_arrays(range(len(EXTREMES) + 1), pa.array(["key"] * len(EXTREMES)), nanoseconds)
    yield pa.array([b"\xff\xfe", b"", None] * 3)
    yield pa.array([float("nan"), float("inf"), -0.0] * 3)


def table_with(**columns):
    count = len(EXTREMES)
    good = {
        "time": [1] * count,
        "src": ["192.0.2.1"] * count,
        "dst": ["192.0.2.2"] * count,
        "rtt": [1.0] * count,
    }
    return pa.table(good | columns)


def parquet_bytes(table, **options):
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", ["time", "src", "rtt", "msm_id", "kind"])
def test_a_row_that_python_has_no_value_for_is_a_reject(name, tmp_path):
    path = tmp_path / "table.parquet"
    rejects = 0
    for column in hostile_columns():
        try:
            path.write_bytes(parquet_bytes(table_with(**{name: column})))
        except pa.ArrowException:
            continue  # Parquet cannot hold it
        file = reader.InputFile(str(path), IngestOptions())
        blocks = list(file)
        assert file.trouble.sentences == [], column.type
        assert sum(block.results for block in blocks) == len(EXTREMES), column.type
        for block in blocks:
            for reject in block.rejected:
                assert name in json.loads(reject.raw), column.type
                rejects += 1
    assert rejects > 100


def test_the_text_of_a_reject_keeps_every_digit_of_a_time():
    columns = {
        "whole": pa.array([1_600_000_000_000_001_000]).view(pa.timestamp("ns", "UTC")),
        "nanoseconds": pa.array([1_600_000_000_123_456_789]).view(pa.timestamp("ns", "UTC")),
        "late": pa.array([YEAR_10000_S]).view(pa.timestamp("s")),
    }
    assert json.loads(parquet_tables.row_text(pa.RecordBatch.from_pydict(columns), 0)) == {
        "whole": "2020-09-13 12:26:40.000001+00:00",
        "nanoseconds": "2020-09-13T12:26:40.123456789 UTC",
        "late": "10000-01-01T00:00:00",
    }


def test_a_rejected_row_does_not_end_the_ingest(tmp_path):
    hostile, good = tmp_path / "a.parquet", tmp_path / "b.jsonl"
    times = pa.array(EXTREMES, pa.int64()).view(pa.timestamp("us"))
    hostile.write_bytes(parquet_bytes(table_with(time=times, src=["nowhere"] * len(EXTREMES))))
    good.write_bytes(write_lines([ping()]))
    report = ingest([str(hostile), str(good)], tmp_path / "out")
    assert (report.total.results, report.total.rejected, report.total.measurements) == (10, 9, 1)
    assert report.troubles == []


def test_an_unforeseen_error_ends_only_its_file(tmp_path, monkeypatch):
    bad, good = tmp_path / "a.csv", tmp_path / "b.jsonl"
    bad.write_text("time,src,dst,rtt\n1,192.0.2.1,192.0.2.2,3\n")
    good.write_bytes(write_lines([ping()]))

    def fail(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(tables, "read_csv_block", fail)
    report = ingest([str(bad), str(good)], tmp_path / "out")
    assert report.total.measurements == 1
    assert len(report.troubles) == 1
    assert f"a.csv: {reader.UNEXPECTED} ZeroDivisionError" in report.troubles[0]
    assert report.files[0][2]["bytes"] == bad.stat().st_size


def test_a_column_name_that_is_not_utf8_is_said_by_every_reader(tmp_path):
    path = tmp_path / "table.parquet"
    data = parquet_bytes(table_with(extra=EXTREMES), store_schema=False)
    path.write_bytes(data.replace(b"extra", b"\xffxtra"))
    file = reader.InputFile(str(path), IngestOptions())
    assert list(file) == []
    assert file.trouble.sentences == [f"{path}: a column has a name that is not UTF-8; not read"]
    for open_files in (open_input, find_row_files):
        with pytest.raises(PingError, match=r"table\.parquet"):
            open_files([str(path)])


FLIPS = """
import sys
from pathlib import Path
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hostile_inputs import SAMPLES, check_file
sample = next(data for data in SAMPLES if data[:4] == b"PAR1")
path = Path(sys.argv[2]) / "input"
for place in range(4, len(sample), 3):
    changed = bytearray(sample)
    changed[place] ^= 1 << place % 8
    path.write_bytes(changed)
    check_file(path, path.parent)
"""


def test_no_damage_of_a_parquet_file_ends_the_process(tmp_path):
    """pyarrow aborts where a row group's columns are looked at and the footer is damaged."""
    words = [sys.executable, "-c", FLIPS, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
