"""Scores by day: the values of `query score`, the same bytes by any tasks, resumable."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from slurm_cluster import slurm  # noqa: F401
from spark_workers import spark_workers
from test_answer_score import measurements, write

from ping_llm.answer.bulk import score_days, score_on_spark
from ping_llm.answer.files import read_columns
from ping_llm.answer.model import Model
from ping_llm.answer.report import results
from ping_llm.errors import PingError, UsageError

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("ping-llm")


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def path(tmp_path):
    columns = measurements(60)
    columns.time[:] = columns.time[0] + np.arange(60) * 6 * 3_600_000_000  # 15 days
    return write(tmp_path / "pings.parquet", columns)


def test_tasks_in_any_order_give_the_bytes_of_one_machine(model, path, tmp_path):
    run = tmp_path / "run"
    summary = score_days(model, run, path, tmp_path / "one")
    for task in (2, 0):
        assert score_days(model, run, path, tmp_path / "out", "score", task, 3) is None
    with pytest.raises(PingError, match="days are not scored yet"):
        score_days(model, run, path, tmp_path / "out", "finish")
    done = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in tree(tmp_path / "out")}
    for task in (1, 2):
        score_days(model, run, path, tmp_path / "out", "score", task, 3)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == time for name, time in done.items())
    assert score_days(model, run, path, tmp_path / "out", "finish") == summary
    assert tree(tmp_path / "out") == tree(tmp_path / "one")
    assert summary["measurements"] == 60
    assert summary["days"] == len(list((tmp_path / "one").glob("date=*"))) >= 15


def test_the_values_are_those_of_score(model, path, tmp_path):
    score_days(model, tmp_path / "run", path, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("date=*/part-0.parquet"))
    found = {row["row"]: row for file in files for row in pq.ParquetFile(file).read().to_pylist()}
    for part in results(model, read_columns(path, needs=("src_addr", "dst_addr", "rtt"))):
        for place, row in enumerate(part.row.tolist()):
            assert found[row]["bits"] == pytest.approx(part.bits[place], rel=1e-3)
            assert found[row]["tail"] == pytest.approx(part.tail[place], abs=1e-3)
            assert found[row]["rtt"] == part.rtt[place]
            assert found[row]["p5"] <= found[row]["p50"] <= found[row]["p95"]


def test_other_input_is_refused_and_changes_nothing(model, path, tmp_path):
    score_days(model, tmp_path / "run", path, tmp_path / "out")
    before = tree(tmp_path / "out")
    other = write(tmp_path / "other.parquet", measurements(30))
    with pytest.raises(UsageError, match="scores of other measurements"):
        score_days(model, tmp_path / "run", other, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(UsageError, match="something else than scores"):
        score_days(model, tmp_path / "run", path, tmp_path / "full")
    assert tree(tmp_path / "out") == before


def many_days(path, count=900, days=30):
    columns = measurements(count)
    columns.time[:] = columns.time[0] + np.arange(count) * (days * 86_400_000_000 // count)
    return write(path, columns)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17, and there is no java")
def test_spark_gives_the_same_bytes_also_when_a_worker_is_killed(run, tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    monkeypatch.chdir(tmp_path)
    path = many_days(Path("pings.parquet"))
    summary = score_days(Model.load(run, data=False), run, path, Path("one"))
    killed = []

    def kill_a_worker():
        """After the first day that is complete."""
        limit = time.monotonic() + 300
        while not killed and time.monotonic() < limit:
            if list((tmp_path / "out").glob("date=*/part-0.parquet")):
                killed.extend(one for one in spark_workers() if not killed)
                for one in killed:
                    os.kill(one, signal.SIGKILL)
            time.sleep(0.01)

    watcher = threading.Thread(target=kill_a_worker)
    watcher.start()
    assert score_on_spark(run, False, path, Path("out"), "local-cluster[2,1,2048]") == summary
    watcher.join()
    assert killed
    assert tree(tmp_path / "out") == tree(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_array_on_two_nodes_gives_the_same_bytes(slurm, run, tmp_path):  # noqa: F811
    many_days(tmp_path / "pings.parquet", 60, 6)
    environment = slurm.environment | {
        "PING_LLM": str(PROGRAM),
        "TASKS": "3",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
    }
    done = subprocess.run(
        ["sbatch", "--parsable", "--cpus-per-task=1", "--mem=0", REPOSITORY / "deploy/slurm/score.sbatch",
         run, "out", "pings.parquet", "--", "--no-data"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    states = slurm.wait()
    assert set(states.values()) == {"COMPLETED"}, "\n".join(p.read_text() for p in tmp_path.glob("*.log"))
    assert len(states) == 1 + 3 + 1
    score_days(Model.load(run, data=False), run, tmp_path / "pings.parquet", tmp_path / "one")
    assert tree(tmp_path / "out") == tree(tmp_path / "one")
