"""The network of the method `relations`: it reads related results and predicts the RTT of the queried pair.

Each result becomes a vector, and the question another. In each of three rounds, the result vectors are
updated by the question's vector, and then read into it by attention. So results that agree with the rest can
gain weight, and others lose it. Then every result gives a logistic distribution of log RTT, around its value
shifted by the agreement of the ends. The answer is the mixture of these and of fixed logistic distributions
over the whole scale, with shares chosen by the network. It has about 0.1M parameters.

It is trained with JAX. Answers need NumPy alone: `forward` works with either.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from ping_llm.answer.methods.embedding_network import dense
from ping_llm.answer.methods.relation_kernels import (
    QUESTION,
    RESULT,
    SHIFT,
    SHIFT_MS,
    TYPICAL,
    VALUE,
    Features,
)
from ping_llm.compiled import kernel

#: Size of a vector, heads of the attention, rounds of reading.
WIDTH, HEADS, ROUNDS = 64, 8, 3
#: Centres of the fixed distributions, in log RTT, 0.2 apart, from 0.2 ms to 3 s; and their width, 0.4 of this
#: step.
CENTRES = np.linspace(-1.5, 8.0, 48).astype(np.float32)
_FIXED_WIDTH = 0.4 * float(CENTRES[1] - CENTRES[0])
#: Limits of the widths of the other distributions, in log RTT, as exponents of e.
_NARROWEST, _WIDEST = -6.0, 1.5
#: Least share of a distribution that is included in a curve.
_LEAST_SHARE = 1e-5

#: Learning rate, weight decay and warm-up steps of AdamW.
_RATE, _DECAY, _WARM_UP = 2e-3, 0.02, 100
#: Added to each probability in the loss, so that no single result dominates a step.
_LEAST = 1e-5

Weights = dict[str, np.ndarray]


def initial(random: np.random.Generator) -> Weights:
    """Make random weights."""

    def normal(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return random.normal(0, scale * rows**-0.5, (rows, columns)).astype(np.float32)

    bias = np.zeros(WIDTH, np.float32)
    weights = {
        "result": normal(RESULT, WIDTH), "result bias": bias, "result out": normal(WIDTH, WIDTH),
        "question": normal(QUESTION, WIDTH), "question bias": bias,
        "said": normal(WIDTH, WIDTH), "said by question": normal(WIDTH, WIDTH), "said bias": bias,
        "said out": normal(WIDTH, 5, 0.2),
        "said out bias": np.array([0, 0, 0, 0, -1.5], np.float32),
        "fixed": normal(WIDTH, WIDTH), "fixed bias": bias, "fixed out": normal(WIDTH, len(CENTRES), 0.2),
    }  # fmt: skip
    for number in range(ROUNDS):
        weights |= {
            f"{number} change": normal(WIDTH, WIDTH), f"{number} change by question": normal(WIDTH, WIDTH),
            f"{number} change bias": bias, f"{number} change out": normal(WIDTH, WIDTH, 0.5),
            f"{number} attend": normal(WIDTH, HEADS, 0.8), f"{number} read": normal(WIDTH, WIDTH),
            f"{number} learn": normal(2 * WIDTH, WIDTH), f"{number} learn bias": bias,
            f"{number} learn out": normal(WIDTH, WIDTH, 0.5),
        }  # fmt: skip
    return weights


def check(weights: Weights) -> None:
    """Refuse stored weights that have other shapes or are not finite."""
    wanted = initial(np.random.default_rng(0))
    if {name: part.shape for name, part in weights.items()} != {k: part.shape for k, part in wanted.items()}:
        raise ValueError("the weights of the relations do not have the right shapes")
    if not all(part.dtype == np.float32 and np.isfinite(part).all() for part in weights.values()):
        raise ValueError("the weights of the relations must be finite float32 numbers")


def forward(
    xp: Any, matmul: Callable[..., Any], weights: Any, results: Any, known: Any, question: Any
) -> tuple[Any, Any]:
    """Return the output for each result, [n, SHOWN, 5], and logits of the fixed distributions, [n, CENTRES].

    The output for a result is a logit, the factors of SHIFT and SHIFT_MS, a further shift, and a log width.

    Args:
      xp: numpy or jax.numpy; `matmul`: product of two matrices.
    """
    count, most, _ = results.shape

    def each(values: Any, name: str) -> Any:
        return matmul(values.reshape(count * most, -1), weights[name]).reshape(count, most, -1)

    told = each(_silu(xp, each(results, "result") + weights["result bias"]), "result out")
    own = matmul(question, weights["question"]) + weights["question bias"]
    for number in range(ROUNDS):
        asked = _normal(xp, own)
        by_question = (
            matmul(asked, weights[f"{number} change by question"]) + weights[f"{number} change bias"]
        )
        change = each(_normal(xp, told), f"{number} change") + by_question[:, None]
        told = told + each(_silu(xp, change), f"{number} change out")
        said = _normal(xp, told)
        near = xp.where(known[..., None], each(said, f"{number} attend"), -1e9)
        top = xp.maximum(near.max(axis=1, keepdims=True), 0.0)
        share = xp.exp(near - top) * known[..., None]
        # An additional empty place of weight exp(0), so that the shares may sum to less than 1.
        share = share / (share.sum(axis=1, keepdims=True) + xp.exp(-top))
        read = each(said, f"{number} read").reshape(count, most, HEADS, WIDTH // HEADS)
        pooled = (share[..., None] * read).sum(axis=1).reshape(count, WIDTH)
        learned = matmul(xp.concatenate([pooled, asked], -1), weights[f"{number} learn"])
        own = own + matmul(
            _silu(xp, learned + weights[f"{number} learn bias"]), weights[f"{number} learn out"]
        )
    asked = _normal(xp, own)
    by_question = matmul(asked, weights["said by question"]) + weights["said bias"]
    said = _silu(xp, each(_normal(xp, told), "said") + by_question[:, None])
    fixed = _silu(xp, matmul(asked, weights["fixed"]) + weights["fixed bias"])
    return each(said, "said out") + weights["said out bias"], matmul(fixed, weights["fixed out"])


def mixture(
    xp: Any, matmul: Callable[..., Any], weights: Any, results: Any, known: Any, question: Any
) -> tuple[Any, Any, Any]:
    """Return shares, centres and widths of logistic distributions of log RTT, [n, SHOWN + CENTRES] each."""
    said, fixed = forward(xp, matmul, weights, results, known, question)
    moved = results[..., SHIFT] * said[..., 1] + results[..., SHIFT_MS] * said[..., 2] + said[..., 3]
    centre = results[..., VALUE] + TYPICAL + moved
    width = xp.exp(xp.clip(said[..., 4], _NARROWEST, _WIDEST))
    logits = xp.concatenate([xp.where(known, said[..., 0], -1e9), fixed], -1)
    shares = xp.exp(logits - logits.max(axis=1, keepdims=True))
    return (
        shares / shares.sum(axis=1, keepdims=True),
        xp.concatenate([centre, xp.broadcast_to(CENTRES, fixed.shape)], -1),
        xp.concatenate([width, xp.broadcast_to(np.float32(_FIXED_WIDTH), fixed.shape)], -1),
    )


def _silu(xp: Any, x: Any) -> Any:
    return x * (0.5 + 0.5 * xp.tanh(0.5 * x))


def _normal(xp: Any, x: Any) -> Any:
    return x / xp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def curves(weights: Weights, shown: Features, logs: np.ndarray) -> np.ndarray:
    """P(log RTT below each of `logs`), float64 [n, logs]; a question's values do not depend on the others."""
    shares, centres, widths = mixture(np, dense, weights, *shown)
    out: np.ndarray = _curves(*(part.astype(np.float64) for part in (shares, centres, widths)), logs)
    return out


