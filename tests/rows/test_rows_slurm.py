"""deploy/slurm/rows.sbatch on a real cluster of two nodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rows_data import folder_bytes, write_measurements
from slurm_cluster import slurm  # noqa: F401

from ping_llm.rows.build import build

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("ping-llm")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_array_on_two_nodes_gives_the_same_bytes(slurm, tmp_path):  # noqa: F811
    """First with a damaged slice, so that a task fails; then again, and it goes on."""
    # More than one slice and one part: the smallest slice is 131,072, the smallest part 262,144 measurements.
    for number in range(3):
        write_measurements(tmp_path / "in" / f"{number}.parquet", 100_000, seed=number, sources=1000)
    environment = slurm.environment | {
        "PING_LLM": str(PROGRAM),
        "TASKS": "2",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
    }
    arguments = [str(tmp_path / "slurm"), str(tmp_path / "in"), "--", "--memory-limit", "1GB"]
    command = ["--cpus-per-task=1", "--mem=0", str(REPOSITORY / "deploy/slurm/rows.sbatch"), *arguments]

    victim = tmp_path / "in" / "1.parquet"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:4] + bytes(200_000) + whole[200_004:])
    submit(environment, command, tmp_path)
    states = slurm.wait()
    assert "FAILED" in states.values()
    assert not (tmp_path / "slurm" / "manifest.json").exists()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "slurm/.build").glob("*.spill")}
    assert before

    victim.write_bytes(whole)
    submit(environment, command, tmp_path)
    again = {job: state for job, state in slurm.wait().items() if job not in states}
    assert set(again.values()) == {"COMPLETED"}, "\n".join(p.read_text() for p in tmp_path.glob("*.log"))
    assert len(again) == 1 + 2 + 2 + 1
    build([tmp_path / "in"], tmp_path / "local")
    assert folder_bytes(tmp_path / "slurm") == folder_bytes(tmp_path / "local")


def submit(environment, command, folder):
    done = subprocess.run(
        ["sbatch", "--parsable", *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
