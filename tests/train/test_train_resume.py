"""Crash and resume: whatever happens in between, the losses are those of the undisturbed run, to the bit."""

import os
import random
import shutil
import signal
import threading

import pytest
from small_training import SMALL, STEPS, command, losses, start, wait_for

from ping_llm.train import checkpoints, folder
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_undisturbed_run_has_each_step_once(undisturbed):
    assert list(losses(undisturbed)) == list(range(STEPS))
    assert checkpoints.steps(undisturbed / "checkpoints") == [3, 6, 9, 11]
    assert folder.read(undisturbed)["state"] == "finished"


def test_killed_and_run_again(undisturbed, rows, tmp_path):
    """With kill -9, and again with other loader threads."""
    run = tmp_path / "run"
    training = start(command(run, rows))
    wait_for(run, 7, training)
    training.send_signal(signal.SIGKILL)
    training.wait()
    assert folder.read(run)["state"] == "running"
    outcome = train("tiny", [*SMALL, "grain_worker_count=3"], run=run, rows=rows)
    assert outcome.state == "finished"
    assert losses(run) == losses(undisturbed)


def test_killed_in_the_middle_of_a_save(undisturbed, rows, tmp_path):
    """What a kill leaves while checkpoint 6 is being written: its temporary folder, and records beyond 3."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    for step in (9, 11):
        shutil.rmtree(run / "checkpoints" / str(step))
    (run / "checkpoints" / "6").rename(run / "checkpoints" / "6.orbax-checkpoint-tmp")
    (run / "checkpoints" / "6.orbax-checkpoint-tmp" / "commit_success.txt").unlink()
    outcome = train("tiny", SMALL, run=run, rows=rows)
    assert outcome.state == "finished"
    assert losses(run) == losses(undisturbed)


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
    state = folder.read(run)
    assert state["state"] == "stopped"
    assert checkpoints.steps(run / "checkpoints") == [state["step"]]
    assert state["step"] < STEPS - 1
    assert losses(run) == {step: losses(undisturbed)[step] for step in range(state["step"] + 1)}


def test_a_finished_run_says_so(copied, rows):
    before = losses(copied)
    outcome = train("tiny", SMALL, run=copied, rows=rows)
    assert outcome.state == "already"
    assert losses(copied) == before


def test_one_training_a_folder(copied, rows):
    from ping_llm.errors import PingError

    with folder.only_one(copied), pytest.raises(PingError, match="is being trained already"):
        train("tiny", SMALL, run=copied, rows=rows)


def test_other_data_is_refused(copied, few_rows):
    from ping_llm.errors import PingError

    with pytest.raises(PingError, match="fingerprint"):
        train("tiny", [*SMALL, "steps=20"], run=copied, rows=few_rows)


def test_signals_are_ours_only_while_training():
    from ping_llm.train.stops import Stops

    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    with Stops() as stops:
        assert not stops.requested(0)
        os.kill(os.getpid(), signal.SIGINT)
        assert stops.requested(1)
    assert signal.getsignal(signal.SIGINT) is before
