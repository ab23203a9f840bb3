"""One reader: questions are given whatever `ingest` reads and whatever our commands write."""

import bz2
import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ping_llm.answer.files import read_columns, read_questions
from ping_llm.answer.report import print_anomalies, print_results
from ping_llm.errors import PingError
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.measurements.addresses import unpack
from ping_llm.rows.build import build
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard

ROWS = [
    (1_600_000_000 + 60 * n, f"100.0.0.{n % 3}", f"192.0.2.{n % 5}", -1.0 if n == 4 else 10.5 + n)
    for n in range(12)
]


def csv(delimiter=",", names=("timestamp", "src", "dst", "rtt_ms")) -> bytes:
    return "\n".join(delimiter.join(map(str, row)) for row in [names, *ROWS]).encode() + b"\n"


def objects(*names: str) -> list[dict]:
    return [dict(zip(names, row, strict=True)) for row in ROWS]


def atlas() -> list[dict]:
    return [
        {
            "fw": 5080, "type": "ping", "af": 4, "from": src, "dst_addr": dst, "timestamp": time, "sent": 1,
            "rcvd": int(rtt >= 0), "result": [{"rtt": rtt} if rtt >= 0 else {"x": "*"}], "prb_id": 1,
            "msm_id": 2, "avg": rtt, "min": rtt, "max": rtt,
        }
        for time, src, dst, rtt in ROWS
    ]  # fmt: skip


def lines(values) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


FILES = {
    "a.csv": csv(),
    "a.csv.gz": gzip.compress(csv()),
    "a.tsv": csv("\t", ("ts", "source", "destination", "latency")),
    "no suffix": csv(";"),
    "a.jsonl": lines(objects("event_time", "src_addr", "dst_addr", "rtt")),
    "a.ndjson.bz2": bz2.compress(lines(objects("time", "src_ip", "dst_ip", "rtt"))),
    "table.json": json.dumps(objects("time", "src", "dst", "rtt")).encode(),
    "atlas.jsonl": lines(atlas()),
    "atlas.json.gz": gzip.compress(json.dumps(atlas(), indent=1).encode()),
}


def same(columns) -> bool:
    found = zip(
        (columns.time // 1_000_000).tolist(),
        unpack(columns.src).to_pylist(),
        unpack(columns.dst).to_pylist(),
        columns.rtt.tolist(),
        strict=True,
    )
    return sorted(found) == sorted(ROWS)


@pytest.mark.parametrize("name", FILES)
def test_what_ingest_reads_is_read(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    assert same(read_columns(tmp_path / name))
    questions, observed = read_questions(tmp_path / name)
    assert len(questions) == len(observed) == len(ROWS)
    # And the other way round: what is read here, ingest reads.
    total = ingest([str(tmp_path / name)], tmp_path / "out").total
    assert (total.measurements, total.rejected) == (len(ROWS), 0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What our commands write of the same measurements."""
    place = tmp_path_factory.mktemp("folders")
    (place / "a.csv").write_bytes(csv())
    ingest([str(place / "a.csv")], place / "ingest", IngestOptions())
    shard([str(place / "ingest")], place / "split", ShardOptions(shards=3))
    build([place / "ingest"], place / "rows")
    return place


@pytest.mark.parametrize("name", ["ingest", "split", "rows"])
def test_what_our_commands_write_is_read(name, folders):
    assert same(read_columns(folders / name))


@pytest.mark.parametrize("how", [print_results, lambda *a: print_anomalies(*a[:2], 3, *a[2:])])
def test_a_folder_is_scored_whole(how, folders, model, capsys):
    how(model, folders / "ingest", None, True)
    printed = capsys.readouterr().out
    assert len(json.loads(printed) if printed.startswith("[") else printed.splitlines()) in (3, len(ROWS))


def test_notes_of_our_folders_are_no_input(tmp_path):
    simulate(
        tmp_path / "below" / "world", WorldOptions(measurements=100, probes=5, targets=3, days=2, seed=1)
    )
    report = ingest([str(tmp_path / "below")], tmp_path / "out")
    assert (report.total.measurements + report.total.duplicates, report.total.rejected) == (100, 0)


def test_what_is_not_a_measurement_is_said(tmp_path, capsys):
    (tmp_path / "atlas").write_bytes(lines([*atlas(), {"fw": 5080, "type": "dns"}]))
    assert same(read_columns(tmp_path / "atlas"))
    assert "1 of 13 results" in capsys.readouterr().err


def test_errors_count_lines_as_an_editor_does(tmp_path):
    (tmp_path / "a.csv").write_bytes(csv() + b"1600000000,100.0.0.1,nowhere,1\n")
    with pytest.raises(PingError, match=r"a\.csv, line 14: dst_addr nowhere"):
        read_columns(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("src,dst\n100.0.0.1,192.0.2.0/24\n100.0.0.1,::1\n")
    with pytest.raises(PingError, match=r"b\.csv, line 3: .*same IP version"):
        read_questions(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("src,dst,rtt\n100.0.0.1,192.0.2.1\n")
    with pytest.raises(PingError, match=r"c\.csv, line 2 cannot be read as a row"):
        read_columns(tmp_path / "c.csv")
    table = pa.table({"src": ["100.0.0.1"], "dst": ["192.0.2.1"], "time": [np.inf]})
    pq.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(PingError, match=r"d\.parquet, row 1: event_time inf"):
        read_questions(tmp_path / "d.parquet")


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(FILES["a.csv.gz"][:-20])
    with pytest.raises(PingError, match="ends early"):
        read_columns(tmp_path / "a.csv.gz")


@pytest.mark.parametrize("content", [b"", b"src,dst,rtt\n", b"# Notes\n"])
def test_nothing_to_read_is_said(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(PingError, match=r"has no measurements; .* such as src_addr,dst_addr,rtt; .*English"):
        read_columns(tmp_path / "a")


TRACEROUTE = {"fw": 5080, "type": "traceroute", "af": 4, "from": "100.0.0.1", "dst_addr": "192.0.2.1",
              "timestamp": 1_600_000_000, "prb_id": 1, "msm_id": 2, "result": []}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            lines([TRACEROUTE]),
            "none of the 1 results is a ping; if they are traceroutes, .*--traceroutes last",
        ),
        (b"a,b,c\n1,2,3\n", r"no column for src_addr and dst_addr and rtt \(it has a, b, c\)"),
        (bytes(range(256)) * 9, "it is binary data, not a text of measurements"),
        (b"\x89PNG\r\n" + bytes(99), "it is a picture; measurements are text or Parquet"),
    ],
)
def test_what_is_no_table_of_measurements_is_named(content, says, tmp_path, capsys):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(PingError, match=says):
        read_columns(tmp_path / "a")
    assert not capsys.readouterr().err


def test_a_bad_row_says_how_the_others_are_kept(tmp_path):
    (tmp_path / "a.csv").write_bytes(csv() + b"1600000000,100.0.0.1,nowhere,1\n")
    with pytest.raises(PingError, match=r"line 14: .*; `ping-llm ingest .*a\.csv --out FOLDER` keeps"):
        read_columns(tmp_path / "a.csv")
    ingest([str(tmp_path / "a.csv")], tmp_path / "out", IngestOptions())
    assert same(read_columns(tmp_path / "out"))
