"""A model folder that does not fit itself is refused by a sentence: it would answer, and plausibly."""

import json

import numpy as np
import pytest
from maxtext_params import maxtext_params
from safetensors.numpy import save_file

from ping_llm.errors import PingError
from ping_llm.model import checkpoint, export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors

CONFIG = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_length=64)
Q_PROJ, NORM, EMBEDDING = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.input_layernorm.weight",
    "model.embed_tokens.weight",
)


@pytest.fixture
def tensors():
    return random_tensors(CONFIG, seed=1)


@pytest.fixture
def folder(tensors, tmp_path):
    return export.write(CONFIG, tensors, {}, tmp_path / "export")


def set_key(path, key, value):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {key: value}))


def test_a_folder_as_written_is_read(folder, tensors):
    model = export.read(folder)
    assert model.config == CONFIG
    assert all((model.tensors[name] == tensors[name]).all() for name in tensors)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "num_hidden_layers",
            1,
            "holds model.layers.1.input_layernorm.weight, which a network of 1 layers",
        ),
        ("num_hidden_layers", 3, "no model.layers.2.input_layernorm.weight"),
        ("num_hidden_layers", "2", "layers is '2'; it must be an integer"),
        ("num_hidden_layers", True, "layers is True; it must be an integer"),
        ("num_attention_heads", 2, r"has the shape \(32, 32\); by the configuration it must be \(16, 32\)"),
        ("num_attention_heads", 3, "heads is 3; it must be a multiple of kv_heads"),
        ("head_dim", 7, "head_dim is 7; it must be even"),
        ("vocab_size", 1, "vocab_size is 1; it must be 272"),
        ("max_position_embeddings", 0, "max_length is 0"),
        ("rope_theta", 0, "rope_theta is 0; it must be a number from 1"),
        ("rope_theta", -10000.0, "rope_theta is -10000.0"),
        ("rope_theta", 1e-40, "rope_theta is 1e-40"),
        ("rope_theta", float("nan"), "rope_theta is nan"),
        ("rms_norm_eps", -1.0, "norm_epsilon is -1.0"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_scaling is .*linear.*only None can be run"),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4}, "rope_type is 'linear'"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}, "but 500000.0 in rope_parameters"),
        ("hidden_act", "gelu", "hidden_act is 'gelu', only 'silu' can be run"),
        ("attention_bias", True, "attention_bias is True"),
        ("mlp_bias", True, "mlp_bias is True"),
        ("tie_word_embeddings", True, "tie_word_embeddings is True"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"),
        ("quantization_config", {"bits": 4}, "quantization_config is"),
        ("sliding_window", 16, "the key sliding_window is not known"),
        ("architectures", ["MistralForCausalLM"], "architectures is"),
    ],
)
def test_every_key_that_changes_the_arithmetic(folder, key, value, says):
    set_key(folder / export.CONFIG, key, value)
    with pytest.raises(PingError, match=says):
        export.read(folder)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model.layers.0.mlp.up_proj.weight", lambda array: array.T.copy(), r"\(32, 48\); .* be \(48, 32\)"),
        (Q_PROJ, lambda array: (array * 50).astype(np.int8), "has the type I8; it must be one of F32"),
        (NORM, lambda array: array[:1], r"has the shape \(1,\)"),
        (EMBEDDING, lambda array: array[:1], r"has the shape \(1, 32\)"),
        (Q_PROJ, lambda array: np.where(array == array.max(), np.inf, array), "holds the weight inf"),
        (Q_PROJ, lambda array: np.where(array == array.max(), np.nan, array), "holds the weight nan"),
        (NORM, lambda array: np.where(np.arange(32) == 3, np.float32(3e38), array), r"weight 3.*e\+38"),
        ("model.layers.0.self_attn.q_proj.bias", lambda array: np.ones(32, np.float32), "q_proj.bias, which"),
    ],
)
def test_tensors_that_are_not_those_of_the_configuration(folder, tensors, name, change, says):
    tensors[name] = change(tensors.get(name))
    save_file(tensors, folder / export.WEIGHTS)
    with pytest.raises(PingError, match=says):
        export.read(folder)


def test_half_precision_is_read(folder, tensors):
    save_file({name: array.astype(np.float16) for name, array in tensors.items()}, folder / export.WEIGHTS)
    read = export.read(folder).tensors
    assert all(array.dtype == np.float32 for array in read.values())
    np.testing.assert_allclose(read[Q_PROJ], tensors[Q_PROJ], atol=1e-3)


@pytest.mark.parametrize("file", [export.CONFIG, export.TOKENS, export.WEIGHTS])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_file_is_named(folder, file, content):
    (folder / file).write_bytes(content)
    with pytest.raises(PingError, match=f"{file}|model_type"):
        export.read(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocabulary_size", 300), ("rtt_encoding", 3), ("clip_limit_ms", "many"), ("context", [1])],
)
def test_tokens_that_are_not_ours(folder, key, value):
    set_key(folder / export.TOKENS, key, value)
    with pytest.raises(PingError, match=f"tokens.json: {key} is"):
        export.read(folder)


def test_what_transformers_saves_is_read(folder):
    """The keys that it adds change nothing, and are known."""
    transformers = pytest.importorskip("transformers")
    transformers.AutoConfig.from_pretrained(folder).save_pretrained(folder)
    assert export.read(folder).config == CONFIG


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mlp_activations": ["gelu", "linear"]}, "mlp_activations is"),
        ({"attention_type": "local_sliding"}, "attention_type is 'local_sliding'"),
        ({"final_logits_soft_cap": 30.0}, "final_logits_soft_cap is 30.0"),
        ({"rope_type": "yarn"}, "rope_type is 'yarn'"),
        ({"rope_min_timescale": 2}, "rope_min_timescale is 2"),
        ({"rope_max_timescale": 0}, "rope_theta is 0.0"),
    ],
)
def test_a_run_with_another_arithmetic(settings, says):
    checkpoint.to_llama(maxtext_params(), {"rope_min_timescale": 1, "mlp_activations": ["silu", "linear"]})
    with pytest.raises(PingError, match=says):
        checkpoint.to_llama(maxtext_params(), settings)


def test_a_checkpoint_without_a_layer_in_the_middle():
    with pytest.raises(PingError, match=r"the layers \[0, 2\]: some are missing"):
        checkpoint.to_llama(maxtext_params(layers=(0, 2)), {})
