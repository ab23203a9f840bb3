"""Where the bits go: the loss of a batch, split over source, destination, rtt, time and order.

Fields stand in random order, so a role token says two things: which field comes next, and, within the
field, its kind (IPv4 or IPv6, RTT or FAILED, which form of time). By the chain rule, the first is charged to
`order` and the second, with all bytes that follow, to the field. The parts sum to the whole loss.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ping_llm.tokens import vocab

NAMES = ("order", "source", "destination", "rtt", "time", "other")
ROLES = vocab.BYTE0

_MEMBERS = {
    "source": (vocab.SRC_IPV4, vocab.SRC_IPV6),
    "destination": (vocab.DST_IPV4, vocab.DST_IPV6),
    "rtt": (vocab.RTT, vocab.FAILED),
    "time": (vocab.TIME_ABS, vocab.TIME_DELTA1, vocab.TIME_DELTA4),
}


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Field of each role token, and which role tokens are alternatives of each other."""
    field = np.full(ROLES, NAMES.index("other"), np.int32)
    alternatives = np.eye(ROLES, dtype=bool)
    for name, members in _MEMBERS.items():
        field[list(members)] = NAMES.index(name)
        alternatives[np.ix_(members, members)] = True
    field[vocab.MEASUREMENT] = NAMES.index("order")
    return field, alternatives


_FIELD, _ALTERNATIVES = _tables()


def sums(logits: jax.Array, nats: jax.Array, targets: jax.Array, counted: jax.Array) -> jax.Array:
    """Bits of each of NAMES, then the number of measurements, summed over a batch.

    Args:
        logits: [batch, length, vocabulary], of which only the role tokens' are used.
        nats: [batch, length], the cross entropy of each target.
        targets: [batch, length] token ids.
        counted: [batch, length], which targets count.
    """
    # A prefix's end is a value of its address, not the beginning of a field.
    starts = (targets < ROLES) & (targets != vocab.PREFIX_END)
    role = jnp.where(starts, targets, 0)
    last_start = jax.lax.cummax(jnp.where(starts, jnp.arange(targets.shape[1]), 0), axis=1)
    field = jnp.asarray(_FIELD)[jnp.take_along_axis(role, last_start, axis=1)]

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
    """Bits a measurement costs, in all and by field, from the sums of one or many batches."""
    measurements = max(float(summed[-1]), 1.0)
    bits = {name: float(value) / measurements for name, value in zip(NAMES, summed[:-1], strict=True)}
    return {"total": sum(bits.values()), **bits}
