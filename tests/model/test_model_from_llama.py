"""Weights under Hugging Face names → MaxText's: the inverse of reading a checkpoint, to the bit."""

import numpy as np
import pytest

from ping_llm.model import checkpoint
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors

# The square root of 16 is exact, and so is every product with it.
CONFIG = ModelConfig(layers=3, width=32, heads=4, kv_heads=2, head_dim=16, mlp_width=48)


@pytest.mark.parametrize("scanned", [False, True])
def test_there_and_back(scanned, tmp_path):
    tensors = random_tensors(CONFIG, 0)
    params = checkpoint.from_llama(tensors, CONFIG, scanned)
    assert any(name.startswith("decoder/layers/") for name in params) == scanned
    checkpoint.write(params, tmp_path / "step")
    config, back = checkpoint.to_llama(checkpoint.read(tmp_path / "step"), {})
    assert (config.layers, config.heads, config.kv_heads) == (3, 4, 2)
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name)
