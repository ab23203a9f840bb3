"""Crash and resume: whatever happens in between, the losses are those of the undisturbed run, to the bit."""

import fcntl
import os
import random
import shutil
import signal
import threading
from pathlib import Path

import crash_matrix
import numpy as np
import pytest
from safetensors.numpy import load_file
from small_training import SMALL, STEPS, command, losses, start, wait_for, what_was_learnt

from ping_llm.errors import UsageError
from ping_llm.model import ledger
from ping_llm.model.packaged import packaged
from ping_llm.train import runs
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_undisturbed_run_has_each_step_once(undisturbed):
    assert list(losses(undisturbed)) == list(range(STEPS))
    assert ledger.steps(undisturbed / "checkpoints") == [3, 6, 9, 11]
    assert runs.read(undisturbed)["state"] == "finished"


def test_killed_and_run_again(undisturbed, rows, tmp_path):
    """kill -9 after a step, then twice inside a save, each time with other loader workers or threads."""
    run = tmp_path / "run"
    training = start(command(run, rows, "grain_worker_count=1"))
    wait_for(run, random.randint(0, 7), training)
    training.send_signal(signal.SIGKILL)
    training.communicate()
    assert runs.read(run)["state"] == "running"

    inside = 0
    for workers in (2, 0):
        words = command(run, rows, f"grain_worker_count={workers}")
        hit = crash_matrix.killed_training(run, words, crash_matrix.SAVING, after=0)
        inside += hit is not None and "half-written" in hit
    outcome = train("tiny", [*SMALL, "grain_worker_count=-1"], run=run, rows=rows)
    # Where the training won both races, it is finished; a kill inside a save is what this is about.
    assert inside or outcome.state == "already"
    assert losses(run) == losses(undisturbed)
    trained = [record for record in what_was_learnt(undisturbed) if record["kind"] == "train"]
    assert what_was_learnt(run) == trained


def test_damaged_newest_checkpoint(undisturbed, rows, tmp_path, capsys):
    """Two are damaged: one finds the checksums, one has none and Orbax cannot read it."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    shutil.rmtree(run / "checkpoints" / "11")
    (run / "checkpoints.json").unlink()
    largest = max((run / "checkpoints" / "9").rglob("*"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    outcome = train("tiny", SMALL, run=run, rows=rows)
    assert "checkpoint 9 is damaged" in capsys.readouterr().err
    assert outcome.state == "finished"
    assert losses(run) == losses(undisturbed)


def test_a_signal_saves_and_stops(undisturbed, rows, tmp_path):
    """SIGTERM; that SIGINT asks for the same is shown below."""
    run = tmp_path / "run"
    training = start(command(run, rows, "checkpoint_period=1000"))
    wait_for(run, random.randint(2, 5), training)
    training.send_signal(signal.SIGTERM)
    _, errors = training.communicate()
    assert training.returncode == 75, errors
    state = runs.read(run)
    assert state["state"] == "stopped"
    assert ledger.steps(run / "checkpoints") == [state["step"]]
    assert state["step"] < STEPS - 1
    # Both count steps, not from 0.
    assert f"stopped after {state['step'] + 1} steps" in errors
    assert runs.standing(run).step == state["step"] + 1
    assert losses(run) == {step: losses(undisturbed)[step] for step in range(state["step"] + 1)}


def test_a_finished_run_says_so(copied, rows):
    before = losses(copied)
    outcome = train("tiny", SMALL, run=copied, rows=rows)
    assert outcome.state == "already"
    assert losses(copied) == before


def test_one_training_a_folder(copied, rows):
    from ping_llm.errors import PingError

    with (copied / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PingError, match="is being written by"):
            train("tiny", SMALL, run=copied, rows=rows)


def test_other_data_is_refused(copied, few_rows):
    from ping_llm.errors import PingError

    with pytest.raises(PingError, match="fingerprint"):
        train("tiny", [*SMALL, "steps=20"], run=copied, rows=few_rows)


def test_signals_are_ours_only_while_training():
    from ping_llm.train.processes import Stops

    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    with Stops() as stops:
        assert not stops.requested(0)
        os.kill(os.getpid(), signal.SIGINT)
        assert stops.requested(1)
    assert signal.getsignal(signal.SIGINT) is before


def test_weights_of_another_run(undisturbed, rows, tmp_path):
    """A training that moves nothing ends with the weights it began with; its steps are its own."""
    words = [*SMALL, "steps=2", "learning_rate=0.0", "data_shuffle_seed=5"]
    outcome = train("tiny", words, run=tmp_path / "run", rows=rows, weights=undisturbed)
    assert outcome.step == 1
    assert list(losses(tmp_path / "run")) == [0, 1]
    before, after = (
        load_file(run / "export" / "model.safetensors") for run in (undisturbed, tmp_path / "run")
    )
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=1e-6, err_msg=name)
    with pytest.raises(UsageError, match="has no weights"):
        train("tiny", words, run=tmp_path / "other", rows=rows, weights=tmp_path / "nothing")


def test_weights_of_the_packaged_model(rows, tmp_path):
    """An export has the weights of Hugging Face; MaxText begins with the same network."""
    words = ["steps=2", "learning_rate=0.0", "network_batch_size=2", "enable_tensorboard=false"]
    train("menog", words, run=tmp_path / "run", rows=rows, weights=Path("base"))
    before, after = (
        load_file(folder / "model.safetensors") for folder in (packaged(), tmp_path / "run/export")
    )
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=1e-6, err_msg=name)
    with pytest.raises(UsageError, match="base_emb_dim 128, not "):
        train("tiny", [*SMALL, "steps=2"], run=tmp_path / "other", rows=rows, weights=packaged())
    assert not (tmp_path / "other").exists()
