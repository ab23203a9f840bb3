"""Exports that leave home: ONNX with its cache in onnxruntime, and the Hugging Face folder."""

import json
from dataclasses import astuple

import numpy as np
import pytest

from ping_llm.model import export, graph_loss
from ping_llm.model.card import model_card
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine
from ping_llm.model.random import random_tensors

onnx = pytest.importorskip("ping_llm.model.onnx")

CONFIG = ModelConfig(
    layers=2,
    width=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=48,
    max_length=64,
    norm_epsilon=1e-4,
    rope_theta=500.0,
)


@pytest.fixture(scope="module")
def tensors():
    return random_tensors(CONFIG, seed=9, scale=2.0)


@pytest.fixture(scope="module")
def engine(tensors):
    return Engine(CONFIG, tensors)


@pytest.fixture(scope="module")
def sequences():
    return np.random.default_rng(3).integers(0, 272, (3, 40)).astype(np.int32)


def test_onnx_equals_the_engine_with_its_cache(engine, tensors, sequences, tmp_path):
    onnx.write(CONFIG, tensors, tmp_path / "model.onnx")
    loss = graph_loss.compare(engine, tmp_path / "model.onnx", sequences)
    assert loss.max_difference < 1e-4
    assert loss.bits_per_token < 1e-6

    session = onnx.OnnxSession(tmp_path / "model.onnx", CONFIG)
    session.start(3)
    inputs = np.concatenate([np.zeros((3, 1), np.int32), sequences], axis=1)
    steps = np.concatenate([session.step(inputs[:, place : place + 1]) for place in range(6)], axis=1)
    session.start(3)
    np.testing.assert_allclose(steps, session.step(inputs[:, :6]), atol=1e-4)


def test_int8_is_a_quarter_of_the_size_and_loses_little(engine, tensors, sequences, tmp_path):
    onnx.write(CONFIG, tensors, tmp_path / "float.onnx")
    onnx.write(CONFIG, tensors, tmp_path / "int8.onnx", int8=True)
    loss = graph_loss.compare(engine, tmp_path / "int8.onnx", sequences)
    assert 1e-3 < loss.max_difference < 1.0
    assert 0 < loss.bits_per_token < 0.01
    weights = 4 * CONFIG.parameters
    saved = (tmp_path / "float.onnx").stat().st_size - (tmp_path / "int8.onnx").stat().st_size
    assert saved > 0.6 * weights


def test_the_loss_is_measured_on_measurements(engine, tensors, tmp_path):
    """Bits lost equal the difference of the cross-entropies; what lies behind a sequence does not count."""
    onnx.write(CONFIG, tensors, tmp_path / "int8.onnx", int8=True)
    told = np.random.default_rng(4).integers(1, 272, (2, 20)).astype(np.int32)
    padded = np.pad(told, ((0, 0), (0, 9)))
    plain = graph_loss.compare(engine, tmp_path / "int8.onnx", told)
    again = graph_loss.compare(engine, tmp_path / "int8.onnx", padded)
    assert astuple(again) == pytest.approx(astuple(plain), rel=1e-3, abs=1e-6)
    inputs = np.concatenate([np.zeros((2, 1), np.int32), told], axis=1)
    session = onnx.OnnxSession(tmp_path / "int8.onnx", CONFIG)
    session.start(2)
    positions = np.broadcast_to(np.arange(21, dtype=np.int32), inputs.shape)
    costs = []
    for logits in (session.step(inputs), engine.logits(inputs, positions, np.ones_like(inputs))):
        logits = logits.astype(np.float64)
        chosen = np.take_along_axis(logits[:, :-1], told[..., None].astype(np.int64), axis=2)[..., 0]
        costs.append((np.logaddexp.reduce(logits[:, :-1], axis=2) - chosen).mean() / np.log(2))
    assert plain.bits_lost == pytest.approx(costs[0] - costs[1], abs=1e-6)


def test_sampled_sequences_are_the_models_own(engine):
    drawn = graph_loss.sample_sequences(engine, count=4, length=30, seed=1)
    assert drawn.shape == (4, 30)
    assert (drawn == graph_loss.sample_sequences(engine, count=4, length=30, seed=1)).all()


def test_the_card_says_what_it_is(tensors, tmp_path):
    export.write(CONFIG, tensors, {"rtt_encoding": "log"}, tmp_path / "export")
    run = {"name": "shore", "config": "tiny", "steps": 7}
    (tmp_path / "run.json").write_text(json.dumps(run))
    lines = [{"kind": "train", "loss": 2.0}, {"kind": "eval", "loss": 1.25, "bits": {"total": 30.5}}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "tr')
    (tmp_path / "rows").mkdir()
    manifest = {
        "counts": {"measurements": 1234, "rows": 5},
        "fingerprint": "f1d0",
        "index": {"file": "index.bin"},
    }
    (tmp_path / "rows" / "manifest.json").write_text(json.dumps(manifest))
    card = model_card(export.read(tmp_path / "export"), tmp_path)
    for text in (
        "license: apache-2.0",
        f"{CONFIG.parameters:,} parameters",
        "`log`",
        "shore",
        "1.2500",
        "30.50",
        "1,234 measurements",
        "f1d0",
        "TIME_DELTA4 byte{4}",
        "| 11 | PREFIX_END |",
    ):
        assert text in card


def test_config_json_is_a_llama_configuration(tensors, tmp_path):
    export.write(CONFIG, tensors, {}, tmp_path)
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(config).__name__ == "LlamaConfig"
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (2, 8, 1e-4)


def test_transformers_computes_the_same_logits(engine, tensors, sequences, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers")
    export.write(CONFIG, tensors, {}, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = theirs(torch.tensor(sequences, dtype=torch.long)).logits.numpy()
    positions = np.broadcast_to(np.arange(40, dtype=np.int32), sequences.shape)
    ours = engine.logits(sequences, positions, np.ones_like(sequences))
    np.testing.assert_allclose(ours, logits, atol=1e-4)


def test_parameters_are_counted(tensors):
    assert sum(tensor.size for tensor in tensors.values()) == CONFIG.parameters
