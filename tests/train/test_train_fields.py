"""The split of the loss, against a plain walk over the tokens."""

import math

import jax.numpy as jnp
import numpy as np

from ping_llm.tokens import vocab
from ping_llm.train import token_loss

_GROUPS = {
    "source": {vocab.SRC_IPV4, vocab.SRC_IPV6},
    "destination": {vocab.DST_IPV4, vocab.DST_IPV6},
    "rtt": {vocab.RTT, vocab.FAILED},
    "time": {vocab.TIME_ABS, vocab.TIME_DELTA1, vocab.TIME_DELTA4},
    "size": {vocab.SIZE},
    "errors": {vocab.ERRORS},
    "msm_id": {vocab.MSM_ID},
}
_EXTRA = {1: "probe_id", 2: "throughput"}


def _byte(value):
    return vocab.BYTE0 + value


# Three measurements, with a prefix, a failure and every optional field; then padding.
_TOKENS = [
    *(vocab.MEASUREMENT, vocab.DST_IPV4, _byte(10), _byte(9), vocab.PREFIX_END),
    *(vocab.SRC_IPV6, *map(_byte, range(16)), vocab.RTT, _byte(1), _byte(2), vocab.TIME_DELTA1, _byte(5)),
    *(
        vocab.MEASUREMENT,
        vocab.FAILED,
        vocab.DST_IPV4,
        *map(_byte, (1, 2, 3, 4)),
        vocab.SIZE,
        _byte(0),
        _byte(9),
    ),
    *(vocab.MEASUREMENT, vocab.ERRORS, _byte(2), vocab.RTT, _byte(7), _byte(8)),
    *(vocab.EXTRA, *map(_byte, (1, 0, 0, 9, 9)), vocab.EXTRA, *map(_byte, (2, 5, 56))),
    *(vocab.MSM_ID, *map(_byte, range(8)), vocab.DST_IPV4, *map(_byte, (1, 2, 3, 4))),
    *(vocab.PAD,) * 3,
]


def _oracle(logits, tokens):
    bits = dict.fromkeys(token_loss.NAMES, 0.0)
    current = ""
    for row, token in zip(logits, tokens, strict=True):
        if token == vocab.PAD:
            continue
        probability = np.exp(row - row.max())
        probability /= probability.sum()
        if current == "extra":
            bits["order"] -= math.log2(probability[token])
            current = _EXTRA[token - vocab.BYTE0]
        elif token >= vocab.BYTE0 or token == vocab.PREFIX_END:
            bits[current] -= math.log2(probability[token])
        elif token in (vocab.MEASUREMENT, vocab.EXTRA):
            bits["order"] -= math.log2(probability[token])
            current = "extra" if token == vocab.EXTRA else ""
        else:
            current = next(name for name, members in _GROUPS.items() if token in members)
            group = sum(probability[member] for member in _GROUPS[current])
            bits["order"] -= math.log2(group)
            bits[current] -= math.log2(probability[token] / group)
    return bits


def test_fields_equal_a_plain_walk_and_sum_to_the_loss():
    random = np.random.default_rng(0)
    targets = np.array([_TOKENS, _TOKENS[::1]])
    logits = random.normal(size=(*targets.shape, vocab.VOCABULARY_SIZE)).astype(np.float32) * 3
    log_z = np.log(np.exp(logits).sum(-1))
    nats = log_z - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    counted = targets != vocab.PAD
    summed = np.asarray(token_loss.sums(*map(jnp.asarray, (logits, nats, targets, counted))))

    expected = [_oracle(logits[row], _TOKENS) for row in range(2)]
    for index, name in enumerate(token_loss.NAMES):
        np.testing.assert_allclose(summed[index], sum(bits[name] for bits in expected), rtol=1e-4)
    assert summed[-1] == 6
    assert (summed > 0).all()
    per_measurement = token_loss.bits_per_measurement(summed)
    np.testing.assert_allclose(per_measurement["total"] * 6, nats[counted].sum() / math.log(2), rtol=1e-4)
