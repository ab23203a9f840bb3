"""What a question must come to, by the forward without a cache."""

import numpy as np

from ping_llm.model.engine import Engine


def log_probabilities(engine: Engine, ids: np.ndarray) -> np.ndarray:
    """float64 [len(ids) + 1, 272] after each input, by the forward without a cache."""
    inputs = np.concatenate([[0], ids]).astype(np.int32)[None]
    # Padded to one length: the causal mask hides it, and nothing is compiled again.
    padded = np.pad(inputs, ((0, 0), (0, 256 - inputs.shape[1])))
    positions = np.arange(256, dtype=np.int32)[None]
    logits = engine.logits(padded, positions, np.ones_like(padded))[0, : inputs.shape[1]].astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def address(number: np.ndarray) -> np.ndarray:
    """IPv4 addresses below 20/8."""
    packed = np.zeros((len(number), 16), np.uint8)
    packed[:, 10:12] = 255
    packed[:, 12] = 20
    packed[:, 13], packed[:, 14], packed[:, 15] = number // 65536, number // 256 % 256, number % 256
    return packed
