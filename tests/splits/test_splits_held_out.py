"""The held-out split as files: what is written to train on is what `evaluate` trains on, column by column."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ping_llm.cli import app
from ping_llm.cli import evaluate as evaluate_cli
from ping_llm.errors import UsageError
from ping_llm.measurements.parquet import read_measurements
from ping_llm.measurements.schema import MEASUREMENTS_WITH_KIND
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits import holdout
from ping_llm.splits.holdout import KINDS, SplitOptions, split, write_held_out, write_training_part


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
    assert write_training_part(world, tmp_path / "train", options) == proof  # done already
    with pytest.raises(UsageError, match="not empty"):
        write_training_part(world, tmp_path / "train", SplitOptions(time=0.7, pairs=0.3))


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


def test_every_column_of_the_input_survives(world, tmp_path):
    table = pa.concat_tables(pq.read_table(path) for path in sorted(world.rglob("*.parquet")))
    kinds = pa.array(["ping", "hop", "last"] * len(table))[: len(table)]
    table = table.append_column("kind", kinds)
    pq.write_table(table, tmp_path / "in.parquet")
    write_training_part(tmp_path / "in.parquet", tmp_path / "train", SplitOptions())
    write_held_out([tmp_path / "in.parquet"], tmp_path / "parts", SplitOptions())
    trained = pq.read_table(tmp_path / "train" / "measurements.parquet")
    assert trained.schema.equals(MEASUREMENTS_WITH_KIND, check_metadata=True)
    assert trained.equals(pq.read_table(tmp_path / "parts" / "train" / "measurements.parquet"))
    given = Counter(tuple(row.values()) for row in table.select(trained.column_names).to_pylist())
    found = Counter(
        tuple(row.values())
        for path in (tmp_path / "parts").rglob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    )
    assert not found - given
    assert {row[-1] for row in found} == {"ping", "hop", "last"}
    assert any(row[5] is not None and row[8] is not None for row in found)  # msm_id and probe_id


def test_every_measurement_is_in_one_part_or_counted(world, tmp_path):
    options = SplitOptions(pairs=0.2, seed=3)
    report = write_held_out([str(world)], tmp_path / "out", options)
    expected = split(read_measurements(world), options)
    assert report == json.loads((tmp_path / "out" / "split.json").read_text())
    assert report["in"] == len(expected.data) == sum(report["parts"].values()) + report["unused"]
    for name in KINDS:
        written = read_measurements(tmp_path / "out" / "test" / f"{name}.parquet")
        np.testing.assert_array_equal(written.src, expected.test(name).src)
    context = read_measurements(tmp_path / "out" / "context")
    train = read_measurements(tmp_path / "out" / "train")
    later = expected.test("later")
    assert len(context) + len(train) + len(later) == len(expected.visible)
    assert not list(tmp_path.glob(".*"))
    assert write_held_out([str(world)], tmp_path / "out", options) == report  # done already
    with pytest.raises(UsageError, match="not empty"):
        write_held_out([str(world)], tmp_path / "out", SplitOptions(pairs=0.2, seed=4))
    (tmp_path / "out" / "train" / "measurements.parquet").unlink()
    with pytest.raises(UsageError, match="not empty"):
        write_held_out([str(world)], tmp_path / "out", options)


def test_an_interrupted_split_leaves_nothing_and_is_done_again(world, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(holdout, "write_json", full)
    with pytest.raises(OSError, match="full"):
        write_held_out([str(world)], tmp_path / "out", SplitOptions())
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    (tmp_path / ".out.part" / "train").mkdir(parents=True)  # as a kill leaves it
    write_held_out([str(world)], tmp_path / "out", SplitOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_split_command(world, tmp_path):
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()", "split", str(world), "--out"]
    words = [*program, str(tmp_path / "out"), "--by", "held-out", "--time", "0.7", "--seed", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["options"] == asdict(SplitOptions(time=0.7, seed=2))
    wrong = subprocess.run([*program, str(tmp_path / "no"), "--pairs", "0.2"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--pairs does not apply to --by time" in wrong.stderr
    wrong = subprocess.run([*words, "--fractions", "0.5,0.5"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--fractions does not apply to --by held-out" in wrong.stderr


def test_data_without_a_time_are_split_alike_everywhere(tmp_path):
    """A campaign knows only its day: no cut in time, for `evaluate` as for `fit`."""
    from ping_llm.evaluate.inputs import EvaluateOptions, read

    table = pa.table(
        {
            "event_time": pa.array([1_700_000_000_000_000] * 600, pa.timestamp("us", tz="UTC")),
            "src_addr": [f"192.0.2.{number % 30}" for number in range(600)],
            "dst_addr": [f"198.51.100.{number // 30}" for number in range(600)],
            "rtt": [float(number % 50) for number in range(600)],
        }
    )
    pq.write_table(table, tmp_path / "campaign.parquet")
    proof = write_training_part(tmp_path / "campaign.parquet", tmp_path / "train", SplitOptions())
    evaluated = read(tmp_path / "campaign.parquet", EvaluateOptions(baselines=("global",)))
    assert proof["options"]["time"] == 1.0
    assert len(evaluated.train) == proof["train"]
    assert "later" not in {test.kind for test in evaluated.tests}
