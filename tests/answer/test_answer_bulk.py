"""Scores and answers by day: the values of `query`, the same bytes by any tasks, resumable."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from slurm_cluster import slurm  # noqa: F401
from spark_workers import a_worker_killed
from test_answer_score import measurements, write
from typer.testing import CliRunner

from ping_llm.answer import bulk
from ping_llm.answer.bulk_rtt import RttJob
from ping_llm.answer.bulk_scores import ScoreJob
from ping_llm.answer.files import read_columns
from ping_llm.answer.report import results
from ping_llm.cli import app
from ping_llm.cli import query as query_commands
from ping_llm.errors import PingError, UsageError
from ping_llm.spark_session import spark_session

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("ping-llm")
CLUSTER = "local-cluster[2,1,2048]"


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def path(tmp_path):
    columns = measurements(60)
    columns.time[:] = columns.time[0] + np.arange(60) * 6 * 3_600_000_000  # 15 days
    return write(tmp_path / "pings.parquet", columns)


JOBS = pytest.mark.parametrize("kind", [ScoreJob, RttJob])


@JOBS
def test_tasks_in_any_order_give_the_bytes_of_one_machine(kind, model, path, tmp_path):
    job = kind(tmp_path / "run", False, path)
    summary = bulk.run(job, tmp_path / "one", model=model)
    for task in (2, 0):
        assert bulk.run(job, tmp_path / "out", job.step, task, 3, model) is None
    with pytest.raises(PingError, match="parts are missing"):
        bulk.run(job, tmp_path / "out", "finish")
    done = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in tree(tmp_path / "out")}
    for task in (1, 2):
        bulk.run(job, tmp_path / "out", job.step, task, 3, model)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == time for name, time in done.items())
    assert bulk.run(job, tmp_path / "out", "finish") == summary
    assert tree(tmp_path / "out") == tree(tmp_path / "one")
    assert summary[job.items] == 60
    assert summary["days"] == len(list((tmp_path / "one").glob("date=*"))) >= 15


def rows_of(out):
    files = sorted(out.glob("date=*/part-*.parquet"))
    return {row["row"]: row for file in files for row in pq.ParquetFile(file).read().to_pylist()}


def test_the_values_are_those_of_score(model, path, tmp_path):
    bulk.run(ScoreJob(tmp_path / "run", False, path), tmp_path / "out", model=model)
    found = rows_of(tmp_path / "out")
    for part in results(model, read_columns(path, needs=("src_addr", "dst_addr", "rtt"))):
        for place, row in enumerate(part.row.tolist()):
            assert found[row]["bits"] == pytest.approx(part.bits[place], rel=1e-3)
            assert found[row]["tail"] == pytest.approx(part.tail[place], abs=1e-3)
            assert found[row]["rtt"] == part.rtt[place]
            assert found[row]["p5"] <= found[row]["p50"] <= found[row]["p95"]


def test_the_answers_are_those_of_query_rtt(run, tmp_path):
    """Prefixes, questions without a time, observed results and unknown ones; some in a part of their own."""
    query_commands.register(app)
    pairs = pa.table(
        {
            "src_addr": ["192.0.2.1", "192.0.2.0/24", "2001:db8::1", "192.0.2.1", "192.0.2.1"],
            "dst_addr": ["198.51.100.7", "198.51.100.9", "2001:db8:1::7", "198.51.100.8", "198.51.100.7"],
            "event_time": ["2024-05-02T12:00:00Z", None, "2024-05-01T00:00:00Z", None, None],
            "rtt": [12.5, None, -1.0, None, 30.0],
        }
    )
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    words = ["query", "rtt", str(run), "--no-data", "--pairs", str(tmp_path / "pairs.parquet"), "--json"]
    printed = CliRunner().invoke(app, words, catch_exceptions=False)
    expected = [json.loads(line) for line in printed.stdout.splitlines()]
    out = tmp_path / "out"
    said = json.loads(CliRunner().invoke(app, [*words, "--out", str(out)], catch_exceptions=False).stdout)
    assert (said["questions"], said["days"], said["observed"]) == (5, 2, 3)
    pq.write_table(pairs.select(["src_addr", "dst_addr"]), tmp_path / "bare.parquet")
    bare = ["query", "rtt", str(run), "--no-data", "--pairs", str(tmp_path / "bare.parquet")]
    bare += ["--out", str(tmp_path / "bare")]
    text = CliRunner().invoke(app, bare, catch_exceptions=False).stdout
    assert text.split() == ["questions", "5", "answers", str(tmp_path / "bare")]
    found = rows_of(out)
    assert sorted(found) == list(range(5))
    for row, one in enumerate(expected):
        same = {
            name: found[row][name] for name in ("src_addr", "dst_addr", "failure", "point", "mean", "notes")
        }
        assert same == {name: one[name] for name in same}
        assert [found[row][f"p{level}"] for level in (1, 50, 99)] == [
            one["quantiles"][level] for level in ("0.01", "0.5", "0.99")
        ]
        assert [found[row][name] for name in ("rtt", "bits", "crps")] == [
            one[name] for name in ("rtt", "bits", "crps")
        ]
    assert {path.parent.name for path in out.glob("date=*/*.parquet")} == {
        "date=2024-05-01", "date=2024-05-02", "date=__HIVE_DEFAULT_PARTITION__",
    }  # fmt: skip


def test_a_long_day_has_several_parts():
    day = 86_400_000_000
    times = np.array([day, -1, 3, day, -1, day, -1])
    units = bulk.units_of(times, 2)
    assert [(unit.day, unit.part, unit.rows.tolist()) for unit in units] == [
        (0, 0, [2]), (1, 0, [0, 3]), (1, 1, [5]), (None, 0, [1, 4]), (None, 1, [6]),
    ]  # fmt: skip
    assert [unit.rows.tolist() for unit in bulk.units_of(times, None)] == [[2], [0, 3, 5], [1, 4, 6]]


@JOBS
def test_other_input_is_refused_and_changes_nothing(kind, model, path, tmp_path):
    job = kind(tmp_path / "run", False, path)
    bulk.run(job, tmp_path / "out", model=model)
    before = tree(tmp_path / "out")
    other = write(tmp_path / "other.parquet", measurements(30))
    changed = [replace(job, path=other), replace(job, run=tmp_path / "another")]
    changed += [replace(job, method="network")] if kind is RttJob else []
    for one in changed:
        with pytest.raises(UsageError, match=f"{job.made} of other {job.items} or of another run"):
            bulk.run(one, tmp_path / "out", model=model)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(UsageError, match=f"is not empty and has no {job.made}"):
        bulk.run(job, tmp_path / "full", model=model)
    assert tree(tmp_path / "out") == before


@JOBS
def test_what_killed_processes_left_is_removed_at_the_end(kind, model, path, tmp_path):
    job, out = kind(tmp_path / "run", False, path), tmp_path / "out"
    bulk.run(job, tmp_path / "one", model=model)
    bulk.run(job, out, job.step, model=model)
    for folder in out.glob("date=*"):
        (folder / ".part-0.parquet.4711.part").write_bytes(b"PAR1")
    bulk.run(job, out, "finish", model=model)
    assert tree(out) == tree(tmp_path / "one")


def test_a_part_that_another_process_has_finished_meanwhile_is_kept(model, path, tmp_path, monkeypatch):
    job, out = RttJob(tmp_path / "run", False, path), tmp_path / "out"
    bulk.run(job, tmp_path / "one", model=model)
    write_table = bulk.pq.write_table

    def finished_by_another(table, aside, **options):
        write_table(table, aside, **options)
        aside.rename(out / aside.parent.name / "part-0.parquet")

    monkeypatch.setattr(bulk.pq, "write_table", finished_by_another)
    bulk.run(job, out, model=model)
    assert tree(out) == tree(tmp_path / "one")


def many_days(path, count=900, days=30):
    columns = measurements(count)
    columns.time[:] = columns.time[0] + np.arange(count) * (days * 86_400_000_000 // count)
    return write(path, columns)


@pytest.fixture(scope="module")
def session():
    """One cluster for both jobs: its Java processes take 15 s to start. `ingest` starts its own."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    started, _ = spark_session("ping-llm tests", CLUSTER)
    yield started
    started.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17, and there is no java")
