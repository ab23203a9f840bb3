"""Figures against a plain count in Python, on tables, splits and raw input."""

import base64
import gzip
import json
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.describe import describe, sample
from ping_llm.describe.figures import Runs
from ping_llm.errors import PingError, UsageError
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.measurements.schema import MEASUREMENTS, MEASUREMENTS_WITH_KIND
from ping_llm.simulate import WorldOptions, simulate
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard

PROGRAM = [sys.executable, "-c", "from ping_llm.cli import main; main()"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("describe") / "world"
    simulate(folder, WorldOptions(measurements=20_000, probes=600, targets=30, days=5, seed=4))
    return folder


def rows_of(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def nearest_rank(values: list, percent: float):
    ordered = sorted(values)
    return ordered[max(0, int(np.ceil(percent / 100 * len(ordered) - 1e-9)) - 1)]


def test_figures_equal_a_plain_count(world, monkeypatch):
    monkeypatch.setattr("ping_llm.describe.figures._BATCH_ROWS", 3_000)  # several batches
    rows = rows_of(world)
    found = describe([str(world)]).as_json()
    assert found["kind"] == "measurements"
    assert found["rows"] == len(rows)
    assert found["first_time"] == f"{min(row['event_time'] for row in rows):%Y-%m-%dT%H:%M:%SZ}"
    assert found["last_time"] == f"{max(row['event_time'] for row in rows):%Y-%m-%dT%H:%M:%SZ}"
    assert found["ipv6"] == sum(row["ip_version"] == 6 for row in rows) == found["rows"] - found["ipv4"]
    assert found["failed"] == sum(row["rtt"] == -1 for row in rows)
    for key, name in (
        ("src_addr", "sources"),
        ("dst_addr", "destinations"),
        ("msm_id", "msm_ids"),
        ("probe_id", "probe_ids"),
    ):
        assert found[name] == len({row[key] for row in rows})
    assert found["pairs"] == len({(row["src_addr"], row["dst_addr"]) for row in rows})

    rtts = [row["rtt"] for row in rows if row["rtt"] != -1]
    for name, value in found["rtt_ms"].items():
        expected = {"min": min, "max": max}.get(name, lambda v, p=name: nearest_rank(v, float(p[1:])))(rtts)
        assert value == expected, name

    times = defaultdict(list)
    for row in rows:
        times[row["src_addr"]].append(row["event_time"])
    sizes = [len(moments) for moments in times.values()]
    assert found["measurements_per_source"]["mean"] == pytest.approx(statistics.mean(sizes), abs=0.001)
    gaps = [
        (later - earlier).total_seconds()
        for moments in map(sorted, times.values())
        for earlier, later in pairwise(moments)
    ]
    for name in ("p1", "p10", "p25", "p50", "p75", "p90", "p99"):
        assert found["measurements_per_source"][name] == nearest_rank(sizes, float(name[1:]))
        assert found["gap_s"][name] == pytest.approx(nearest_rank(gaps, float(name[1:])), rel=0.011)
    assert found["measurements_per_source"]["max"] == max(sizes)
    assert found["gap_s"]["max"] == max(gaps)

    by_day = Counter(f"{row['event_time']:%Y-%m-%d}" for row in rows)
    assert {day["date"]: day["rows"] for day in found["days"]} == by_day
    for day in found["days"]:
        here = [row for row in rows if f"{row['event_time']:%Y-%m-%d}" == day["date"]]
        assert day["failed"] == sum(row["rtt"] == -1 for row in here)
        assert day["sources"] == len({row["src_addr"] for row in here})
    assert found["days_with_data"] == found["days_in_span"] == 5
    by_hour = Counter(row["event_time"].hour for row in rows)
    assert {hour["hour"]: hour["rows"] for hour in found["hours_utc"]} == by_hour


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400_000)), min_size=1, max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
)
def test_runs_do_not_depend_on_the_batches(pairs, lengths):
    pairs = sorted(pairs)
    keys = np.array([key for key, _ in pairs], np.uint64)
    times = np.array([second * 10**6 for _, second in pairs], np.int64)
    whole, pieces = Runs(), Runs()
    whole.feed(keys, times)
    begin = 0
    for length in [*lengths, len(pairs)]:
        pieces.feed(keys[begin : begin + length], times[begin : begin + length])
        begin += length
    for runs in (whole, pieces):
        runs.finish()
    assert whole.sizes == pieces.sizes == Counter(Counter(keys.tolist()).values())
    np.testing.assert_array_equal(whole.gaps, pieces.gaps)
    assert whole.gaps.sum() == len(pairs) - len(set(keys.tolist()))
    assert whole.longest_gap_us == pieces.longest_gap_us


