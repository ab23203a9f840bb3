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

#: What the nodes of the test have.
_SMALL = ("--gpus-per-node=0", "--cpus-per-task=1", "--mem=2G")

_JOB = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"


def _wait(condition, slurm, log):  # noqa: F811
    deadline = time.monotonic() + 400
    while not condition():
        said = log.read_text() if log.exists() else ""
        assert time.monotonic() < deadline, f"{slurm.states()}\n{said}\n{slurm.logs()}"
        time.sleep(0.5)  # each question starts a process


def test_requeued_in_the_middle(slurm, rows, tmp_path):  # noqa: F811
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = command(run, rows)[2:]
    words += ["steps=300", "learning_rate_schedule_steps=300", "checkpoint_period=100000"]
    slurm.environment["PING_LLM"] = str(Path(sys.executable).with_name("ping-llm"))
    job = slurm.sbatch("--nodes=2", *_SMALL, f"--output={log}", str(_JOB), *words, cwd=tmp_path)

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


def test_gpus_cpus_and_memory_are_requested(slurm, tmp_path):  # noqa: F811
    """By default four GPUs, 16 CPUs and 64 GB; the job waits for such a node."""
    job = slurm.sbatch("--partition=large", str(_JOB), "100m", cwd=tmp_path)
    asked = slurm.run("scontrol", "show", "job", job)
    slurm.run("scancel", job)
    resources = re.search(r"\b(?:Req)?TRES=(\S+)", asked)  # ReqTRES from Slurm 23.02 on
    assert resources is not None, asked
    assert set(resources[1].split(",")) >= {"cpu=16", "mem=64G", "node=1"}
    assert re.search(r"TresPerNode=(gres[:/])?gpu:4\b", asked), asked


def test_each_process_gets_the_gpus_of_its_node(slurm, tmp_path):  # noqa: F811
    names = ("SLURM_PROCID", "SLURM_NTASKS", "CUDA_VISIBLE_DEVICES", "PING_LLM_COORDINATOR")
    program = tmp_path / "program"
    program.write_text(
        "#!/bin/bash\necho GOT $SLURMD_NODENAME " + " ".join(f"${name}" for name in names) + " $@\n"
    )
    program.chmod(0o755)
    slurm.environment["PING_LLM"] = str(program)
    log = tmp_path / "job.log"
    wanted = ("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=1", "--mem=2G", f"--output={log}")
    job = slurm.sbatch(*wanted, str(_JOB), "300m", cwd=tmp_path)
    _wait(lambda: slurm.states().get(job) == "COMPLETED", slurm, log)
    got = sorted(line.split()[1:] for line in log.read_text().splitlines() if line.startswith("GOT"))
    assert [one[:4] for one in got] == [["n1", "0", "2", "0,1"], ["n2", "1", "2", "0,1"]]
    assert {one[4] for one in got} == {f"127.0.0.1:{20000 + int(job) % 20000}"}
    assert [one[5:] for one in got] == [["train", "300m"]] * 2
