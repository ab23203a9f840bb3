"""Honest endings: a sentence and an error, never "Training stopped" and 0."""

import contextlib
import os
import shutil
import subprocess

import pytest
from small_training import SMALL, command, losses, start, wait_for

from ping_llm.errors import PingError, UsageError
from ping_llm.model import ledger
from ping_llm.train import runs
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_running_out_of_data(few_rows, tmp_path):
    with pytest.raises(PingError, match=r"the data ran out after .* of 500 steps: 1 epochs of"):
        train("tiny", [*SMALL, "steps=500", "network_epochs=1"], run=tmp_path / "run", rows=few_rows)
    assert runs.read(tmp_path / "run")["state"] == "failed"


def test_a_broken_record_in_the_data(rows, tmp_path, capsys):
    """It ends the training; told to skip, the same command goes on without it."""
    broken = tmp_path / "rows"
    shutil.copytree(rows, broken)
    shard = max(broken.rglob("*.arrayrecord*"), key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    shard.write_bytes(content)
    with pytest.raises(PingError, match=r"(?i)row|record|checksum|corrupt"):
        train("tiny", [*SMALL, "steps=200"], run=tmp_path / "run", rows=broken)
    words = [*SMALL, "steps=70", "network_on_bad_row=skip", "enable_tensorboard=false"]
    assert train("tiny", words, run=tmp_path / "run", rows=broken).state == "finished"
    skipped = runs.read(tmp_path / "run")["skipped_rows"]
    assert skipped > 0
    assert f"warning: {skipped} bad rows of {broken} were skipped" in capsys.readouterr().err


def test_a_loss_that_is_no_number(rows, tmp_path):
    with pytest.raises(PingError, match=r"of step \d+ is (nan|inf)"):
        train(
            "tiny",
            [*SMALL, "learning_rate=1e30", "warmup_steps_fraction=0", "gradient_clipping_threshold=0"],
            run=tmp_path / "run",
            rows=rows,
        )
    recorded = losses(tmp_path / "run")
    assert list(recorded) == list(range(len(recorded)))
    # No checkpoint may hold weights that made it.
    assert all(step < len(recorded) for step in ledger.steps(tmp_path / "run" / "checkpoints"))


@contextlib.contextmanager
def small_disk(path, size):
    path.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk(rows, tmp_path):
    with small_disk(tmp_path / "disk", "300k") as disk, pytest.raises(PingError, match="the disk is full"):
        train("tiny", SMALL, run=disk / "run", rows=rows)


@pytest.mark.timeout(300)
def test_a_disk_that_fills_up(rows, tmp_path):
    """TensorBoard's, from the beginning: the training goes on. Then the run's: it ends with the sentence.

    In a process of its own, which used to wait for TensorBoard's writer forever.
    """
    endless = ("steps=1000000", "checkpoint_period=1000000")
    run = tmp_path / "disk" / "run"
    with small_disk(run.parent, "8M"), small_disk(run / "tensorboard", "32k"):
        process = start(command(run, rows, *endless))
        try:
            wait_for(run, 3, process)
            _fill(run.parent / "filler")
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 1
        assert errors.count("the TensorBoard events in") == 1
        assert "the disk is full; free some space" in errors
        (run.parent / "filler").unlink()
        assert list(losses(run))[:4] == [0, 1, 2, 3]


def _fill(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(descriptor, bytes(4096)):
            pass
    os.close(descriptor)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["learning_rte=1"], "did you mean 'learning_rate'"),
        (["network_prefix_probabilty=0.2"], "did you mean 'network_prefix_probability'"),
        (["network_prefix_probability=2"], "a probability lies between 0 and 1"),
        (["vocab_size=300"], "vocab_size must be 272, not 300"),
        (["attention=cudnn_flash_jax"], "ignores segments"),
        (["eval_interval=10"], "--eval-rows"),
        (["steps=many"], "steps"),
        (["steps=0"], "steps=0 must be at least 1"),
        (["network_batch_size=0", "per_device_batch_size=-3"], "per_device_batch_size=-3 must be above 0"),
        (["dataset_type=netwrk"], "dataset_type"),
    ],
)
def test_a_config_that_cannot_work(words, says, rows, tmp_path):
    with pytest.raises(UsageError, match=says):
        train("tiny", [*SMALL, *words], run=tmp_path / "run", rows=rows)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"steps: [", b"- a list"])
def test_a_file_that_is_no_config(content, rows, tmp_path):
    (tmp_path / "own.yml").write_bytes(content)
    with pytest.raises(UsageError, match=r"own.yml is not a config"):
        train(str(tmp_path / "own.yml"), run=tmp_path / "run", rows=rows)
    assert not (tmp_path / "run").exists()