@JOBS
def test_spark_gives_the_same_bytes_also_when_a_worker_is_killed(kind, session, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = kind(run, False, many_days(Path("pings.parquet")))
    summary = bulk.run(job, Path("one"))
    # After the first part that is complete.
    with a_worker_killed(lambda: list((tmp_path / "out").glob("date=*/part-0.parquet"))):
        assert bulk.run_on_spark(job, Path("out"), CLUSTER) == summary
    assert tree(tmp_path / "out") == tree(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_arrays_on_two_nodes_give_the_same_bytes(slurm, run, tmp_path):  # noqa: F811
    many_days(tmp_path / "pings.parquet", 60, 6)
    environment = slurm.environment | {
        "PING_LLM": str(PROGRAM),
        "TASKS": "3",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
    }
    for kind in (ScoreJob, RttJob):
        done = subprocess.run(
            ["sbatch", "--parsable", "--cpus-per-task=1", "--mem=0", REPOSITORY / "deploy/slurm/query.sbatch",
             kind.command, run, f"out-{kind.command}", "pings.parquet", "--", "--no-data"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    states = slurm.wait()
    assert set(states.values()) == {"COMPLETED"}, "\n".join(p.read_text() for p in tmp_path.glob("*.log"))
    assert len(states) == 2 * (1 + 3 + 1)
    for kind in (ScoreJob, RttJob):
        bulk.run(kind(run, False, tmp_path / "pings.parquet"), tmp_path / f"one-{kind.command}")
        assert tree(tmp_path / f"out-{kind.command}") == tree(tmp_path / f"one-{kind.command}")
