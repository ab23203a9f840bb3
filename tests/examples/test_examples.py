"""The scripts of examples/ run as their heads say."""

import subprocess
import sys
from pathlib import Path

import polars
import pytest

import ping_llm
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.simulate import WorldOptions, simulate

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=4000, probes=40, days=2))
    return folder


def run(script: str, *words: object) -> str:
    command = [sys.executable, str(EXAMPLES / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ask_without_arguments_prints_its_usage():
    done = subprocess.run([sys.executable, EXAMPLES / "ask.py"], capture_output=True, text=True, check=False)
    assert done.stderr == "usage: python examples/ask.py RUN SRC DST\n"
    assert done.returncode == 1


def test_ask(tmp_path):
    config = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=256)
    export.write(config, random_tensors(config), {}, tmp_path)
    said = run("ask.py", tmp_path, "192.0.2.1", "198.51.100.7")
    assert "192.0.2.1 → 198.51.100.7: median" in said
    assert "198.51.100.0/24: best guess" in said


def test_own_data(world, tmp_path):
    table = polars.DataFrame(ping_llm.read(world / "date=2024-01-01"))
    table.select("event_time", "src_addr", "dst_addr", "rtt").write_csv(tmp_path / "pings.csv")
    said = run("own_data.py", tmp_path / "pings.csv", tmp_path / "out")
    assert f"{len(table):,} measurements; rejected: {{}}" in said
    assert "a batch: (4, 256) tokens" in said


def test_baselines(world, tmp_path):
    said = run("baselines.py", world, tmp_path / "report")
    assert said.count("best is") >= 4
    assert (tmp_path / "report" / "report.html").is_file()


def test_every_example_is_tested():
    here = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in here for path in EXAMPLES.glob("*.py"))