def test_splits_are_described_side_by_side(world, tmp_path):
    shard([str(world)], tmp_path / "splits", ShardOptions(by="time", shards=3))
    found = describe([str(tmp_path / "splits")])
    content = found.as_json()
    assert content["kind"] == "splits"
    assert list(content["splits"]) == ["train", "val", "test"]
    assert sum(part["rows"] for part in content["splits"].values()) == 20_000
    header = found.as_text().splitlines()[2]
    assert header.split() == ["train", "val", "test"]


RESULT = {
    "fw": 5080,
    "af": 4,
    "type": "ping",
    "proto": "ICMP",
    "sent": 3,
    "rcvd": 3,
    "size": 48,
    "prb_id": 7,
    "msm_id": 1001,
    "from": "193.0.0.9",
    "src_addr": "192.168.0.5",
    "dst_addr": "193.0.14.129",
    "result": [{"rtt": 10.0}, {"rtt": 11.0}, {"rtt": 12.0}],
    "min": 10.0,
    "avg": 11.0,
    "max": 12.0,
}


def test_raw_input_goes_through_ingest(tmp_path):
    path = tmp_path / "results.jsonl"
    results = [{**RESULT, "timestamp": 1_600_000_000 + 60 * i} for i in range(50)]
    path.write_text("\n".join(json.dumps(result) for result in results) + "\nrubbish\n")
    found = describe([str(path)]).as_json()
    assert found["kind"] == "raw input"
    assert (found["rows"], found["sources"], found["gap_s"]["p50"]) == (50, 1, 60)
    assert found["rtt_ms"]["p50"] == 11.0
    drawn = sample([str(path)], 5)
    assert drawn.schema == MEASUREMENTS
    assert len(drawn) == 5
    (tmp_path / "nothing.jsonl").write_text("rubbish\n")
    for look in (describe, lambda places: sample(places, 3)):
        with pytest.raises(PingError, match="has no measurement"):
            look([str(tmp_path / "nothing.jsonl")])
        with pytest.raises(UsageError, match="does not exist"):
            look([str(tmp_path / "nowhere")])


def test_a_damaged_file_is_described_and_said(tmp_path):
    text = b"time,src,dst,rtt\n" + b"".join(b"%d,100.0.0.1,192.0.2.1,10\n" % n for n in range(5_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text)[:-5_000])
    done = subprocess.run(
        [*PROGRAM, "describe", str(tmp_path / "a.csv.gz"), "--json"], capture_output=True, check=False
    )
    assert 0 < json.loads(done.stdout)["rows"] < 5_000
    assert b"ends early" in done.stderr
    assert done.returncode == 1


def test_bare_columns_and_a_single_failure_are_enough(tmp_path):
    table = {
        "event_time": pa.array([5 * 10**6], pa.timestamp("us", tz="UTC")),
        "src_addr": ["2a00::1"],
        "dst_addr": ["2a00::2"],
        "rtt": [-1.0],
    }
    pq.write_table(pa.table(table), tmp_path / "one.parquet")
    description = describe([str(tmp_path / "one.parquet")])
    found = description.as_json()
    assert (found["rows"], found["failed"], found["msm_ids"], found["rtt_ms"], found["gap_s"]) == (
        1,
        1,
        0,
        {},
        {},
    )
    assert "measurements" in description.as_text()
    assert description.as_html().count("<img") == 5
    assert sample([str(tmp_path / "one.parquet")], 20).to_pylist()[0]["probe_id"] is None


def test_kinds_are_counted_and_shown_where_some_are_no_pings(world, tmp_path):
    found = describe([str(world)])
    assert found.as_json()["kinds"] == {"ping": 20_000, "hop": 0, "last": 0}
    assert "kind" not in found.as_text()
    header = "time,src,dst,rtt,kind"
    path = tmp_path / "table.csv"
    path.write_text(
        "\n".join([header, *(f"{i},2a00::1,2a00::2,1,{'hop' if i % 4 else ''}" for i in range(8))])
    )
    table = pa.table(
        {
            "event_time": pa.array([5] * 8, pa.timestamp("us", tz="UTC")),
            "src_addr": ["2a00::1"] * 8,
            "dst_addr": ["2a00::2"] * 8,
            "rtt": [1.0] * 8,
            "kind": ["hop", None] * 2 + ["hop"] * 4,
        }
    )
    pq.write_table(table, tmp_path / "table.parquet")
    for place in ("table.csv", "table.parquet"):
        found = describe([str(tmp_path / place)])
        assert found.as_json()["kinds"] == {"ping": 2, "hop": 6, "last": 0}
        assert "kind hop" in found.as_text()
        assert found.as_text().startswith(f"{found.kind}\n")
        assert "6 (75.0 %)" in found.as_text()
        assert "<td>kind hop</td><td>6 (75.0 %)</td>" in found.as_html()
        drawn = sample([str(tmp_path / place)], 8)
        assert drawn.schema.equals(MEASUREMENTS_WITH_KIND, check_metadata=True)
        assert Counter(drawn["kind"].to_pylist()) == {"hop": 6, "ping": 2}


