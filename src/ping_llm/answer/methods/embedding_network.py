"""The network of the method `embeddings`: vectors of prefixes, attention over known pairs, bins of RTTs.

A question is about a source and a destination. Each is the sum of the learned vectors of its prefixes. In
addition, the network reads results of the source to other destinations (its row of the matrix of pairs) and
of other sources to the destination (its column). It reads them by attention, with weights that depend on the
ends of the question. It has about 0.1M parameters, and a vector of 24 numbers per prefix.

It is trained with JAX. Answers need NumPy alone: `forward` works with either.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ping_llm.compiled import COMPILED, kernel

#: Sizes of a vector, of the attention (heads, and numbers per head) and of the hidden layers, and number of
#: bins of log RTT.
VECTOR = 24
HEADS, HEAD = 4, 8
HIDDEN = 128
BINS = 80
#: Number of prefixes of an address that have a vector each.
LEVELS = 4

_ATTENDED = HEADS * HEAD
#: Numbers of a known result: its value, the mean of its other end, and their difference.
_VALUES = 3
_MEAN = _ATTENDED + _VALUES
_POOLED = _ATTENDED + HEADS * _VALUES + HEADS

#: Learning rate, weight decay, decay of the vectors and warm-up steps of AdamW. Vectors decay faster than the
#: rest: on new pairs in MENOG's training part, 1.0 gave 22.9 ms of CRPS and 4.0 23.1, against 24.8 without;
#: in that of the campaigns, 4.0 gave 10.5 against 11.4.
RATE = 3e-3
DECAY = 0.01
VECTOR_DECAY = 2.0
_WARM_UP = 100

Weights = dict[str, np.ndarray]


class Batch(NamedTuple):
    """A batch of questions.

    Attributes:
      source, destination: int32 [n, LEVELS], rows of the tables of vectors.
      row_end, column_end: int32 [n, k], numbers of the other ends of known results.
      row_value, column_value: float32 [n, k, 3].
      row_known, column_known: float32 [n, k], 1 where there is a result.
    """

    source: Any
    destination: Any
    row_end: Any
    row_value: Any
    row_known: Any
    column_end: Any
    column_value: Any
    column_known: Any


def initial(source_rows: int, destination_rows: int, random: np.random.Generator) -> Weights:
    """Make random weights.

    Args:
      source_rows, destination_rows: number of vectors in each table.
    """

    def normal(*shape: int, scale: float | None = None) -> np.ndarray:
        return random.normal(0, scale or shape[0] ** -0.5, shape).astype(np.float32)

    width = 6 * VECTOR + 2 * _MEAN + 2 * _POOLED + 2
    weights = {
        "sources": normal(source_rows, VECTOR, scale=0.1),
        "destinations": normal(destination_rows, VECTOR, scale=0.1),
        "source": normal(VECTOR + _MEAN, VECTOR),
        "destination": normal(VECTOR + _MEAN, VECTOR),
        "first": normal(width, HIDDEN), "first bias": np.zeros(HIDDEN, np.float32),
        "second": normal(HIDDEN, HIDDEN), "second bias": np.zeros(HIDDEN, np.float32),
        "bins": normal(HIDDEN, BINS, scale=0.01), "bins bias": np.zeros(BINS, np.float32),
    }  # fmt: skip
    for side in ("row", "column"):
        weights[f"{side} ends"] = normal(VECTOR, 3 * _ATTENDED)
        weights[f"{side} values"] = normal(_VALUES, _ATTENDED)
        weights[f"{side} asked"] = normal(4 * VECTOR, _ATTENDED)
    return weights


def check(weights: Weights, source_rows: int, destination_rows: int) -> None:
    """Refuse stored weights of other shapes."""
    wanted = initial(source_rows, destination_rows, np.random.default_rng(0))
    if {name: part.shape for name, part in weights.items()} != {k: part.shape for k, part in wanted.items()}:
        raise ValueError("the weights of the embeddings do not have the right shapes")


def projected(weights: Any, side: str, ends: Any, matmul: Callable[..., Any]) -> Any:
    """Key, value, and slope by the result, of each known end of a side's results, [ends, 3 · attended].

    Args:
      ends: int32 [ends, LEVELS], rows of the table of vectors.
    """
    table = weights["destinations" if side == "row" else "sources"]
    return matmul(table[ends].sum(axis=1), weights[f"{side} ends"])


def forward(xp: Any, matmul: Callable[..., Any], weights: Any, batch: Batch, row: Any, column: Any) -> Any:
    """Return the logits of the bins, [n, BINS].

    Args:
      xp: numpy or jax.numpy.
      row, column: `projected` of all known destinations and of all known sources.
    """
    source = weights["sources"][batch.source].sum(axis=1)
    destination = weights["destinations"][batch.destination].sum(axis=1)
    read_row = _read(xp, matmul, weights, "row", row[batch.row_end], batch.row_value, batch.row_known)
    read_column = _read(
        xp, matmul, weights, "column", column[batch.column_end], batch.column_value, batch.column_known
    )
    own_source = _silu(xp, matmul(xp.concatenate([source, read_row.mean], -1), weights["source"]))
    own_destination = _silu(
        xp, matmul(xp.concatenate([destination, read_column.mean], -1), weights["destination"])
    )
    asked = xp.concatenate([own_source, own_destination, source, destination], -1)
    counts = [xp.log1p(known.sum(axis=1, keepdims=True)) for known in (batch.row_known, batch.column_known)]
    hidden = xp.concatenate(
        [
            source, destination, source * destination, own_source, own_destination,
            own_source * own_destination, read_row.mean, read_column.mean,
            read_row.pooled(matmul(asked, weights["row asked"])),
            read_column.pooled(matmul(asked, weights["column asked"])), *counts,
        ],
        -1,
    )  # fmt: skip
    hidden = _silu(xp, matmul(hidden, weights["first"]) + weights["first bias"])
    hidden = hidden + _silu(xp, matmul(hidden, weights["second"]) + weights["second bias"])
    return matmul(hidden, weights["bins"]) + weights["bins bias"]


class _Read(NamedTuple):
    mean: Any
    pooled: Callable[[Any], Any]


def _read(
    xp: Any, matmul: Callable[..., Any], weights: Any, side: str, ends: Any, values: Any, known: Any
) -> _Read:
    """Read known results: their mean, and a function that pools them by attention to the question."""
    count, most = known.shape
    keys = ends[..., :_ATTENDED].reshape(count, most, HEADS, HEAD)
    own, slope = ends[..., _ATTENDED : 2 * _ATTENDED], ends[..., 2 * _ATTENDED :]
    told = matmul(values.reshape(count * most, _VALUES), weights[f"{side} values"])
    read = _silu(xp, own + slope * values[..., :1] + told.reshape(count, most, _ATTENDED))
    total = known.sum(axis=1, keepdims=True) + 0.5
    every = xp.concatenate([read, values], -1) * known[..., None]

    def pooled(asked: Any) -> Any:
        near = (asked.reshape(count, 1, HEADS, HEAD) * keys).sum(axis=-1) / HEAD**0.5
        near = xp.where(known[..., None] > 0, near, -1e9)
        top = xp.maximum(near.max(axis=1, keepdims=True), 0.0)
        weight = xp.exp(near - top) * known[..., None]
        # An additional empty place of weight exp(0), so that the weights may sum to less than 1.
        weight = weight / (weight.sum(axis=1, keepdims=True) + xp.exp(-top))
        by_head = read.reshape(count, most, HEADS, HEAD) * weight[..., None]
        plain = values[:, :, None, :] * weight[..., None]
        parts = [by_head.sum(axis=1).reshape(count, -1), plain.sum(axis=1).reshape(count, -1)]
        return xp.concatenate([*parts, weight.sum(axis=1)], -1)

    return _Read(every.sum(axis=1) / total, pooled)


def _silu(xp: Any, x: Any) -> Any:
    return x * (0.5 + 0.5 * xp.tanh(0.5 * x))


def dense(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return x @ weights, where the result of a row does not depend on other rows; BLAS does not ensure this.

    On a small device, where nothing is compiled, BLAS is used: questions come one at a time there.
    """
    out: np.ndarray = _dense(x, weights) if COMPILED else x @ weights
    return out


