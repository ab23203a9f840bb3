"""Ingest by the tasks of a cluster, by Slurm and by Spark: the bytes of one machine, also after a kill."""

import bz2
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from atlas_results import ping, write_lines
from ingest_program import program, tree
from slurm_cluster import slurm  # noqa: F401
from spark_workers import a_worker_killed

from ping_llm.bench.ingest import result_line
from ping_llm.errors import PingError, UsageError
from ping_llm.ingest import plan, stretches, workers
from ping_llm.ingest.options import STRETCH_BYTES, IngestOptions
from ping_llm.ingest.run import ClusterOptions, ingest, ingest_on_cluster

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("ping-llm")


def on_cluster(inputs, out, step=None, task=0, tasks=1, **options):
    return ingest_on_cluster(
        inputs, out, IngestOptions(), 1, ClusterOptions(step=step, task=task, tasks=tasks, **options)
    )


def test_tasks_share_files_and_stretches(tmp_path, monkeypatch):
    for module in (stretches, plan):
        monkeypatch.setattr(module, "STRETCH_BYTES", 3_000)
    monkeypatch.setattr(workers, "_WORTH_WORKERS_BYTES", 1 << 30)  # in this process, which has that length
    (tmp_path / "in").mkdir()
    lines = write_lines(ping(timestamp=1_600_000_000 + 100 * n, prb_id=n % 7) for n in range(3_000))
    (tmp_path / "in" / "large.bz2").write_bytes(bz2.compress(lines, 1))
    (tmp_path / "in" / "small.json").write_bytes(lines[:5_000] + b"\nrubbish\n")
    inputs, out = [str(tmp_path / "in")], tmp_path / "out"
    ingest(inputs, tmp_path / "one", workers=1)
    with pytest.raises(PingError, match=r"pieces are not read yet.*run the step `read` of all tasks"):
        on_cluster(inputs, out, "finish")
    assert not out.exists()
    for task in (2, 0):  # in any order
        assert on_cluster(inputs, out, "read", task, 3) is None
    with pytest.raises(PingError, match="pieces are not read yet"):
        on_cluster(inputs, out, "finish")
    pieces = list((out / ".ingest").iterdir())
    assert len(pieces) > 3
    # A killed task leaves parts without an end, or none at all.
    shutil.move(pieces[0], pieces[0].with_name(pieces[0].name + ".aside"))
    for task in (1, 0, 2):
        on_cluster(inputs, out, "read", task, 3)
    report = on_cluster(inputs, out, "finish")
    assert tree(out) == tree(tmp_path / "one")
    assert on_cluster(inputs, out, "read", 0, 3).as_json() == report.as_json()  # all is done


def test_options_that_exclude_each_other(tmp_path):
    with pytest.raises(UsageError, match="exclude each other"):
        ClusterOptions(engine="spark", step="read")
    (tmp_path / "in.json").write_bytes(write_lines([ping()]))
    with pytest.raises(UsageError, match="numbered from 0"):
        on_cluster([str(tmp_path / "in.json")], tmp_path / "out", "read", 3, 3)
    with pytest.raises(UsageError, match="standard input"):
        on_cluster(["-"], tmp_path / "out", "read")
    assert program("ingest", "x", "--out", tmp_path / "out", "--step", "plan").returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """in/: a bzip2 file of two stretches, and a small file. one/: what one machine makes of them."""
    folder = tmp_path_factory.mktemp("dumped")
    (folder / "in").mkdir()
    noise = random.Random(1)
    text = b"".join(result_line(noise, 1_600_000_000 + index, index) for index in range(95_000))
    data = bz2.compress(text, 1)
    assert len(data) > STRETCH_BYTES
    (folder / "in" / "dump.bz2").write_bytes(data)
    (folder / "in" / "small.json").write_bytes(text[: text.index(b"\n", 10_000) + 1])
    done = subprocess.run(
        [PROGRAM, "ingest", "in", "--out", "one"], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_array_on_two_nodes_gives_the_same_bytes(slurm, dumped, tmp_path):  # noqa: F811
    shutil.copytree(dumped / "in", tmp_path / "in")
    environment = slurm.environment | {
        "PING_LLM": str(PROGRAM),
        "TASKS": "3",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
    }
    script = REPOSITORY / "deploy/slurm/ingest.sbatch"
    done = subprocess.run(
        ["sbatch", "--parsable", "--cpus-per-task=1", "--mem=0", script, "out", "in"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    states = slurm.wait()
    assert set(states.values()) == {"COMPLETED"}, "\n".join(p.read_text() for p in tmp_path.glob("*.log"))
    assert len(states) == 1 + 3 + 1
    assert tree(tmp_path / "out") == tree(dumped / "one")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17, and there is no java")
def test_spark_gives_the_same_bytes_also_when_a_worker_is_killed(dumped, tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    shutil.copytree(dumped / "in", tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    # The first that has begun to read a piece.
    with a_worker_killed(lambda: list((tmp_path / "out" / ".ingest").glob("*.aside"))):
        on_cluster(["in"], Path("out"), engine="spark", spark_master="local-cluster[2,1,2048]")
    assert tree(tmp_path / "out") == tree(dumped / "one")
