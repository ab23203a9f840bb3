import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import ping_llm
from ping_llm import doctor


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
