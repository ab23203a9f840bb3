"""What the gradient attends to: results more than addresses, and near misses of an RTT less than far ones.

A measurement of IPv4 has about 14 tokens, of which three are the result. `network_rtt_loss_weight` makes
theirs count more. `network_rtt_smoothing` spreads the target of an RTT's second byte over its neighbours (a
Gaussian, in steps of the encoding): to the loss, bytes are names without an order, and 0.1 ms beside the
truth is as wrong as 4 ms. After Imani and White, "Improving regression performance with distributional
losses", ICML 2018.

Only the gradient changes. The loss that is recorded stays that of the true tokens, so that runs compare.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ping_llm.tokens import vocab

_BYTES = 256


def wanted(config: Any) -> bool:
    return config.network_rtt_loss_weight != 1.0 or config.network_rtt_smoothing > 0.0


def of_config(config: Any, logits: jax.Array, nats: jax.Array, targets: jax.Array) -> jax.Array:
    return emphasised(logits, nats, targets, config.network_rtt_loss_weight, config.network_rtt_smoothing)


def emphasised(
    logits: jax.Array, nats: jax.Array, targets: jax.Array, weight: float, smoothing: float
) -> jax.Array:
    """[batch, length]: the values of `nats`, with the gradient of the weighted and smoothed loss.

    Args:
        logits: [batch, length, vocabulary].
        nats: [batch, length], the cross entropy of each target.
        targets: [batch, length] token ids.
        weight: of the tokens of a result, where all others have 1; their mean over the batch is made 1.
        smoothing: standard deviation in steps of the second byte; 0 for none.
    """
    of_result, second = _places(targets)
    aim = nats
    if smoothing:
        neighbours = jnp.asarray(_kernel(smoothing), logits.dtype)[jnp.clip(targets - vocab.BYTE0, 0)]
        expected = jnp.sum(neighbours * logits[..., vocab.BYTE0 :], axis=-1)
        aim = jnp.where(second, jax.nn.logsumexp(logits, axis=-1) - expected, aim)
    weights = jnp.where(of_result, weight, 1.0)
    counted = targets != vocab.PAD
    aim *= weights * jnp.sum(counted) / jnp.maximum(jnp.sum(weights * counted), 1.0)
    return aim + jax.lax.stop_gradient(nats - aim)


def _places(targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which targets belong to a result, and which are the second byte of an RTT."""
    place = jnp.arange(targets.shape[1])
    starts = (targets < vocab.BYTE0) & (targets != vocab.PREFIX_END)
    last_start = jax.lax.cummax(jnp.where(starts, place, 0), axis=1)
    role = jnp.take_along_axis(targets, last_start, axis=1)
    of_rtt = role == vocab.RTT
    return of_rtt | (role == vocab.FAILED), of_rtt & (place - last_start == 2)


def _kernel(deviation: float) -> np.ndarray:
    """[256, 256]: row b is what is aimed at where b is true; the ends of the byte take what lies beyond."""
    distance = np.arange(_BYTES)[:, None] - np.arange(_BYTES)
    rows = np.exp(-0.5 * (distance / deviation) ** 2)
    return rows / rows.sum(axis=1, keepdims=True)
