"""Tables: common names, forgiven types, and a reason for every row that is wrong."""

import gzip
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ping_llm.ingest import arrays, tables
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.measurements.addresses import pack, unpack
from ping_llm.measurements.rules import ACCEPTED, BAD, GIVEN, MISSING, REASONS

NOON_US = 1_577_880_000_000_000  # 2020-01-01T12:00Z


def read(tmp_path, data):
    path = tmp_path / "table"
    path.write_bytes(data)
    file = InputFile(str(path), IngestOptions(), spool=tmp_path)
    blocks = list(file)
    rows = []
    for block in blocks:
        columns = block.columns
        for index in np.flatnonzero(columns.verdict == ACCEPTED):
            src, dst = (unpack(column[index : index + 1])[0].as_py() for column in (columns.src, columns.dst))
            rows.append((int(columns.time_us[index]), src, dst, float(columns.rtt[index])))
    rejected = [(reject.number, reject.reason.value) for block in blocks for reject in block.rejected]
    return rows, rejected, file.trouble.sentences


CSV = """event_time,src_addr,dst_addr,ip_version,rtt,msm_id,size,packet_error_count,probe_id
2020-01-01T12:00:00Z,192.0.2.1,198.51.100.1,4,10.5,1,64,0,7
"2020-01-01 12:00:00","2001:DB8::1","2001:db8::2",6,-1.0,,,3,
1577880000,192.0.2.1,198.51.100.1,,0,,,,
2020-01-01T14:00:00+02:00,192.0.2.1,198.51.100.1,4,1e1,1.0,64,0,7
"""


@pytest.mark.parametrize("pack_up", [bytes, gzip.compress])
def test_csv(pack_up, tmp_path):
    rows, rejected, trouble = read(tmp_path, pack_up(CSV.encode()))
    v4 = ("192.0.2.1", "198.51.100.1")
    expected = [
        (NOON_US, *v4, 10.5),
        (NOON_US, "2001:db8::1", "2001:db8::2", -1.0),
        (NOON_US, *v4, 0.0),
        (NOON_US, *v4, 10.0),
    ]
    assert (rows, rejected, trouble) == (expected, [], [])


def test_tsv_under_other_names_with_windows_ends(tmp_path):
    text = (
        "Timestamp\tSource IP\tTarget\tLatency ms\tnote\r\n1577880000.5\t192.0.2.1\t192.0.2.2\t7\thello\r\n"
    )
    text = text.replace("Latency ms", "latency-ms")
    assert read(tmp_path, text.encode()) == ([(NOON_US + 500_000, "192.0.2.1", "192.0.2.2", 7.0)], [], [])


BAD_ROWS = {
    "2,192.0.2.1,192.0.2.2,1,9,9": "unparsable",
    "2,192.0.2.1,192.0.2.2": "unparsable",
    ",192.0.2.1,192.0.2.2,1": "missing_time",
    "yesterday,192.0.2.1,192.0.2.2,1": "bad_time",
    "2100-01-01,192.0.2.1,192.0.2.2,1": "bad_time",
    "4102444800,192.0.2.1,192.0.2.2,1": "bad_time",
    "1969-12-31T23:59:59Z,192.0.2.1,192.0.2.2,1": "bad_time",
    "2020-13-01,192.0.2.1,192.0.2.2,1": "bad_time",
    "2,,192.0.2.2,1": "missing_source",
    "2,nowhere,192.0.2.2,1": "bad_source",
    "2,192.0.2.1,NULL,1": "missing_destination",
    "2,192.0.2.1,192.0.2.2.2,1": "bad_destination",
    "2,192.0.2.1,2001:db8::1,1": "mixed_versions",
    "2,192.0.2.1,192.0.2.2,": "missing_rtt",
    "2,192.0.2.1,192.0.2.2,NaN": "bad_rtt",
    "2,192.0.2.1,192.0.2.2,inf": "bad_rtt",
    "2,192.0.2.1,192.0.2.2,1e999": "bad_rtt",
    "2,192.0.2.1,192.0.2.2,-2": "bad_rtt",
    "2,192.0.2.1,192.0.2.2,fast": "bad_rtt",
    "2,192.0.2.1,192.0.2.2,3600000.1": "bad_rtt",
    '2,"192.0.2.1,192.0.2.2,1': "unparsable",
    "2,\xff\xfe,192.0.2.2,1": "bad_source",
}


@pytest.mark.parametrize("together", [True, False])
def test_bad_rows_have_their_reasons(together, tmp_path):
    good = "2,192.0.2.1,192.0.2.2,1"
    header = "time,src,dst,rtt"
    groups = [list(BAD_ROWS)] if together else [[row] for row in BAD_ROWS]
    for group in groups:
        lines = [header, good, *group, good]
        rows, rejected, trouble = read(tmp_path, "\n".join(lines).encode("latin-1"))
        assert len(rows) == 2
        assert rejected == [(number, BAD_ROWS[row]) for number, row in enumerate(group, 3)]
        assert trouble == []


