"""Downloads from a real HTTP server that fails as servers do."""

import bz2
import gzip
import json
import os
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from atlas_server import AtlasServer

from ping_llm.errors import PingError, UsageError
from ping_llm.fetch.atlas import ResultsOptions, fetch_probes, fetch_results
from ping_llm.fetch.dumps import fetch_dumps, hours_of
from ping_llm.fetch.server import Pace
from ping_llm.locks import only_writer

QUICK = Pace(retries=3, first_pause=0.001, timeout=5.0)
START = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def atlas():
    with AtlasServer().running() as server:
        yield server


def options(atlas: AtlasServer, hours: float = 12, **more) -> ResultsOptions:
    stop = START + timedelta(hours=hours)
    return ResultsOptions((1001, 1004), START, stop, window=timedelta(hours=5), base_url=atlas.url, **more)


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_result_is_fetched_once_and_can_be_ingested(atlas, tmp_path):
    figures = fetch_results(options(atlas), tmp_path / "out", pace=QUICK)
    files = [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")]
    lines = [line for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]
    expected = [
        atlas.result(measurement, int(START.timestamp()) + 600 * step, probe)
        for measurement in (1001, 1004)
        for step in range(72)
        for probe in (1, 2, 3)
    ]
    assert sorted(lines) == sorted(expected)
    size = sum(path.stat().st_size for path in files)
    assert figures == {"windows": 6, "files": 6, "results": 432, "bytes": size}

    from ping_llm.ingest.options import IngestOptions
    from ping_llm.ingest.run import ingest

    report = ingest([str(tmp_path / "out")], tmp_path / "table", IngestOptions(), 1).total
    # The two measurements ping the same address at the same times, with other ids.
    assert (report.results, report.measurements, report.rejected) == (432, 432, 0)


def test_what_is_there_is_not_fetched_again(atlas, tmp_path):
    fetch_results(options(atlas), tmp_path, pace=QUICK)
    before = contents(tmp_path)
    atlas.asked.clear()
    fetch_results(options(atlas), tmp_path, pace=QUICK)
    assert not atlas.asked
    assert contents(tmp_path) == before
    victim = next(path for path in sorted(tmp_path.iterdir()) if path.suffix == ".gz")
    victim.write_bytes(b"damaged")
    fetch_results(options(atlas), tmp_path, pace=QUICK)
    assert len(atlas.asked) == 1
    assert contents(tmp_path) == before


def test_a_window_without_results_is_remembered(atlas, tmp_path):
    one = ResultsOptions(
        (1001,), START + timedelta(seconds=1), START + timedelta(seconds=90), base_url=atlas.url
    )
    assert fetch_results(one, tmp_path, pace=QUICK)["files"] == 0
    atlas.asked.clear()
    assert fetch_results(one, tmp_path, pace=QUICK)["results"] == 0
    assert not atlas.asked


def test_faults_are_survived_to_the_same_bytes(atlas, tmp_path):
    fetch_results(options(atlas), tmp_path / "calm", pace=QUICK)
    atlas.faults = ["cut", 500, 429, "short", 503, "cut", 502, "long", 504, "cut", 500]
    fetch_results(options(atlas), tmp_path / "rough", pace=Pace(retries=12, first_pause=0.001))
    assert not atlas.faults
    assert contents(tmp_path / "calm") == contents(tmp_path / "rough")


def test_a_server_that_keeps_failing_is_given_up(atlas, tmp_path):
    atlas.faults = [500] * 4
    with pytest.raises(PingError, match="answered 500; given up after 4 tries"):
        fetch_results(options(atlas), tmp_path, pace=QUICK)
    assert len(atlas.asked) == 4


@pytest.mark.parametrize(("status", "sentence"), [(400, "said so"), (403, "the key is"), (404, "not found")])
def test_an_error_of_ours_is_not_tried_again(atlas, tmp_path, status, sentence):
    atlas.faults = [status]
    with pytest.raises(PingError, match=sentence):
        fetch_results(options(atlas), tmp_path, pace=QUICK)
    assert len(atlas.asked) == 1


def test_a_long_retry_after_is_told_and_not_waited_for(atlas, tmp_path):
    atlas.faults = [429]
    short = Pace(retries=3, first_pause=0.001, longest_wait=-1.0)
    with pytest.raises(PingError, match="it asks to wait"):
        fetch_results(options(atlas), tmp_path, pace=short)


def test_another_host_is_never_asked(atlas, tmp_path):
    with AtlasServer().running() as other:
        atlas.redirect = f"{other.url}measurements/1001/results/"
        with pytest.raises(PingError, match="redirects to another host"):
            fetch_results(options(atlas), tmp_path, key="secret-key", pace=QUICK)
        assert not other.asked
    assert atlas.asked[0][1]["Authorization"] == "Key secret-key"
    atlas.redirect = f"/measurements/1001/results/?format=txt&start={int(START.timestamp())}&stop=1714521600"
    fetch_results(options(atlas, 1), tmp_path / "same", pace=QUICK)  # the same host is


def test_a_key_is_not_sent_in_the_clear(tmp_path):
    with pytest.raises(UsageError, match="only sent over https"):
        fetch_results(
            ResultsOptions((1,), START, START + timedelta(hours=1), base_url="http://192.0.2.1/"),
            tmp_path,
            key="k",
        )


def test_a_folder_of_other_downloads_is_refused_and_unchanged(atlas, tmp_path):
    fetch_results(options(atlas), tmp_path, pace=QUICK)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="probes all, not"):
        fetch_results(options(atlas, probes=(2,)), tmp_path, pace=QUICK)
    with only_writer(tmp_path, "fetch"), pytest.raises(PingError, match="is being written by"):
        fetch_results(options(atlas), tmp_path, pace=QUICK)
    assert contents(tmp_path) == before


