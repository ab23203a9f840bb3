import json
import subprocess
import sys

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


def test_a_package_is_judged_by_its_pin(monkeypatch):
    assert doctor._package("numpy", "x", "fix", True, {"numpy": "0.0.1"}).state == "differs"
    assert doctor._package("numpy", "x", "fix", True, doctor.read_pins()).state == "ok"
    assert doctor._package("no-such-package", "x", "fix", True, {}).state == "broken"
    assert doctor._package("no-such-package", "x", "fix", False, {}).state == "missing"


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
    assert _run("--version").stdout.startswith("ping-llm 0.")


def test_bad_usage_ends_with_2_and_a_sentence():
    done = _run("no-such-room")
    assert done.returncode == 2
    assert "no-such-room" in done.stderr
    assert "Traceback" not in done.stderr
