"""The loss of tokens: bits by field, weights of results, label smoothing and distillation of RTTs.

By field: fields are in random order, so a role token carries two choices: which field comes next, and, within
the field, its kind (IPv4 or IPv6, RTT or FAILED, which form of time). By the chain rule, the first counts
as `order` and the second, with all bytes that follow, as the field. EXTRA begins two fields: the byte after
it, which determines the field, counts as `order` too. The parts sum to the whole loss.

Weights: an IPv4 measurement has about 14 tokens, of which three are the result. `network_rtt_loss_weight`
increases the weight of those. Label smoothing: `network_rtt_smoothing` replaces the target of the second byte
of an RTT by a Gaussian over its neighbours, in steps of the encoding, because cross entropy ignores the order
of bytes: an error of 0.1 ms would cost as much as one of 4 ms. After Imani and White, "Improving regression
performance with distributional losses", ICML 2018. Distillation: at the bytes of an RTT, the probabilities
of a teacher replace the target (`teacher.py`). All three change only the gradient. The recorded loss is that
of the true tokens, so that runs can be compared.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ping_llm.tokens import vocab
from ping_llm.tokens.vocab import Field

_FIELDS = {
    "source": Field.SRC,
    "destination": Field.DST,
    "rtt": Field.RESULT,
    "time": Field.TIME,
    "size": Field.SIZE,
    "errors": Field.ERRORS,
    "msm_id": Field.MSM_ID,
    "probe_id": Field.PROBE_ID,
    "throughput": Field.THROUGHPUT,
}
NAMES = ("order", *_FIELDS)
ROLES = vocab.BYTE0


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Field of each role token, and a mask of the role tokens that are alternatives of each other."""
    field = np.full(ROLES, NAMES.index("order"), np.int32)  # MEASUREMENT, and roles that are never targets
    alternatives = np.eye(ROLES, dtype=bool)
    for name, stated in _FIELDS.items():
        members = vocab.ROLES[stated]
        field[list(members)] = NAMES.index(name)
        alternatives[np.ix_(members, members)] = True
    return field, alternatives


_FIELD, _ALTERNATIVES = _tables()
_FIELD_OF_EXTRA = np.full(256, NAMES.index("order"), np.int32)  # by the byte after it
for _byte, _of_extra in vocab.FIELD_OF_EXTRA.items():
    _FIELD_OF_EXTRA[_byte] = 1 + list(_FIELDS.values()).index(_of_extra)


def sums(logits: jax.Array, nats: jax.Array, targets: jax.Array, counted: jax.Array) -> jax.Array:
    """Bits of each of NAMES, then the number of measurements, summed over a batch.

    Args:
        logits: [batch, length, vocabulary], of which only the role tokens' are used.
        nats: [batch, length], the cross entropy of each target.
        targets: [batch, length] token ids.
        counted: [batch, length], mask of the targets that count.
    """
    starts = vocab.starts_field(targets)
    role = jnp.where(starts, targets, 0)
    last_start = _last_start(starts)
    begun = jnp.take_along_axis(role, last_start, axis=1)
    place = jnp.arange(targets.shape[1]) - last_start
    which = jnp.take_along_axis(targets, jnp.minimum(last_start + 1, targets.shape[1] - 1), axis=1)
    field = jnp.where(
        begun == vocab.EXTRA,
        jnp.asarray(_FIELD_OF_EXTRA)[jnp.clip(which - vocab.BYTE0, 0)],
        jnp.asarray(_FIELD)[begun],
    )
    field = jnp.where((begun == vocab.EXTRA) & (place == 1), NAMES.index("order"), field)

    of_roles = logits[..., :ROLES].astype(jnp.float32)
    alternatives = jnp.asarray(_ALTERNATIVES)[role]
    group = jax.nn.logsumexp(jnp.where(alternatives, of_roles, -jnp.inf), axis=-1)
    target_logit = jnp.sum(jnp.where(jax.nn.one_hot(role, ROLES, dtype=bool), of_roles, 0), axis=-1)
    choosing = jnp.where(starts, nats + target_logit - group, 0)

    bits = jnp.where(counted, nats - choosing, 0) / jnp.log(2.0)
    per_field = [jnp.sum(jnp.where(field == index, bits, 0)) for index in range(len(NAMES))]
    per_field[0] += jnp.sum(jnp.where(counted, choosing, 0)) / jnp.log(2.0)
    measurements = jnp.sum(counted & (targets == vocab.MEASUREMENT))
    return jnp.stack([*per_field, measurements.astype(jnp.float32)])


