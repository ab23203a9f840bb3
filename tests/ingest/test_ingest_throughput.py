"""Throughputs in tables: kept from every kind of table, in version 3; without one, the old bytes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_program import tree

from ping_llm.ingest import read_measurements
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.measurements import parquet, schema

START = 1_700_000_000
GOLDEN = Path(__file__).parents[1] / "golden" / "measurements-3.parquet"


def table(count=8, throughputs=(94.3, None, 0.0, 1000.0), day=0) -> pa.Table:
    """Measurements of two days, from `day` on."""
    days = [(START + 60 * i + 86_400 * (day + i % 2)) * 1_000_000 for i in range(count)]
    mbps = [throughputs[i % len(throughputs)] for i in range(count)]
    return pa.table(
        {
            "event_time": pa.array(days, pa.timestamp("us", tz="UTC")),
            "src_addr": ["192.0.2.1"] * count,
            "dst_addr": ["198.51.100.7"] * count,
            "rtt": [float(i) for i in range(count)],
            "throughput_mbps": pa.array(mbps, pa.float64()),
        }
    )


def as_csv(given: pa.Table) -> str:
    lines = [",".join(given.column_names)]
    for row in given.to_pylist():
        row["event_time"] = row["event_time"].isoformat()
        lines.append(",".join("" if value is None else str(value) for value in row.values()))
    return "\n".join(lines) + "\n"


def as_json(given: pa.Table) -> str:
    rows = given.to_pylist()
    return "".join(json.dumps(row | {"event_time": row["event_time"].isoformat()}) + "\n" for row in rows)


def kept(out: Path) -> dict[float, float | None]:
    """Throughputs by RTT."""
    rows = pa.concat_tables(pq.read_table(path) for path in sorted(out.glob("date=*/*.parquet"))).to_pylist()
    return {row["rtt"]: row["throughput_mbps"] for row in rows}


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "float32 with NaN"])
def test_every_table_keeps_its_throughputs(tmp_path, form):
    given = table()
    path = tmp_path / "table"
    if form == "parquet":
        pq.write_table(given, path)
    elif form == "float32 with NaN":
        odd = pa.array(np.array([94.5, np.nan, 0, 1000] * 2, np.float32))
        pq.write_table(given.set_column(4, "Throughput Mbps", odd), path)
    else:
        path.write_text(as_csv(given) if form == "csv" else as_json(given))
    report = ingest([str(path)], tmp_path / "out", workers=1)
    assert (report.total.measurements, report.total.rejects.total()) == (8, 0)
    first = 94.5 if "NaN" in form else 94.3
    assert kept(tmp_path / "out") == {float(i): (first, None, 0.0, 1000.0)[i % 4] for i in range(8)}
    for day in (tmp_path / "out").glob("date=*/*.parquet"):
        assert pq.read_schema(day).equals(schema.MEASUREMENTS_WITH_THROUGHPUT, check_metadata=True)
    columns = parquet.read_measurements(tmp_path / "out", every_column=True)
    assert columns.to_arrow().equals(pa.concat_tables(
        pq.read_table(path) for path in sorted((tmp_path / "out").glob("date=*/*.parquet"))
    ))  # fmt: skip


def test_without_a_known_one_the_bytes_are_the_old_ones(tmp_path):
    given = table()
    pq.write_table(given.drop_columns("throughput_mbps"), tmp_path / "plain.parquet")
    pq.write_table(table(throughputs=(None,)), tmp_path / "unknown.parquet")
    for name in ("plain", "unknown"):
        ingest([str(tmp_path / f"{name}.parquet")], tmp_path / name, workers=1)
    days = [{name: data for name, data in tree(tmp_path / folder).items() if name.startswith("date=")}
            for folder in ("plain", "unknown")]  # fmt: skip
    assert days[0] == days[1]
    written = pq.read_schema(tmp_path / "plain" / next(iter(days[0])))
    assert written.equals(schema.MEASUREMENTS, check_metadata=True)


def test_what_is_no_throughput_is_a_bad_field(tmp_path):
    (tmp_path / "table.csv").write_text(as_csv(table()).replace("94.3", "fast").replace("1000.0", "-5"))
    report = ingest([str(tmp_path / "table.csv")], tmp_path / "out", workers=1)
    assert dict(report.total.rejects) == {"bad_field": 4}


def test_results_that_differ_in_their_throughput_are_two(tmp_path):
    given = table(count=1)
    rows = pa.concat_tables(
        [given, given, table(count=1, throughputs=(8.0,)), table(count=1, throughputs=(None,))]
    )
    pq.write_table(rows, tmp_path / "table.parquet")
    report = ingest([str(tmp_path / "table.parquet")], tmp_path / "out", workers=1)
    assert (report.total.measurements, report.total.duplicates) == (3, 1)
    written = pq.read_table(next((tmp_path / "out").glob("date=*/*.parquet")))
    assert written["throughput_mbps"].to_pylist() == [None, 8.0, 94.3]


def test_append_gives_the_bytes_of_one_run(tmp_path):
    pq.write_table(table().drop_columns("throughput_mbps"), tmp_path / "1.parquet")
    # The days of the first file have no new measurement, and yet one more column.
    pq.write_table(table(count=12, day=5), tmp_path / "2.parquet")
    later = table(count=4, day=5).drop_columns("throughput_mbps")
    pq.write_table(later.set_column(3, "rtt", pa.array([50.0, 51.0, 52.0, 53.0])), tmp_path / "3.parquet")
    paths = [str(tmp_path / f"{number}.parquet") for number in (1, 2, 3)]
    ingest(paths, tmp_path / "all", workers=1)
    for path in paths:
        ingest([path], tmp_path / "out", IngestOptions(), workers=1, append=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "all")


def test_the_golden_table_reads_as_it_was_written():
    assert pq.read_schema(GOLDEN).equals(schema.MEASUREMENTS_WITH_THROUGHPUT, check_metadata=True)
    (batch,) = read_measurements([str(GOLDEN)], version=3)
    assert [(row["rtt"], row["kind"], row["throughput_mbps"]) for row in batch.to_pylist()] == [
        (12.345, "ping", 94.3),
        (-1.0, "hop", None),
        (20.0, "last", 0.0),
    ]