@pytest.fixture
def dump(atlas) -> bytes:
    content = bz2.compress(random.Random(1).randbytes(120_000))
    atlas.dumps["2024-05-01/ping-2024-05-01T0700.bz2"] = content
    return content


def test_a_dump_is_continued_where_the_connection_broke(atlas, dump, tmp_path):
    atlas.faults = ["cut", "cut", 503, "cut"]
    fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=QUICK)
    assert contents(tmp_path)["ping-2024-05-01T0700.bz2"] == dump
    ranges = [headers.get("Range") for _, headers in atlas.asked]
    assert ranges[0] is None
    assert ranges[1] == f"bytes={len(dump) // 2}-"
    assert all(ranges[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fetch.json", "ping-2024-05-01T0700.bz2"]


def test_a_kill_after_a_dump_was_recorded_leaves_nothing_behind(atlas, dump, tmp_path):
    fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=QUICK)
    before = contents(tmp_path)
    for left in (".ping-2024-05-01T0700.bz2.part.json", "..fetch.json.123.part",
                 "..ping-2024-05-01T0700.bz2.part.json.123.part"):  # fmt: skip
        (tmp_path / left).write_text("{}")
    fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=QUICK)
    assert contents(tmp_path) == before


def test_a_dump_that_changes_meanwhile_is_begun_anew(atlas, dump, tmp_path):
    other = bz2.compress(random.Random(2).randbytes(120_000))
    atlas.faults = ["cut"]
    with pytest.raises(PingError, match="given up after 1 tries"):
        fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=Pace(retries=0))
    atlas.dumps["2024-05-01/ping-2024-05-01T0700.bz2"], atlas.tag = other, '"two"'
    fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=QUICK)
    assert atlas.asked[1][1]["Range"]
    assert contents(tmp_path)["ping-2024-05-01T0700.bz2"] == other


@pytest.mark.parametrize("fault", ["other range", "short", "long"])
def test_a_wrong_part_of_a_dump_is_not_kept(atlas, dump, tmp_path, fault):
    atlas.faults = ["cut", fault]
    fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=QUICK)
    assert contents(tmp_path)["ping-2024-05-01T0700.bz2"] == dump


def test_a_server_without_ranges_is_read_from_the_start(atlas, dump, tmp_path):
    atlas.ranges, atlas.faults = False, ["cut", "cut"]
    fetch_dumps(hours_of("2024-05-01T07"), tmp_path, base_url=atlas.url, pace=QUICK)
    assert contents(tmp_path)["ping-2024-05-01T0700.bz2"] == dump


def test_what_is_no_dump_is_refused(atlas, tmp_path):
    atlas.dumps["2024-05-01/ping-2024-05-01T0700.bz2"] = b"<html>sorry</html>"
    with pytest.raises(UsageError, match="not bzip2"):
        fetch_dumps(hours_of("2024-05-01T07"), tmp_path / "out", base_url=atlas.url, pace=QUICK)
    assert not (tmp_path / "out").exists()
    assert len(hours_of("2024-05-01")) == 24
    with pytest.raises(UsageError, match="an hour like"):
        hours_of("yesterday")


def test_probes_become_a_table(atlas, tmp_path):
    atlas.probes = [
        {
            "id": number,
            "address_v4": f"192.0.{number // 256}.{number % 256}",
            "asn_v4": 64500,
            "country_code": "NL",
            "geometry": {"type": "Point", "coordinates": [4.9, 52.4]} if number % 2 else None,
            "status": {"id": 1, "name": "Connected"},
        }
        for number in range(1, 1202)
    ]
    atlas.faults = ["cut", 500]
    figures = fetch_probes(tmp_path / "probes.parquet", atlas.url, pace=QUICK)
    assert figures == {"probes": 1201, "with_place": 601}
    rows = pq.read_table(tmp_path / "probes.parquet").to_pylist()
    assert [row["probe_id"] for row in rows] == list(range(1, 1202))
    assert (rows[0]["latitude"], rows[0]["longitude"], rows[0]["status"]) == (52.4, 4.9, "Connected")
    assert rows[1]["latitude"] is None


def test_killed_at_ten_moments_it_ends_with_the_same_bytes(atlas, dump, tmp_path):
    """The server kills the program when it has sent so many bytes: between any two pieces of any body."""
    fetch_results(options(atlas), tmp_path / "calm", pace=QUICK)
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()", "fetch"]
    results = ["atlas", "--msm", "1001,1004", "--start", "2024-05-01", "--stop", "2024-05-01T12:00Z"]
    results += ["--window", "5", "--out", str(tmp_path / "killed"), "--base-url", atlas.url]
    dumps = ["dump", "2024-05-01T07", "--out", str(tmp_path / "dump"), "--base-url", atlas.url]
    chance = random.Random(0)
    kills = 0
    for words, most in ((results, 8000), (dumps, 50_000)):
        for _ in range(5):
            process = subprocess.Popen(
                [*program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            limit = atlas.total + chance.randrange(most)

            def kill(total: int, process=process, limit=limit) -> None:
                if total >= limit:
                    os.kill(process.pid, signal.SIGKILL)

            atlas.sent = kill
            kills += process.wait() == -signal.SIGKILL
            atlas.sent = lambda total: None
        subprocess.run([*program, *words], check=True, capture_output=True)
    assert kills >= 8
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert contents(tmp_path / "dump")["ping-2024-05-01T0700.bz2"] == dump
    assert json.loads((tmp_path / "killed" / ".fetch.json").read_bytes())["format"] == 1
