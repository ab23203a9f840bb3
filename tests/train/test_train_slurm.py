"""deploy/slurm/train.sbatch on a real Slurm of two nodes, taken away in the middle."""

import re
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import slurm  # noqa: F401
from small_training import command, losses

from ping_llm.model import ledger
from ping_llm.train import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_JOB = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"


def _wait(condition, slurm, log):  # noqa: F811
    deadline = time.monotonic() + 400
    while not condition():
        said = log.read_text() if log.exists() else ""
        assert time.monotonic() < deadline, f"{slurm.states()}\n{said}\n{slurm.logs()}"
        time.sleep(0.1)


def test_requeued_in_the_middle(slurm, rows, tmp_path):  # noqa: F811
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = command(run, rows)[2:]
    words += ["steps=300", "learning_rate_schedule_steps=300", "checkpoint_period=100000"]
    slurm.environment["PING_LLM"] = str(Path(sys.executable).with_name("ping-llm"))
    job = slurm.sbatch("--nodes=2", f"--output={log}", str(_JOB), *words, cwd=tmp_path)

    _wait(lambda: (run / "metrics.jsonl").exists() and 10 in losses(run), slurm, log)
    slurm.run("scontrol", "requeue", job)
    _wait(lambda: slurm.states().get(job) == "PENDING", slurm, log)
    saved = runs.read(run)
    assert saved["state"] == "stopped"
    assert ledger.steps(run / "checkpoints") == [saved["step"]]
    assert len(losses(run)) == saved["step"] + 1 < 300

    # Slurm waits two minutes before it starts a requeued job again.
    slurm.run("scontrol", "update", f"jobid={job}", "starttime=now")
    _wait(lambda: slurm.states().get(job) == "COMPLETED", slurm, log)
    attempts = re.findall(r"attempt \d on [^\s,]+", log.read_text())
    assert attempts == ["attempt 1 on n[1-2]", "attempt 2 on n[1-2]"]
    assert runs.read(run)["state"] == "finished"
    assert runs.read(run)["processes"] == 2
    assert list(losses(run)) == list(range(300))