def test_a_missing_column_is_said_once(tmp_path):
    rows, rejected, trouble = read(tmp_path, b"time,src,dst,colour\n1,192.0.2.1,192.0.2.2,red\n")
    assert (rows, rejected) == ([], [])
    assert "no column for rtt" in trouble[0]
    assert "colour" in trouble[0]


def parquet(columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
TIMES = {
    "us": pa.array([NOON], pa.timestamp("us", "UTC")),
    "ns without zone": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns")),
    "s in another zone": pa.array([NOON], pa.timestamp("s", "Europe/Berlin")),
    "int seconds": pa.array([NOON_US // 10**6]),
    "int milliseconds": pa.array([NOON_US // 10**3]),
    "int microseconds": pa.array([NOON_US]),
    "int nanoseconds": pa.array([NOON_US * 1000]),
    "float": pa.array([NOON_US / 1e6]),
    "text": pa.array(["2020-01-01T12:00:00.000000000"]),
    "dictionary": pa.array(["2020-01-01 12:00:00"]).dictionary_encode(),
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("pack_up", [bytes, gzip.compress])
def test_parquet_times(name, pack_up, tmp_path):
    data = parquet({"time": TIMES[name], "src": ["192.0.2.1"], "dst": ["192.0.2.2"], "rtt": [3]})
    assert read(tmp_path, pack_up(data)) == ([(NOON_US, "192.0.2.1", "192.0.2.2", 3.0)], [], [])


def test_parquet_wrong_types_have_reasons(tmp_path):
    good = {"time": [2], "src": ["192.0.2.1"], "dst": ["192.0.2.2"], "rtt": [1.0], "msm_id": [4]}
    wrong = {
        "time": (pa.array([[1]]), "bad_time"),
        "src": (pa.array([7]), "bad_source"),
        "dst": (pa.array([{"a": 1}]), "bad_destination"),
        "rtt": (pa.array([True]), "bad_rtt"),
        "msm_id": (pa.array([False]), "bad_field"),
    }
    assert len(read(tmp_path, parquet(good))[0]) == 1
    for name, (column, reason) in wrong.items():
        rows, rejected, trouble = read(tmp_path, parquet({**good, name: column}))
        assert (rows, rejected, trouble) == ([], [(1, reason)], [])


@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_text_that_is_not_utf8_is_rejected_alone(tmp_path, dictionary):
    """Found by fuzzing: Arrow hands out strings without looking, and Python then cannot."""
    columns = {"time": [5, 6], "src": ["192.0.2.1"] * 2, "dst": ["192.0.2.2", "192.0.2.3"], "rtt": [1.0, 2.0]}
    file = io.BytesIO()
    options = {"use_dictionary": dictionary, "write_statistics": False, "compression": "none"}
    pq.write_table(pa.table(columns), file, **options)
    data = file.getvalue()
    assert data.count(b"192.0.2.3") == 1
    rows, rejected, trouble = read(tmp_path, data.replace(b"192.0.2.3", b"192.\x86.2.3"))
    assert rows == [(5_000_000, "192.0.2.1", "192.0.2.2", 1.0)]
    assert rejected == [(2, "bad_destination")]
    assert trouble == []


def test_damaged_parquet_is_named(tmp_path):
    data = parquet(
        {"time": [2] * 1000, "src": ["192.0.2.1"] * 1000, "dst": ["192.0.2.2"] * 1000, "rtt": [1.0] * 1000}
    )
    for damaged in (data[: len(data) // 2], data[:100] + bytes(200) + data[300:], b"PAR1" + bytes(50)):
        _, _, trouble = read(tmp_path, damaged)
        assert len(trouble) == 1
        assert "Parquet" in trouble[0]


def test_numbers_of_many_types():
    for column in (
        pa.array([1, None, 3], pa.int8()),
        pa.array([1.0, None, 3.0]),
        pa.array(["1", None, "3.0"]),
        pa.array([Decimal(1), None, Decimal(3)]),
        pa.array([1, None, 3], pa.uint64()),
    ):
        numbers, bad = arrays.integers(column)
        assert (numbers.tolist(), bad.tolist()) == ([1, -1, 3], [False] * 3)
        values, states = arrays.floats(column)
        assert values[[0, 2]].tolist() == [1.0, 3.0]
        assert states.tolist() == [GIVEN, MISSING, GIVEN]
    numbers, bad = arrays.integers(pa.array([2**63], pa.uint64()))
    assert bad.tolist() == [True]
    assert arrays.integers(pa.array(["1.5", "x", "99999999999999999999"]))[1].all()
    packed, states = arrays.packed_addresses(
        pa.array([pack(["192.0.2.1"])[0].tobytes(), None], pa.binary(16))
    )
    assert unpack(packed[:1]).to_pylist() == ["192.0.2.1"]
    assert states.tolist() == [GIVEN, MISSING]
    assert arrays.times(pa.array([date(2020, 1, 1)]))[0].tolist() == [NOON_US - 12 * 3600 * 10**6]
    assert arrays.times(pa.array([object.__name__]))[1].tolist() == [BAD]


def test_names_are_matched_in_the_order_of_the_list():
    assert tables.match_columns(["avg", "RTT", "From", "src_addr"]) == {"rtt": 1, "src_addr": 3}
    assert len(REASONS) < 250
