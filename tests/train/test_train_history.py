import json
import subprocess
import sys
from pathlib import Path

import pytest

from ping_llm.errors import UsageError
from ping_llm.train import runs


@pytest.fixture
def run(tmp_path):
    runs.update(tmp_path / "run", state="running", steps=10, process={"host": "elsewhere", "pid": 1})
    with (tmp_path / "run" / "metrics.jsonl").open("w") as file:
        for step in range(3):
            record = {"kind": "train", "step": step, "loss": 3.0 - step, "bits": {"total": 60.0, "rtt": 9.0}}
            file.write(json.dumps(record) + "\n")
        file.write(
            json.dumps({"kind": "eval", "step": 2, "loss": 1.5, "bits": {"total": 50.0, "rtt": 8.0}}) + "\n"
        )
    return tmp_path / "run"


def test_how_a_run_stands(run):
    (standing,) = runs.standings(run.parent)
    assert (standing.state, standing.step, standing.steps) == ("running", 3, 10)
    assert (standing.loss, standing.bits, standing.eval_loss) == (1.0, 60.0, 1.5)


def test_a_killed_run_is_not_running(run):
    gone = runs.here() | {"pid": 2**22 - 1}
    runs.update(run, process=gone)
    assert runs.standing(run).state == "killed"
    runs.update(run, process=runs.here())
    assert runs.standing(run).state == "running"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", b""),
        ("run.json", b'{"format": 1, "sta'),
        ("run.json", b"[]"),
        ("run.json", b'{"format": 99}'),
        ("run.json", b'{"format": 1, "state": "running", "process": 3}'),
        ("run.json", b"\xff\xfe"),
        ("metrics.jsonl", b'{"kind": "train"\n'),
        ("metrics.jsonl", b"3\n"),
        ("metrics.jsonl", b'{"kind": "train", "step": 1, "loss": 2.0}\n'),
    ],
)
def test_a_broken_run_does_not_hide_the_others(run, name, content):
    other = run.parent / "other"
    runs.update(other, state="finished")
    (other / name).write_bytes(content)
    found = {Path(one.name).name: one for one in runs.standings(run.parent)}
    assert (found["run"].state, found["run"].problem) == ("running", None)
    assert found["other"].state == "unreadable"
    assert str(other) in found["other"].problem


def test_the_list_names_the_broken_run(run):
    (run.parent / "other").mkdir()
    (run.parent / "other" / "run.json").write_text("{")
    program = "from ping_llm.cli import main; main()"
    words = [sys.executable, "-c", program, "runs", "--in", str(run.parent)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "running" in done.stdout
    assert "unreadable" in done.stdout
    assert "other/run.json cannot be read" in done.stderr


def test_curves(run, tmp_path):
    assert runs.curve(run, "rtt", "train") == ([0, 1, 2], [9.0, 9.0, 9.0])
    assert runs.curve(run, "loss", "eval") == ([2], [1.5])
    with pytest.raises(UsageError, match="nothing is called 'jitter'; there are loss, total, rtt"):
        runs.curve(run, "jitter", "train")
    runs.plot([run], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_an_average_follows_a_steep_beginning():
    averages = runs._moving_average([6.0] * 10 + [2.0] * 90)
    assert averages[9] == 6.0
    assert averages[20:] == pytest.approx([2.0] * 80)
