"""A refused command changes nothing, and names what differs."""

import json
import shutil

import pytest
from small_training import SMALL, STEPS

import ping_llm
from ping_llm.errors import PingError, UsageError
from ping_llm.rows.manifest import load_manifest
from ping_llm.train import runs, schedule
from ping_llm.train.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _bytes(run):
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_run_remembers_its_data(undisturbed, rows):
    assert runs.read(undisturbed)["data"] == {
        "rows": str(rows.resolve()),
        "fingerprint": load_manifest(rows)["fingerprint"],
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["learning_rate=1e-3"], r"learning_rate=0\.002, not 0\.001"),
        (["base_emb_dim=64"], "base_emb_dim=32, not 64"),
        (["network_focus_probability=0.25"], r"network_focus_probability=0\.5, not 0\.25"),
        (["data_shuffle_seed=3"], "data_shuffle_seed=0, not 3"),
        (["lr_schedule_type=wsd"], "lr_schedule_type=cosine, not wsd"),
        (["network_batch_size=8"], "network_batch_size=4, not 8"),
        (["steps=11"], "steps=12, not 11"),
        (["steps=24", "learning_rate_schedule_steps=-1"], "a cosine schedule over 12 steps, not over 24"),
        (["learning_rate=1e-3", "steps=24"], r"learning_rate=0\.002, not 0\.001"),
    ],
)
def test_other_keys(copied, rows, words, says):
    before = _bytes(copied)
    with pytest.raises(UsageError, match=says):
        train("tiny", [*SMALL, *words], run=copied, rows=rows)
    assert _bytes(copied) == before


def test_other_keys_for_a_stopped_run(copied, rows):
    shutil.rmtree(copied / "checkpoints" / str(STEPS - 1))
    runs.update(copied, state=runs.STOPPED)
    before = _bytes(copied)
    with pytest.raises(UsageError, match=r"learning_rate=0\.002, not 0\.001; steps=12, not 11"):
        train("tiny", [*SMALL, "learning_rate=1e-3", "steps=11"], run=copied, rows=rows)
    assert _bytes(copied) == before


@pytest.mark.parametrize("recorded", [True, False])
def test_other_rows(copied, few_rows, recorded):
    if not recorded:  # as in runs of before
        about = json.loads((copied / "run.json").read_text())
        del about["data"]
        (copied / "run.json").write_text(json.dumps(about))
    before = _bytes(copied)
    with pytest.raises(UsageError, match=f"not {few_rows.resolve()} of fingerprint"):
        train("tiny", SMALL, run=copied, rows=few_rows)
    assert _bytes(copied) == before


def test_rows_that_are_not_there(copied, tmp_path):
    before = _bytes(copied)
    with pytest.raises(PingError, match="does not exist"):
        train("tiny", SMALL, run=copied, rows=tmp_path / "nowhere")
    assert _bytes(copied) == before
    with pytest.raises(PingError, match="does not exist"):
        train("tiny", SMALL, run=tmp_path / "new", rows=tmp_path / "nowhere")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("interval", [0, 2])
def test_rows_to_evaluate_on_that_are_none(copied, rows, few_rows, tmp_path, interval):
    """Refused before anything is written, in Python as on the command line."""
    before = _bytes(copied)
    damaged = shutil.copytree(few_rows, tmp_path / "damaged")
    (damaged / "manifest.json").write_text("{")
    words = [*SMALL, f"eval_interval={interval}"]
    for wrong, says in ((tmp_path / "nowhere", "does not exist"), (damaged, "manifest")):
        for run in (copied, tmp_path / "new"):
            with pytest.raises(PingError, match=says):
                ping_llm.train("tiny", rows, run, eval_rows=wrong, overrides=words)
    assert _bytes(copied) == before
    assert not (tmp_path / "new").exists()


def test_minutes_for_a_run_of_steps_and_steps_for_a_run_of_minutes(copied, rows):
    before = _bytes(copied)
    words = [word for word in SMALL if "steps=" not in word]
    with pytest.raises(UsageError, match="a number of steps, not with --minutes"):
        train("tiny", [*words, "lr_schedule_type=wsd"], run=copied, rows=rows, minutes=5)
    assert _bytes(copied) == before
    schedule.write(copied, schedule.Schedule(5.0, 0.002, 125, 0.1))
    before = _bytes(copied)
    with pytest.raises(UsageError, match="--minutes 5, not without"):
        train("tiny", SMALL, run=copied, rows=rows)
    more = [*words, "lr_schedule_type=wsd", "learning_rate=0.004"]
    with pytest.raises(UsageError, match=r"minutes 5, not 6; learning_rate 0\.002, not 0\.004"):
        train("tiny", more, run=copied, rows=rows, minutes=6)
    assert _bytes(copied) == before


def test_what_may_change(copied, rows, tmp_path):
    """The same rows at another place, and keys of loading and records: the run is finished, as it was."""
    moved = shutil.copytree(rows, tmp_path / "moved")
    words = [*SMALL, "network_threads=2", "checkpoint_period=5", "enable_tensorboard=false"]
    assert train("tiny", words, run=copied, rows=moved).state == "already"
