"""The engine's ways of computing agree with each other, on random weights."""

import numpy as np
import pytest

from ping_llm.errors import PingError
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, padded_length
from ping_llm.model.random import random_tensors

CONFIG = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_length=128)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(CONFIG, random_tensors(CONFIG, seed=3))


def whole(engine: Engine, sequence: np.ndarray) -> np.ndarray:
    """Log-probabilities after each input of one sequence, by the forward without a cache."""
    inputs = np.concatenate([[0], sequence]).astype(np.int32)[None]
    logits = engine.logits(inputs, np.arange(inputs.shape[1], dtype=np.int32)[None], np.ones_like(inputs))[0]
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def sequences() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(1, 272, length) for length in (1, 5, 30, 33, 17)]


def test_prefill_equals_the_whole_forward(engine, sequences):
    prefix = engine.prefill(sequences, tail=2)
    for row, sequence in enumerate(sequences):
        np.testing.assert_allclose(prefix.tail[row], whole(engine, sequence)[-2:], atol=2e-5)


def test_extending_a_context_equals_reading_it_again(engine, sequences):
    """Also with a cache that must grow (30 + 1 + 16 tokens of 64 fit, 60 do not)."""
    for context in (sequences[2], np.resize(sequences[3], 60)):
        shared = engine.prefill([context])
        extended = engine.extend(shared, sequences[1:], tail=2)
        again = engine.prefill([np.concatenate([context, more]) for more in sequences[1:]], tail=2)
        assert extended.lengths.tolist() == again.lengths.tolist()
        np.testing.assert_allclose(extended.tail, again.tail, atol=2e-5)
        # What is kept serves as well as what was read at once.
        suffixes = np.full((len(again), 2, 1), 33, np.int32)
        np.testing.assert_allclose(
            engine.branch(extended, suffixes), engine.branch(again, suffixes), atol=2e-5
        )
    with pytest.raises(ValueError, match="only one context"):
        engine.extend(again, sequences[1:])


@pytest.mark.parametrize("depth", [1, 3])
def test_branches_equal_the_whole_forward(engine, sequences, depth):
    suffixes = np.random.default_rng(1).integers(1, 272, (len(sequences), 5, depth)).astype(np.int32)
    out = engine.branch(engine.prefill(sequences), suffixes)
    for row, sequence in enumerate(sequences):
        for way in range(5):
            expected = whole(engine, np.concatenate([sequence, suffixes[row, way]]))[-depth:]
            np.testing.assert_allclose(out[row, way], expected, atol=2e-5)


def test_steps_equal_the_whole_forward(engine, sequences):
    sequence = sequences[2]
    decoder = engine.start(engine.prefill([sequence]), copies=3, room=4)
    said = np.empty((3, 0), int)
    for _ in range(4):
        tokens = np.array([20, 30, 40]) + said.shape[1]
        said = np.concatenate([said, tokens[:, None]], axis=1)
        out = decoder.step(tokens)
        for row in range(3):
            expected = whole(engine, np.concatenate([sequence, said[row]]))[-1]
            np.testing.assert_allclose(out[row], expected, atol=2e-5)


def test_packed_segments_equal_the_same_apart(engine, sequences):
    first, second = sequences[1], sequences[4]
    inputs = np.concatenate([[0], first[:-1], [0], second[:-1], [0, 0]]).astype(np.int32)[None]
    targets = np.concatenate([first, second, [0, 0]]).astype(np.int32)[None]
    sizes = (len(first), len(second))
    positions = np.concatenate([np.arange(sizes[0]), np.arange(sizes[1]), [0, 0]]).astype(np.int32)[None]
    segmentation = np.repeat([1, 2, 0], [*sizes, 2]).astype(np.int32)[None]
    together = engine.log_probabilities(inputs, targets, positions, segmentation)[0]
    apart = [whole(engine, one[:-1])[np.arange(len(one)), one] for one in (first, second)]
    np.testing.assert_allclose(together[:-2], np.concatenate(apart), atol=2e-5)


def test_too_long_a_context_gets_a_sentence(engine):
    with pytest.raises(PingError, match="129 tokens is longer than the 128"):
        engine.prefill([np.ones(128, int)])


def test_lengths_are_few_and_never_too_short():
    lengths = {padded_length(length) for length in range(1, 1025)}
    assert len(lengths) == 7
    assert all(padded_length(length) >= length for length in range(1, 3000))
