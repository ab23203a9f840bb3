"""What is written to train on is the training part of the split that is evaluated on, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.cli import app
from ping_llm.cli import evaluate as evaluate_cli
from ping_llm.errors import UsageError
from ping_llm.evaluate.columns import read_measurements
from ping_llm.evaluate.splits import SplitOptions, split
from ping_llm.evaluate.training_part import write_training_part
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=3000, probes=40, targets=12, days=2, seed=4))
    return folder


def test_the_training_part_is_that_of_the_split(world, tmp_path):
    options = SplitOptions(time=0.7, pairs=0.2)
    proof = write_training_part(world, tmp_path / "train", options)
    expected = split(read_measurements(world), options).train
    written = read_measurements(tmp_path / "train")
    assert proof["train"] == len(written) == len(expected)
    for name in ("time", "src", "dst", "rtt"):
        np.testing.assert_array_equal(getattr(written, name), getattr(expected, name), err_msg=name)
    with pytest.raises(UsageError, match="not empty"):
        write_training_part(world, tmp_path / "train", options)


def test_the_command_writes_and_evaluates_nothing(world, tmp_path):
    if not any(command.name == "evaluate" for command in app.registered_commands):
        evaluate_cli.register(app)
    words = ["evaluate", "--data", str(world), "--time", "0.7"]
    done = CliRunner().invoke(app, [*words, "--write-train", str(tmp_path / "train")])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == [
        "measurements.parquet",
        "split.json",
    ]
    assert isinstance(CliRunner().invoke(app, words).exception, (UsageError, SystemExit))
