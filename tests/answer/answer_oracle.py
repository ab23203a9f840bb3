"""What a question must come to, by the forward without a cache; and made-up ends."""

import numpy as np

from ping_llm.measurements.columns import Columns
from ping_llm.model.engine import Engine
from ping_llm.splits.holdout import SplitOptions, Splits, split


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


def ends_on_a_circle() -> Splits:
    """A circle of 200 ms; each of 100 sources measures half of 50 destinations, in two networks of IPv4."""
    random = np.random.default_rng(0)
    places = random.random(150) * 200
    pairs = np.array([(s, d) for s in range(100) for d in range(100, 150) if random.random() < 0.5])
    pairs = np.repeat(pairs, 3, axis=0)
    off = np.abs(places[pairs[:, 0]] - places[pairs[:, 1]])
    rtt = 5 + np.minimum(off, 200 - off) + random.exponential(1.0, len(pairs))
    rtt[random.random(len(pairs)) < 0.05] = -1.0
    time = random.permutation(len(pairs)) * 1_000_000
    data = Columns(time, address(pairs[:, 0]), address(pairs[:, 1]), rtt).sorted_by_time()
    return split(data, SplitOptions(sources=0.15))
