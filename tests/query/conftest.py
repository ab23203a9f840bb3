import pytest

from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, keep_compiled
from ping_llm.model.random import random_tensors
from ping_llm.query.model import Model
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
