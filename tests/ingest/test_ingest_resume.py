"""Interruptions, exit codes and the ways in: the program as a user runs it."""

import gzip
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from atlas_results import ping, write_lines
from ingest_program import program, tree

from ping_llm.errors import UsageError
from ping_llm.ingest import plan as ingest_plan
from ping_llm.ingest import read_measurements
from ping_llm.ingest import run as ingest_run
from ping_llm.ingest import workers as ingest_workers
from ping_llm.ingest.run import ingest
from ping_llm.measurements.schema import MEASUREMENTS


def write_inputs(folder, files=4, results=2_000):
    """Overlapping files: each repeats a tenth of the one before, and has rubbish in it."""
    folder.mkdir()
    for number in range(files):
        lines = write_lines(
            ping(timestamp=1_600_000_000 + 37 * (index + number * results * 9 // 10), prb_id=index % 50)
            for index in range(results)
        )
        (folder / f"{number}.json.gz").write_bytes(gzip.compress(lines + b"rubbish\n"))
    return [str(folder)]


def test_the_bytes_do_not_depend_on_workers_or_order(tmp_path, monkeypatch):
    inputs = write_inputs(tmp_path / "in")
    report = ingest(inputs, tmp_path / "one", workers=1)
    monkeypatch.setattr(ingest_workers, "_WORTH_WORKERS_BYTES", 0)
    monkeypatch.setattr(ingest_workers, "_MIN_SORT_ROWS", 500)
    files = sorted(map(str, (tmp_path / "in").iterdir()), reverse=True)
    ingest(files, tmp_path / "two", workers=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    counts = [account.as_json(False) for _, account, _ in report.files]
    assert [count["duplicates"] for count in counts] == [0, 200, 200, 200]
    assert all(count["rejects"] == {"unparsable": 1} for count in counts)


def test_an_interrupted_run_continues_with_the_files_that_are_missing(tmp_path, monkeypatch):
    inputs = write_inputs(tmp_path / "in")
    ingest(inputs, tmp_path / "whole", workers=1)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ingest_run, "_write_table", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ingest(inputs, tmp_path / "out", workers=1)
    work = tmp_path / "out" / ".ingest"
    gone = min(work.glob("*/done.json")).parent
    kept = {path: path.stat().st_mtime_ns for path in work.glob("*/rows.parquet") if path.parent != gone}
    (gone / "done.json").unlink()
    seen = []
    original = ingest_plan.run_tasks
    monkeypatch.setattr(
        ingest_plan, "run_tasks", lambda tasks, *rest: (seen.extend(tasks), original(tasks, *rest))
    )
    ingest(inputs, tmp_path / "out", workers=1)
    assert len(seen) == 1
    assert len(kept) == 3
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    # And once more: nothing is left to do.
    seen.clear()
    ingest(inputs, tmp_path / "out", workers=1)
    assert seen == []


WORKERS_FOR_ANY_WORK = (
    "from ping_llm.ingest import workers as w; w._WORTH_WORKERS_BYTES = 0\n"
    "from ping_llm.cli import main; main()"
)


def processes_of(session):
    """Living processes of a session, by /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *numbers = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z" and int(numbers[2]) == session:
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle_and_run_again(tmp_path, workers):
    inputs = write_inputs(tmp_path / "in", files=6, results=30_000)
    ingest(inputs, tmp_path / "whole", workers=1)
    arguments = ["ingest", *inputs, "--out", str(tmp_path / "out"), "--workers", str(workers)]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKERS_FOR_ANY_WORK, *arguments],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    work = tmp_path / "out" / ".ingest"
    limit = time.monotonic() + 120
    while not list(work.glob("*/done.json")) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    assert len(processes_of(process.pid)) >= workers
    process.kill()  # only the program itself: its workers have to notice
    process.wait()
    while processes_of(process.pid) and time.monotonic() < limit:
        time.sleep(0.02)
    assert processes_of(process.pid) == []
    assert not (tmp_path / "out" / "ingest.json").exists()
    done = len(list(work.glob("*/done.json")))
    assert 1 <= done <= 6
    ingest(inputs, tmp_path / "out", workers=1)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_exit_codes(tmp_path):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(write_lines([ping(timestamp=index) for index in range(2_000)]))[:-9])
    damaged = program("ingest", path, "--out", tmp_path / "out")
    assert damaged.returncode == 1
    assert f"{path}: gzip data ends early, at byte {path.stat().st_size:,}" in damaged.stderr.decode()
    summary = json.loads((tmp_path / "out" / "ingest.json").read_text())
    assert summary["total"]["measurements"] > 1_900
    assert len(summary["files"][0]["trouble"]) == 1
    again = program("ingest", path, "--out", tmp_path / "out", "--keep-going", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == summary
    assert program("ingest", tmp_path / "nothing", "--out", tmp_path / "out").returncode == 2


def test_rejects_are_listed(tmp_path):
    bad = "1,x,192.0.2.1,1\n1,192.0.2.1,192.0.2.2,-7\n1,y\x1b[31m,z,1\n"
    (tmp_path / "a.csv").write_text(f"time,src,dst,rtt\n{bad}")
    program("ingest", tmp_path / "a.csv", "--out", tmp_path / "out")
    shown = program("rejects", tmp_path / "out", "-n", "2").stdout.decode()
    assert re.search(r"bad_source +2\n.*bad_rtt +1", shown)
    assert "1,x,192.0.2.1,1" in shown
    assert "\x1b" not in program("rejects", tmp_path / "out").stdout.decode()
    lines = program("rejects", tmp_path / "out", "--reason", "bad_rtt", "--json").stdout.splitlines()
    assert [json.loads(line)["record"] for line in lines] == [3]
    unknown = program("rejects", tmp_path / "out", "--reason", "bad")
    assert (unknown.returncode, b"there is no reason 'bad'" in unknown.stderr) == (2, True)
    assert program("rejects", tmp_path).returncode == 2


def test_standard_input(tmp_path):
    data = gzip.compress(write_lines([ping(timestamp=index) for index in range(100)]))
    ended = program("ingest", "-", "--out", tmp_path / "out", "--json", input=data)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["total"]["measurements"] == 100


def test_standard_input_beside_files_that_workers_read(tmp_path):
    inputs = write_inputs(tmp_path / "in", files=2, results=100)
    command = [sys.executable, "-c", WORKERS_FOR_ANY_WORK, "ingest", "-", *inputs, "--workers", "2"]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--json"],
        capture_output=True,
        check=False,
        input=write_lines([ping(timestamp=index) for index in range(100)]),
    )
    assert ended.returncode == 0, ended.stderr
    assert b"leaked" not in ended.stderr
    assert {entry["file"]: entry["results"] for entry in json.loads(ended.stdout)["files"]}["-"] == 100


def test_other_tables_are_not_overwritten_unasked(tmp_path):
    inputs = write_inputs(tmp_path / "in", files=1, results=10)
    ingest(inputs, tmp_path / "out")
    (tmp_path / "in" / "more.json").write_bytes(write_lines([ping()]))
    with pytest.raises(UsageError, match="--overwrite"):
        ingest(inputs, tmp_path / "out")
    assert ingest(inputs, tmp_path / "out", overwrite=True).total.results == 12
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        ingest(inputs, tmp_path / "other")


def test_an_ingested_table_can_be_ingested_and_read_again(tmp_path):
    inputs = write_inputs(tmp_path / "in", files=2, results=500)
    first = ingest(inputs, tmp_path / "one")
    second = ingest([str(tmp_path / "one")], tmp_path / "two")
    assert second.total.measurements == first.total.measurements == 950
    days = [
        {name: data for name, data in tree(tmp_path / out).items() if name.startswith("date=")}
        for out in ("one", "two")
    ]
    assert days[0] == days[1]
    batches = list(read_measurements([str(tmp_path / "two")]))
    assert sum(len(batch) for batch in batches) == 950
    assert all(batch.schema.equals(MEASUREMENTS) for batch in batches)
    raw = read_measurements(sorted(map(str, Path(inputs[0]).iterdir())))
    assert sum(len(batch) for batch in raw) == 1_000
