import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import ping_llm
from ping_llm import doctor
from ping_llm.ingest.run import ingest
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.doubts import doubts
from ping_llm.model.random import random_tensors
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64)


def _run(*arguments, **options):
    command = [sys.executable, "-c", "from ping_llm.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_doctor_reports_every_part_with_its_purpose():
    done = _run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    findings = {item["part"]: item for item in json.loads(done.stdout)}
    assert {
        "Python",
        "duckdb",
        "maxtext",
        "cores",
        "memory",
        "free disk",
        "open files",
        "Java",
        "Slurm",
    } <= set(findings)
    assert all(item["needed_for"] for item in findings.values())
    assert all(item["remedy"] for item in findings.values() if item["state"] == "missing")


def test_a_run_that_cannot_answer_is_broken(tmp_path):
    """Two measurements, three steps: train, query and doctor say the same."""
    table = "time,src,dst,rtt\n1700000000,192.0.2.1,192.0.2.2,10\n1700000001,192.0.2.1,192.0.2.2,11\n"
    (tmp_path / "two.csv").write_text(table)
    ingest([str(tmp_path / "two.csv")], tmp_path / "two")
    build([tmp_path / "two"], tmp_path / "rows")
    run = tmp_path / "run"
    export.write(CONFIG, random_tensors(CONFIG), {}, run / "export")
    data = {"rows": str(tmp_path / "rows"), "fingerprint": RowStore(tmp_path / "rows").fingerprint}
    (run / "run.json").write_text(json.dumps({"format": 1, "state": "finished", "step": 2, "data": data}))
    done = _run("doctor", str(run), "--json")
    assert done.returncode == 1
    found = {item["part"]: item for item in json.loads(done.stdout)}
    assert "3 steps only" in found["training"]["needed_for"]
    assert "only 2 measurements" in found["rows it was trained on"]["needed_for"]
    assert len(doubts(run)) == len(doubts(run / "export")) == 2
    asked = _run("query", "rtt", str(run), "--src", "192.0.2.1", "--dst", "192.0.2.2", "--raw")
    assert "trained for 3 steps only" in asked.stderr
    assert "only 2 measurements to learn from" in asked.stderr
    assert "after more than 10 s" in asked.stdout  # of random weights
    assert _run("doctor", str(tmp_path)).returncode == 2


def test_a_package_is_judged_by_its_pin():
    def state(name, required=True, **pins):
        return doctor._package(name, "x", "fix", required, pins).state

    installed = version("numpy")
    assert state("numpy", numpy=installed) == state("numpy") == "ok"
    assert state("numpy", numpy=installed + ".1") == "differs"
    assert state("no-such-package") == "broken"
    assert state("no-such-package", required=False) == "missing"


def test_the_pins_are_those_of_the_constraints():
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    numpy = next(line for line in lines if line.startswith("numpy=="))
    assert doctor.read_pins()["numpy"] == numpy.split("==")[1].split()[0]


def test_help_and_version_answer_without_heavy_imports():
    code = (
        "import sys; from ping_llm.cli import main; sys.argv = ['ping-llm', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'jax', 'numpy', 'pyarrow', 'duckdb', 'numba', 'maxtext', 'grain'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout
    assert _run("--version").stdout == f"ping-llm {ping_llm.__version__}\n"


def test_bad_usage_ends_with_2_and_a_sentence():
    done = _run("no-such-room")
    assert done.returncode == 2
    assert "no-such-room" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gpu_that_jax_does_not_see_is_told_with_the_way_out(tmp_path):
    """There is no GPU here: a program of the driver's name says that there is one, and no wheel for it."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\n")
    driver.chmod(0o755)
    done = _run("doctor", "--json", env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    (found,) = [item for item in json.loads(done.stdout) if item["part"] == "accelerator"]
    assert found["found"] == (
        "NVIDIA H100, 81559 MiB, which JAX does not see: jax-cuda12-plugin, jax-cuda12-pjrt not installed"
    )
    assert (found["state"], found["remedy"]) == ("missing", "make setup-cuda")


def test_without_a_gpu_nothing_is_said_of_cuda(tmp_path):
    """What JAX logs with CUDA wheels and no driver; with a device of a driver, it is shown."""
    program = (
        "import logging, sys; from pathlib import Path; from ping_llm import cli; "
        "cli._quiet_without_gpus(Path(sys.argv[1])); log = logging.getLogger('jax._src.xla_bridge'); "
        "log.error('Jax plugin configuration error: Exception when calling %s.initialize()', 'cuda'); "
        "log.error('another')"
    )
    for name in ("null", "nvidia0", "dxg"):
        devices = tmp_path / name
        devices.mkdir()
        (devices / name).touch()
        done = subprocess.run(
            [sys.executable, "-c", program, devices], capture_output=True, text=True, check=True
        )
        assert done.stderr.endswith("another\n")
        assert ("Jax" in done.stderr) == (name != "null")
