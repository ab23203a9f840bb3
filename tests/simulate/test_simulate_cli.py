"""The command from end to end."""

import json
import subprocess
import sys

import pyarrow.dataset as ds

PROGRAM = [sys.executable, "-c", "from ping_llm.cli import main; main()", "simulate"]
SIZES = ["--measurements", "5000", "--probes", "40", "--targets", "6", "--days", "3"]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)


def test_simulate_writes_what_it_says(tmp_path):
    out = tmp_path / "world"
    first = run(str(out), *SIZES, "--seed", "7", "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert (report["measurements"], report["probes"], report["seed"]) == (5_000, 40, 7)
    assert "5,000 of 5,000 measurements" in first.stderr
    assert ds.dataset(out, partitioning="hive", exclude_invalid_files=True).count_rows() == 5_000

    other = run(str(out), *SIZES, "--seed", "8")
    assert other.returncode == 2
    assert "another world" in other.stderr
    assert "Traceback" not in other.stderr