@kernel
def _dense(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    out = np.zeros((len(x), weights.shape[1]), np.float32)
    for i in range(len(x)):
        for k in range(weights.shape[0]):
            value = x[i, k]
            for j in range(weights.shape[1]):
                out[i, j] += value * weights[k, j]
    return out


def answer(weights: Weights, batch: Batch, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return the logits, computed by NumPy, float32 [n, BINS]."""
    out: np.ndarray = forward(np, dense, weights, batch, row, column)
    return out


def train(
    weights: Weights,
    sources: np.ndarray,
    destinations: np.ndarray,
    batches: Iterator[tuple[Batch, np.ndarray]],
    steps: int,
) -> Weights:
    """Train for `steps` steps; returns the weights.

    Args:
      sources, destinations: int32 [ends, LEVELS], the prefixes of all known ends.
      batches: questions, and the target shares of the bins, [n, BINS].
    """
    import jax

    state = jax.tree.map(jax.numpy.zeros_like, (weights, weights))
    step, made = _step(), jax.tree.map(jax.numpy.asarray, weights)
    for number in range(steps):
        batch, right = next(batches)
        made, state = step(made, state, batch, right, sources, destinations, number, steps)
    return {name: np.array(part) for name, part in made.items()}


@cache
def _step() -> Callable[..., Any]:
    """Step of AdamW on the cross entropy. The rate rises for 100 steps, and falls in the second half."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, batch: Batch, right: Any, sources: Any, destinations: Any) -> Any:
        row = projected(weights, "row", destinations, jnp.matmul)
        column = projected(weights, "column", sources, jnp.matmul)
        logits = forward(jnp, jnp.matmul, weights, batch, row, column)
        return -(right * jax.nn.log_softmax(logits)).sum(axis=-1).mean()

    def step(
        weights: Any,
        state: Any,
        batch: Batch,
        right: Any,
        sources: Any,
        destinations: Any,
        at: Any,
        steps: Any,
    ) -> Any:
        gradient = jax.grad(loss)(weights, batch, right, sources, destinations)
        rate = RATE * jnp.minimum(1.0, (at + 1) / _WARM_UP) * jnp.minimum(1.0, 2 * (steps - at) / steps)
        mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state[0], gradient)
        square = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new * new, state[1], gradient)
        out = {}
        for name, part in weights.items():
            move = (mean[name] / (1 - 0.9 ** (at + 1))) / (
                jnp.sqrt(square[name] / (1 - 0.99 ** (at + 1))) + 1e-8
            )
            decay = VECTOR_DECAY if name in ("sources", "destinations") else DECAY
            out[name] = part - rate * (move + decay * part)
        return out, (mean, square)

    return jax.jit(step)
