"""A run end to end: what comes out, where everything went, and that the bytes do not depend on the way."""

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
from atlas_results import ping, write_lines

from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.measurements.schema import MEASUREMENTS


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_gz_lines_become_partitions_and_an_account(tmp_path):
    results = [
        ping(timestamp=1_600_000_000 + 7 * (index % 50) * 3600, result=[{"rtt": 10.0 + index}])
        for index in range(100)
    ]
    results += [results[3], {"type": "traceroute"}, ping(timestamp=None)]
    path = tmp_path / "results.gz"
    path.write_bytes(gzip.compress(write_lines(results)))
    report = ingest([str(path)], tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "ingest.json").read_text())
    assert summary == report.as_json()
    expected = {
        "results": 103,
        "measurements": 100,
        "duplicates": 1,
        "not_pings": 1,
        "rejects": {"missing_time": 1},
    }
    assert summary["total"] == expected
    assert {name: summary["files"][0][name] for name in expected} == expected
    days = sorted((tmp_path / "out").glob("date=*"))
    assert days[0].name == "date=2020-09-13"
    tables = [pq.ParquetFile(day / "part-0.parquet").read() for day in days]
    assert all(table.schema.equals(MEASUREMENTS, check_metadata=True) for table in tables)
    assert sum(map(len, tables)) == 100
    for day, table in zip(days, tables, strict=True):
        times = table["event_time"].to_pylist()
        assert times == sorted(times)
        assert {f"date={time:%Y-%m-%d}" for time in times} == {day.name}
    rejects = pq.read_table(tmp_path / "out" / "rejects")
    assert rejects.select(["file", "record", "reason"]).to_pylist() == [
        {"file": str(path), "record": 103, "reason": "missing_time"}
    ]
    assert json.loads(rejects["raw"][0].as_py()) == ping(timestamp=None)
    assert not (tmp_path / "out" / ".ingest").exists()


def test_each_packet_is_a_row_and_equal_losses_are_not_duplicates(tmp_path):
    lost = ping(result=[{"x": "*"}, {"x": "*"}, {"rtt": 5.0}])
    other = ping(result=[{"x": "*"}, {"x": "*"}, {"rtt": 6.0}])
    path = tmp_path / "results.json"
    path.write_bytes(write_lines([lost, lost, other]))
    report = ingest([str(path)], tmp_path / "out", IngestOptions(rtt="each"))
    assert report.as_json()["total"] == {
        "results": 3, "measurements": 2, "duplicates": 1, "not_pings": 0, "rejects": {}, "packets": 6,
    }  # fmt: skip
    rows = (
        pq.read_table(next((tmp_path / "out").glob("date=*")))
        .select(["rtt", "packet_error_count"])
        .to_pylist()
    )
    assert sorted((row["rtt"], row["packet_error_count"]) for row in rows) == [
        *[(-1.0, 1)] * 4,
        (5.0, 0),
        (6.0, 0),
    ]