def test_page_is_one_file_with_plots(world):
    page = describe([str(world)]).as_html()
    pictures = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]
    assert len(pictures) == 5
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert "20,000" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_sample_is_even_distinct_and_repeatable(world):
    everything = {tuple(row.values()) for row in rows_of(world)}
    drawn = sample([str(world)], 2_000, seed=1).to_pylist()
    assert drawn == sample([str(world)], 2_000, seed=1).to_pylist()
    assert drawn != sample([str(world)], 2_000, seed=2).to_pylist()
    assert len({tuple(row.values()) for row in drawn}) == 2_000
    assert {tuple(row.values()) for row in drawn} <= everything
    assert [row["event_time"] for row in drawn] == sorted(row["event_time"] for row in drawn)
    per_day = Counter(row["event_time"].day for row in drawn)
    assert min(per_day.values()) > 300
    assert len(sample([str(world)], 10**6)) == 20_000


def test_commands_from_end_to_end(world, tmp_path):
    page = tmp_path / "page.html"
    done = subprocess.run(
        [*PROGRAM, "describe", str(world), "--json", "--html", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 20_000
    assert page.stat().st_size > 50_000
    drawn = subprocess.run(
        [*PROGRAM, "sample", str(world), "-n", "7"], capture_output=True, text=True, check=False
    )
    assert drawn.returncode == 0, drawn.stderr
    assert len(drawn.stdout.splitlines()) == 8


def test_figures_by_country_and_system(tmp_path):
    rows = [
        {"event_time": n * 1_000_000, "src_addr": f"192.0.2.{n % 2}", "dst_addr": dst, "rtt": rtt,
         "ip_version": 4}
        for n in range(10)
        for dst, rtt in (("198.51.100.7", 20.0), ("203.0.113.5", -1.0 if n < 4 else 300.0))
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, MEASUREMENTS), tmp_path / "pings.parquet")
    (tmp_path / "places.csv").write_text("prefix,country,asn\n198.51.100.0/24,NL,3333\n192.0.2.0/24,DE,\n")
    command = ["describe", str(tmp_path / "pings.parquet"), "--places", str(tmp_path / "places.csv")]
    found = subprocess.run([*PROGRAM, *command, "--json"], capture_output=True, check=True).stdout
    places = json.loads(found)["places"]
    assert places["sources"]["country"] == [
        {"name": "DE", "addresses": 2, "rows": 20, "failed": 4, "rtt_p50": pytest.approx(20, rel=0.02)}
    ]
    assert [(one["name"], one["rows"], one["failed"]) for one in places["destinations"]["asn"]] == [
        ("AS3333", 10, 0),
        ("unknown", 10, 4),
    ]
    assert places["destinations"]["asn"][1]["rtt_p50"] == pytest.approx(300, rel=0.02)
    text = subprocess.run([*PROGRAM, *command], capture_output=True, check=True, text=True).stdout
    assert "destinations by AS" in text
    assert "AS3333" in text


def test_what_ingest_did_not_take_is_shown_by_reason(tmp_path):
    """A result that is faster than light, one without a time, a copy, and three measurements."""
    rows = [
        "1700000000,192.0.2.1,198.51.100.7,80", "1700000001,192.0.2.1,198.51.100.7,81",
        "1700000002,192.0.2.1,198.51.100.7,-1", "1700000002,192.0.2.1,198.51.100.7,-1",
        "1700000003,192.0.2.1,198.51.100.7,2", ",192.0.2.1,198.51.100.7,80",
    ]  # fmt: skip
    (tmp_path / "pings.csv").write_text("\n".join(["event_time,src_addr,dst_addr,rtt", *rows]) + "\n")
    places = tmp_path / "places.csv"
    places.write_text("prefix,latitude,longitude\n192.0.2.0/24,52,5\n198.51.100.0/24,40,-74\n")
    out = tmp_path / "out"
    ingest([str(tmp_path / "pings.csv")], out, IngestOptions(places=(str(places),)))
    found = describe([str(out)])
    assert found.as_json()["rows"] == 3
    assert found.as_json()["ingest"] == json.loads((out / "ingest.json").read_text())["total"]
    shown = [re.split(r"  +", line.strip()) for line in found.as_text().splitlines()]
    for row in (["duplicates", "1 (16.7 %)"], ["rejected", "2 (33.3 %)"], ["too_fast", "1 (16.7 %)"]):
        assert row in shown
    assert "too_fast" in found.as_html()
    both = describe([str(out), str(out)])
    assert both.ingested.rejects["too_fast"] == 2
    assert "ingest" not in describe([str(out / "date=2023-11-14")]).as_json()  # its folder does not say
    (out / "ingest.json").write_text("{}")
    assert describe([str(out)]).ingested is None
