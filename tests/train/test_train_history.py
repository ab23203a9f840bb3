import json

import pytest

from ping_llm.errors import UsageError
from ping_llm.train import folder, history


@pytest.fixture
def run(tmp_path):
    folder.update(tmp_path / "run", state="running", steps=10, process={"host": "elsewhere", "pid": 1})
    with (tmp_path / "run" / "metrics.jsonl").open("w") as file:
        for step in range(3):
            record = {"kind": "train", "step": step, "loss": 3.0 - step, "bits": {"total": 60.0, "rtt": 9.0}}
            file.write(json.dumps(record) + "\n")
        file.write(
            json.dumps({"kind": "eval", "step": 2, "loss": 1.5, "bits": {"total": 50.0, "rtt": 8.0}}) + "\n"
        )
    return tmp_path / "run"


def test_how_a_run_stands(run):
    (standing,) = history.standings(run.parent)
    assert (standing.state, standing.step, standing.steps) == ("running", 3, 10)
    assert (standing.loss, standing.bits, standing.eval_loss) == (1.0, 60.0, 1.5)


def test_a_killed_run_is_not_running(run):
    gone = folder.here() | {"pid": 2**22 - 1}
    folder.update(run, process=gone)
    assert history.standing(run).state == "killed"
    folder.update(run, process=folder.here())
    assert history.standing(run).state == "running"


def test_curves(run, tmp_path):
    assert history.curve(run, "rtt", "train") == ([0, 1, 2], [9.0, 9.0, 9.0])
    assert history.curve(run, "loss", "eval") == ([2], [1.5])
    with pytest.raises(UsageError, match="nothing is called 'jitter'; there are loss, total, rtt"):
        history.curve(run, "jitter", "train")
    history.plot([run], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_an_average_follows_a_steep_beginning():
    averages = history._moving_average([6.0] * 10 + [2.0] * 90)
    assert averages[9] == 6.0
    assert averages[20:] == pytest.approx([2.0] * 80)
