"""Honest endings: a sentence and an error, never "Training stopped" and 0."""

import shutil
import subprocess

import pytest
from small_training import SMALL, losses

from ping_llm.errors import PingError, UsageError
from ping_llm.train import checkpoints, folder
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_running_out_of_data(few_rows, tmp_path):
    with pytest.raises(PingError, match=r"the data ran out after .* of 500 steps: 1 epochs of"):
        train("tiny", [*SMALL, "steps=500", "network_epochs=1"], run=tmp_path / "run", rows=few_rows)
    assert folder.read(tmp_path / "run")["state"] == "failed"


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
    skipped = folder.read(tmp_path / "run")["skipped_rows"]
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
    assert all(step < len(recorded) for step in checkpoints.steps(tmp_path / "run" / "checkpoints"))


def test_a_full_disk(rows, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(PingError, match="the disk is full"):
            train("tiny", SMALL, run=disk / "run", rows=rows)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["learning_rte=1"], "did you mean 'learning_rate'"),
        (["network_prefix_probabilty=0.2"], "did you mean 'network_prefix_probability'"),
        (["network_prefix_probability=2"], "a probability lies between 0 and 1"),
        (["vocab_size=300"], "vocab_size=300"),
        (["attention=cudnn_flash_jax"], "ignores segments"),
        (["eval_interval=10"], "--eval-rows"),
        (["steps=many"], "steps"),
        (["network_batch_size=0", "per_device_batch_size=-3"], "per_device_batch_size"),
        (["dataset_type=netwrk"], "dataset_type"),
    ],
)
def test_a_config_that_cannot_work(words, says, rows, tmp_path):
    with pytest.raises(UsageError, match=says):
        train("tiny", [*SMALL, *words], run=tmp_path / "run", rows=rows)
    assert not (tmp_path / "run" / "checkpoints").exists()