@kernel
def _curves(shares: np.ndarray, centres: np.ndarray, widths: np.ndarray, logs: np.ndarray) -> np.ndarray:
    out = np.zeros((len(shares), len(logs)))
    for i in range(len(shares)):
        total = 0.0
        for j in range(shares.shape[1]):
            share, centre, width = shares[i, j], centres[i, j], widths[i, j]
            if share < _LEAST_SHARE:
                continue
            total += share
            # Beyond 16 widths the distribution is 0 or 1 to seven digits.
            first = np.searchsorted(logs, centre - 16 * width)
            last = np.searchsorted(logs, centre + 16 * width)
            out[i, first:last] += share / (1.0 + np.exp((centre - logs[first:last]) / width))
            out[i, last:] += share
        out[i] /= total
    return out


Batch = tuple[Features, np.ndarray, np.ndarray]


def train(
    weights: Weights, batches: Iterator[Batch], steps: int, rate: float = _RATE,
    tell: Callable[[int, float], None] | None = None,
) -> Weights:  # fmt: skip
    """Train for `steps` steps; returns the weights.

    Args:
      batches: questions, and both ends of each result's millisecond bin, in log RTT.
      tell: callback that gets the number of each step and its mean bits.
    """
    import jax

    step, made = _step(), jax.tree.map(jax.numpy.asarray, weights)
    state = (jax.tree.map(jax.numpy.zeros_like, made), jax.tree.map(jax.numpy.zeros_like, made))
    for number in range(steps):
        made, state, nats = step(made, state, *next(batches), number, steps, rate)
        if tell:
            tell(number, float(nats) / np.log(2))
    return {name: np.array(part) for name, part in made.items()}


@cache
def _step() -> Callable[..., Any]:
    """Step of AdamW on the bits of the results. The rate rises for 100 steps, and falls after 40 % of all."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, shown: Features, low: Any, high: Any) -> Any:
        shares, centres, widths = mixture(jnp, jnp.matmul, weights, *shown)
        below = [0.5 + 0.5 * jnp.tanh(0.5 * (end[:, None] - centres) / widths) for end in (low, high)]
        return -jnp.log((shares * (below[1] - below[0])).sum(axis=1) + _LEAST).mean()

    def step(
        weights: Any, state: Any, shown: Features, low: Any, high: Any, at: Any, steps: Any, rate: Any
    ) -> Any:
        nats, gradient = jax.value_and_grad(loss)(weights, shown, low, high)
        size = jnp.sqrt(sum((part * part).sum() for part in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda part: part * jnp.minimum(1.0, 2.0 / size), gradient)
        left = (steps - at) / steps
        rate = rate * jnp.minimum(1.0, (at + 1) / _WARM_UP) * jnp.minimum(1.0, left / 0.6)
        mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state[0], gradient)
        square = jax.tree.map(lambda old, new: 0.98 * old + 0.02 * new * new, state[1], gradient)

        def moved(part: Any, mean: Any, square: Any) -> Any:
            move = (mean / (1 - 0.9 ** (at + 1))) / (jnp.sqrt(square / (1 - 0.98 ** (at + 1))) + 1e-8)
            return part - rate * (move + _DECAY * part)

        return jax.tree.map(moved, weights, mean, square), (mean, square), nats

    return jax.jit(step)