def bits_per_measurement(summed: np.ndarray) -> dict[str, float]:
    """Bits per measurement, in total and by field, from the sums of one or many batches."""
    measurements = max(float(summed[-1]), 1.0)
    bits = {name: float(value) / measurements for name, value in zip(NAMES, summed[:-1], strict=True)}
    return {"total": sum(bits.values()), **bits}


_BYTES = 256


#: Name of a teacher's probabilities among the arrays of a batch: [batch, length, vocabulary].
TAUGHT = "taught"


def of_config(config: Any, logits: jax.Array, nats: jax.Array, data: dict[str, jax.Array]) -> jax.Array:
    weight, smoothing = config.network_rtt_loss_weight, config.network_rtt_smoothing
    taught = data.get(TAUGHT)
    if weight == 1.0 and smoothing <= 0.0 and taught is None:
        return nats
    return emphasised(logits, nats, data["targets"], weight, smoothing, taught, config.network_teacher_weight)


def emphasised(logits: jax.Array, nats: jax.Array, *options: Any) -> jax.Array:
    """[batch, length]: the values of `nats`, with the gradient of `objective` for the same arguments."""
    learned = objective(logits, nats, *options)
    return learned + jax.lax.stop_gradient(nats - learned)


def objective(
    logits: jax.Array,
    nats: jax.Array,
    targets: jax.Array,
    weight: float,
    smoothing: float,
    taught: jax.Array | None = None,
    taught_share: float = 1.0,
) -> jax.Array:
    """[batch, length]: the weighted, smoothed and distilled loss of each target, in nats.

    Args:
        logits: [batch, length, vocabulary].
        nats: [batch, length], the cross entropy of each target.
        targets: [batch, length] token ids.
        weight: weight of the tokens of a result, where all others have 1; scaled to a mean of 1 per batch.
        smoothing: standard deviation in steps of the second byte; 0 for none.
        taught: [batch, length, vocabulary], a teacher's probabilities, learned at the bytes of RTTs.
        taught_share: share of these probabilities in the target at those bytes.
    """
    of_result, rtt_byte = _places(targets)
    smoothed = nats
    if smoothing:
        neighbours = jnp.asarray(_kernel(smoothing), logits.dtype)[jnp.clip(targets - vocab.BYTE0, 0)]
        expected = jnp.sum(neighbours * logits[..., vocab.BYTE0 :], axis=-1)
        smoothed = jnp.where(rtt_byte == 2, jax.nn.logsumexp(logits, axis=-1) - expected, smoothed)
    if taught is not None:
        logits = logits.astype(jnp.float32)
        distilled = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(taught * logits, axis=-1)
        mixed = taught_share * distilled + (1 - taught_share) * smoothed
        smoothed = jnp.where(rtt_byte > 0, mixed, smoothed)
    weights = jnp.where(of_result, weight, 1.0)
    counted = targets != vocab.PAD
    return smoothed * weights * jnp.sum(counted) / jnp.maximum(jnp.sum(weights * counted), 1.0)


def _places(targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mask of the targets that belong to a result, and their byte number in an RTT: 1, 2 …, or 0 for none."""
    last_start = _last_start(vocab.starts_field(targets))
    role = jnp.take_along_axis(targets, last_start, axis=1)
    of_rtt = role == vocab.RTT
    place = jnp.arange(targets.shape[1]) - last_start
    return of_rtt | (role == vocab.FAILED), jnp.where(of_rtt, place, 0)


def _last_start(starts: jax.Array) -> jax.Array:
    """[batch, length]: position of the role to which each token belongs."""
    return jax.lax.cummax(jnp.where(starts, jnp.arange(starts.shape[1]), 0), axis=1)


def _kernel(deviation: float) -> np.ndarray:
    """[256, 256]: row b is the smoothed target of byte b, normalised at both ends of the range."""
    distance = np.arange(_BYTES)[:, None] - np.arange(_BYTES)
    rows = np.exp(-0.5 * (distance / deviation) ** 2)
    return rows / rows.sum(axis=1, keepdims=True)
