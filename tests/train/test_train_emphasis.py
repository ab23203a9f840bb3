"""What the gradient attends to, against the same losses written out plainly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ping_llm.tokens import vocab
from ping_llm.train.token_loss import emphasised

_DST = [vocab.DST_IPV4, *(vocab.BYTE0 + byte for byte in (9, 9, 9, 200))]
_TARGETS = np.array(
    [
        [vocab.MEASUREMENT, *_DST, vocab.RTT, vocab.BYTE0 + 150, vocab.BYTE0 + 17, vocab.PAD],
        [vocab.MEASUREMENT, vocab.FAILED, *_DST, vocab.PAD, vocab.PAD, vocab.PAD],
    ]
)
_RESULT = np.zeros(_TARGETS.shape, bool)
_RESULT[0, 6:9] = _RESULT[1, 1] = True
_SECOND = np.zeros(_TARGETS.shape, bool)
_SECOND[0, 8] = True


def _logits() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (*_TARGETS.shape, vocab.VOCABULARY_SIZE))


def _nats(logits: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(_TARGETS)[..., None], axis=-1)[..., 0]


def _gradient(weight: float, smoothing: float) -> np.ndarray:
    def loss(logits: jax.Array) -> jax.Array:
        return jnp.sum(emphasised(logits, _nats(logits), jnp.asarray(_TARGETS), weight, smoothing))

    return np.asarray(jax.grad(loss)(_logits()))


@pytest.mark.parametrize(("weight", "smoothing"), [(1.0, 0.0), (4.0, 0.0), (1.0, 3.0), (0.0, 1.5)])
def test_the_recorded_loss_is_that_of_the_true_tokens(weight, smoothing):
    logits = _logits()
    out = emphasised(logits, _nats(logits), jnp.asarray(_TARGETS), weight, smoothing)
    np.testing.assert_allclose(out, _nats(logits), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 2.5])
def test_the_gradient_is_that_of_the_weighted_and_smoothed_loss(smoothing):
    aim = np.eye(vocab.VOCABULARY_SIZE)[_TARGETS]
    if smoothing:
        near = np.exp(-0.5 * ((np.arange(256) - 17) / smoothing) ** 2)
        aim[_SECOND] = np.concatenate([np.zeros(vocab.BYTE0), near / near.sum()])
    weights = np.where(_RESULT, 4.0, 1.0)
    counted = _TARGETS != vocab.PAD
    weights *= counted.sum() / (weights * counted).sum()
    expected = weights[..., None] * (np.asarray(jax.nn.softmax(_logits())) - aim)
    np.testing.assert_allclose(_gradient(4.0, smoothing), expected, atol=1e-6)


def test_without_emphasis_nothing_changes():
    plain = jax.grad(lambda logits: jnp.sum(_nats(logits)))(_logits())
    np.testing.assert_allclose(_gradient(1.0, 0.0), plain, atol=1e-6)
