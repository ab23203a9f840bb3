"""A small run for tests: random weights, a stack fitted to a simulated world, and its rows."""

import pyarrow.parquet as pq
import pytest

from ping_llm.answer.model import Model
from ping_llm.fit.calibrate import calibrate_columns
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, keep_compiled
from ping_llm.model.random import random_tensors
from ping_llm.rows.build import build
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import SplitOptions, split
from ping_llm.tokens.rtt import rtt_encoding

CONFIG = ModelConfig(layers=2, width=32, heads=2, kv_heads=1, head_dim=16, mlp_width=48, max_length=256)


@pytest.fixture(scope="session")
def engine() -> Engine:
    keep_compiled()
    # A scale of 3 makes the model prefer some tokens a thousand times over others, as a trained one does.
    return Engine(CONFIG, random_tensors(CONFIG, seed=5, scale=3.0))


@pytest.fixture(scope="session")
def model(engine) -> Model:
    return Model(engine, rtt_encoding("compact"), {})


METHODS = ("global", "by destination", "prefixes", "vivaldi", "neighbours", "pair recent", "pair last")


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=6000, probes=40, targets=12, days=6, seed=3))
    return split(read_measurements(folder), SplitOptions(0.8, 0.15, 0.2, 0.2, 1))


@pytest.fixture(scope="session")
def run(tmp_path_factory, engine, world):
    """Random weights, and a stack that was fitted to held-out questions."""
    folder = tmp_path_factory.mktemp("run")
    tokens = {"context": {"unnamed_source_probability": 0.5}}
    export.write(engine.config, random_tensors(engine.config, seed=5, scale=3.0), tokens, folder / "export")
    calibrate_columns(folder, world.train, SplitOptions(0.8, 0.15, 0.2, 0.2, 2), 40, METHODS)
    return folder


@pytest.fixture(scope="session")
def rows(tmp_path_factory, world):
    """What a question may look back on: all but what is held out."""
    folder = tmp_path_factory.mktemp("rows")
    pq.write_table(world.visible.to_arrow(), folder / "visible.parquet")
    build([folder / "visible.parquet"], folder / "rows")
    return folder / "rows"
