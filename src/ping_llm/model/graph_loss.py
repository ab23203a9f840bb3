"""Accuracy loss of an exported graph: its predictions compared with the engine's, on measurements or on
contexts sampled from the model.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ping_llm.model.engine import Engine
from ping_llm.model.onnx import OnnxSession


@dataclass(frozen=True)
class Loss:
    """Differences over all positions of the checked sequences.

    Attributes:
      max_difference: largest difference of a logit.
      bits_per_token: additional bits per token under the graph compared to the engine, averaged over the
        engine's distribution (KL divergence).
      same_choice: share of positions where both have the same most probable token.
      bits_lost: additional bits per token of the sequences themselves under the graph; negative is a gain.
    """

    max_difference: float
    bits_per_token: float
    same_choice: float
    bits_lost: float


def sample_sequences(engine: Engine, count: int = 16, length: int = 128, seed: int = 0) -> np.ndarray:
    """Sample sequences from the model, int32 [count, length]: as good as data to compare two copies of it."""
    generator = np.random.default_rng(seed)
    length = min(length, engine.config.max_length - 1)
    decoder = engine.start(engine.prefill([np.zeros(0, np.int32)]), count, length)
    after, out = decoder.log_probabilities, []
    for _ in range(length):
        drawn = np.argmax(after + generator.gumbel(size=after.shape), axis=1)
        out.append(drawn)
        after = decoder.step(drawn)
    return np.stack(out, axis=1).astype(np.int32)


def compare(engine: Engine, graph: Path, sequences: np.ndarray) -> Loss:
    """Run the graph in two calls, the second with the cache of the first, and compare every logit."""
    inputs = np.concatenate([np.zeros((len(sequences), 1), np.int32), sequences], axis=1)
    positions = np.broadcast_to(np.arange(inputs.shape[1], dtype=np.int32), inputs.shape)
    ours = engine.logits(inputs, positions, np.ones_like(inputs)).astype(np.float64)
    session = OnnxSession(graph, engine.config)
    session.start(len(inputs))
    half = inputs.shape[1] // 2
    theirs = np.concatenate([session.step(inputs[:, :half]), session.step(inputs[:, half:])], axis=1)
    log_ours = ours - np.logaddexp.reduce(ours, axis=-1, keepdims=True)
    log_theirs = theirs - np.logaddexp.reduce(theirs.astype(np.float64), axis=-1, keepdims=True)
    divergence = (np.exp(log_ours) * (log_ours - log_theirs)).sum(axis=-1) / np.log(2)
    rows, places = np.arange(len(sequences))[:, None], np.arange(sequences.shape[1])
    lost = (log_ours - log_theirs)[rows, places, sequences] / np.log(2)
    # After the end of a sequence, which is padded with PAD, nothing is predicted.
    real = sequences != 0
    after = np.concatenate([np.ones((len(sequences), 1), bool), real], axis=1)
    return Loss(
        float(np.abs(ours - theirs)[after].max()),
        float(divergence[after].mean()),
        float((ours.argmax(-1) == theirs.argmax(-1))[after].mean()),
        float(lost[real].mean()),
    )
