"""The Transformer in plain JAX: from weights to log-probabilities and caches, compiled once per shape.

Layers are scanned: compiling, for which the first question waits, takes a quarter to a third less time than
with unrolled layers (4 layers). `engine.py` describes the uses of the functions.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ping_llm.errors import PingError
from ping_llm.model.checkpoint import Tensors
from ping_llm.model.config import ModelConfig

Params = dict[str, Any]
#: Keys, values, and log-probabilities of the next token.
Cached = tuple[jax.Array, jax.Array, jax.Array]
#: Keys and values of one layer.
Pair = tuple[jax.Array, jax.Array]

_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def prepare(config: ModelConfig, tensors: Tensors) -> Params:
    """Weights as [in, out]; query, key and value (gate and up) are joined, for fewer, larger products."""

    def matrix(*names: str) -> jax.Array:
        return jnp.asarray(np.concatenate([tensors[f"{name}.weight"] for name in names]).T.astype(np.float32))

    try:
        layers = [
            {
                "attention_norm": jnp.asarray(tensors[f"{at}.input_layernorm.weight"], jnp.float32),
                "qkv": matrix(*(f"{at}.self_attn.{name}_proj" for name in "qkv")),
                "out": matrix(f"{at}.self_attn.o_proj"),
                "mlp_norm": jnp.asarray(tensors[f"{at}.post_attention_layernorm.weight"], jnp.float32),
                "gate_up": matrix(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
                "down": matrix(f"{at}.mlp.down_proj"),
            }
            for at in (f"model.layers.{index}" for index in range(config.layers))
        ]
        return {
            "embedding": jnp.asarray(tensors["model.embed_tokens.weight"], jnp.float32),
            "layers": jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers),
            "norm": jnp.asarray(tensors["model.norm.weight"], jnp.float32),
            "head": matrix("lm_head"),
        }
    except KeyError as missing:
        raise PingError(f"the weights lack {missing}: export the run again") from None


def _layer(params: Params, index: Any) -> Params:
    """The weights of one layer. Indexing inside a scan copies one layer; slicing before it copies all."""
    layer: Params = jax.tree.map(
        lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), params["layers"]
    )
    return layer


def _norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def _rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary positions over the halves of each head: x [..., length, heads, dim], positions [..., length]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _project(
    config: ModelConfig, layer: Params, x: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries grouped by key head [..., kv, group, dim], keys and values [..., kv, dim]."""
    heads, kv, dim = config.heads, config.kv_heads, config.head_dim
    qkv = _einsum("...e,ef->...f", _norm(x, layer["attention_norm"], config.norm_epsilon), layer["qkv"])
    qkv = qkv.reshape(*x.shape[:-1], heads + 2 * kv, dim)
    query, key, value = jnp.split(qkv, (heads, heads + kv), axis=-2)
    query = _rotate(query, positions, config.rope_theta) / np.sqrt(dim).astype(np.float32)
    return (
        query.reshape(*x.shape[:-1], kv, heads // kv, dim),
        _rotate(key, positions, config.rope_theta),
        value,
    )


def _finish(config: ModelConfig, layer: Params, x: jax.Array, attended: jax.Array) -> jax.Array:
    """Apply output projection, residuals and SwiGLU."""
    x = x + _einsum("...f,fe->...e", attended.reshape(*x.shape[:-1], -1), layer["out"])
    hidden = _einsum("...e,ef->...f", _norm(x, layer["mlp_norm"], config.norm_epsilon), layer["gate_up"])
    gate, up = jnp.split(hidden, 2, axis=-1)
    return x + _einsum("...f,fe->...e", jax.nn.silu(gate) * up, layer["down"])


def _head(config: ModelConfig, params: Params, x: jax.Array) -> jax.Array:
    return _einsum("...e,ev->...v", _norm(x, params["norm"], config.norm_epsilon), params["head"])


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Attend with query [b,q,kv,g,d], key and value [b,k,kv,d], mask [b or 1,q,k].

    The heads of a group are stacked first: one product instead of several narrow ones takes a third less
    time.
    """
    batch, queries, kv, group, dim = query.shape
    rows = query.transpose(0, 2, 3, 1, 4).reshape(batch, kv, group * queries, dim)
    scores = _einsum("bhrd,bkhd->bhrk", rows, key).reshape(batch, kv, group, queries, -1)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf), axis=-1)
    attended = _einsum("bhrk,bkhd->bhrd", weights.reshape(*rows.shape[:3], -1), value)
    return attended.reshape(batch, kv, group, queries, dim).transpose(0, 3, 1, 2, 4)


def _attend_back(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention, in parts of the queries, so that keys after a part are skipped."""
    length = query.shape[1]
    part = max(128, length // 8) if length % 128 == 0 and length >= 256 else length
    mask = jnp.tril(jnp.ones((1, length, length), bool))
    ends = range(part, length + 1, part)
    return jnp.concatenate(
        [
            _attend(query[:, end - part : end], key[:, :end], value[:, :end], mask[:, end - part : end, :end])
            for end in ends
        ],
        axis=1,
    )


def _packed(
    config: ModelConfig, params: Params, inputs: jax.Array, positions: jax.Array, segmentation: jax.Array
) -> jax.Array:
    length = inputs.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    # A padded position attends to the other padding, so that no row of the softmax is empty.
    mask = causal & (segmentation[:, :, None] == segmentation[:, None, :])

    def one(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        query, key, value = _project(config, layer, x, positions)
        return _finish(config, layer, x, _attend(query, key, value, mask)), None

    x, _ = jax.lax.scan(one, params["embedding"][inputs], params["layers"])
    return _head(config, params, x)


@partial(jax.jit, static_argnums=0)
def packed_logits(
    config: ModelConfig, params: Params, inputs: jax.Array, positions: jax.Array, segmentation: jax.Array
) -> jax.Array:
    return _packed(config, params, inputs, positions, segmentation)


@partial(jax.jit, static_argnums=0)
def target_log_probabilities(
    config: ModelConfig,
    params: Params,
    inputs: jax.Array,
    targets: jax.Array,
    positions: jax.Array,
    segmentation: jax.Array,
) -> jax.Array:
    logits = _packed(config, params, inputs, positions, segmentation)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.where(segmentation != 0, chosen - jax.nn.logsumexp(logits, axis=-1), 0.0)


@partial(jax.jit, static_argnums=(0, 4))
def prefill(config: ModelConfig, params: Params, inputs: jax.Array, lengths: jax.Array, tail: int) -> Cached:
    length = inputs.shape[1]
    positions = jnp.arange(length)[None]

    def one(x: jax.Array, index: jax.Array) -> tuple[jax.Array, Pair]:
        layer = _layer(params, index)
        query, key, value = _project(config, layer, x, positions)
        # Padding is at the end, where no real position attends to it.
        return _finish(config, layer, x, _attend_back(query, key, value)), (key, value)

    x, (keys, values) = jax.lax.scan(one, params["embedding"][inputs], jnp.arange(config.layers - 1))
    # All keys and values of the last layer are kept, but its output is needed for the tail only.
    layer = _layer(params, config.layers - 1)
    query, key, value = _project(config, layer, x, positions)
    last = lengths[:, None] - tail + jnp.arange(tail)
    x = jnp.take_along_axis(x, last[..., None], axis=1)
    query = jnp.take_along_axis(query, last[..., None, None, None], axis=1)
    x = _finish(config, layer, x, _attend(query, key, value, jnp.arange(length) <= last[..., None]))
    keys, values = jnp.concatenate([keys, key[None]]), jnp.concatenate([values, value[None]])
    return keys, values, jax.nn.log_softmax(_head(config, params, x), axis=-1)


@partial(jax.jit, static_argnums=(0, 7, 8))
def extend(
    config: ModelConfig,
    params: Params,
    keys: jax.Array,
    values: jax.Array,
    start: jax.Array,
    inputs: jax.Array,
    lengths: jax.Array,
    tail: int,
    length: int,
) -> Cached:
    rows, depth = inputs.shape
    positions = start + jnp.arange(depth)[None]
    mask = jnp.arange(length) <= positions[..., None]
    missing = ((0, 0), (0, length - keys.shape[2]), (0, 0), (0, 0))

    def widened(old: jax.Array, new: jax.Array) -> jax.Array:
        old = jnp.broadcast_to(jnp.pad(old[:1], missing), (rows, length, *old.shape[2:]))
        return jax.lax.dynamic_update_slice(old, new, (0, start, 0, 0))

    def one(x: jax.Array, at: tuple[Params, jax.Array, jax.Array]) -> tuple[jax.Array, Pair]:
        layer, old_key, old_value = at
        query, key, value = _project(config, layer, x, positions)
        key, value = widened(old_key, key), widened(old_value, value)
        return _finish(config, layer, x, _attend(query, key, value, mask)), (key, value)

    x, (keys, values) = jax.lax.scan(one, params["embedding"][inputs], (params["layers"], keys, values))
    last = lengths[:, None] - tail + jnp.arange(tail)
    x = jnp.take_along_axis(x, last[..., None], axis=1)
    return keys, values, jax.nn.log_softmax(_head(config, params, x), axis=-1)


@partial(jax.jit, static_argnums=0)
def branch(
    config: ModelConfig,
    params: Params,
    keys: jax.Array,
    values: jax.Array,
    lengths: jax.Array,
    suffixes: jax.Array,
) -> jax.Array:
    rows, depth = suffixes.shape[0], suffixes.shape[2]
    kv, dim = config.kv_heads, config.head_dim
    positions = lengths[:, None, None] + jnp.arange(depth)
    seen = jnp.arange(keys.shape[2]) < lengths[:, None]
    causal = jnp.tril(jnp.ones((depth, depth), bool))

    def one(x: jax.Array, at: tuple[Params, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        layer, prefix_key, prefix_value = at
        query, key, value = _project(config, layer, x, positions)
        heads = query.transpose(0, 3, 4, 1, 2, 5)  # row, kv, group, way, depth, dim
        shared = _einsum("bhrd,bkhd->bhrk", heads.reshape(rows, kv, -1, dim), prefix_key)
        shared = jnp.where(seen[:, None, None], shared, -jnp.inf).reshape(*heads.shape[:-1], -1)
        own = jnp.where(causal, _einsum("bhgwqd,bwkhd->bhgwqk", heads, key), -jnp.inf)
        # One softmax over both parts, without joining them.
        largest = jnp.maximum(shared.max(axis=-1), own.max(axis=-1))[..., None]
        shared, own = jnp.exp(shared - largest), jnp.exp(own - largest)
        total = (shared.sum(axis=-1) + own.sum(axis=-1))[..., None]
        attended = _einsum("bhrk,bkhd->bhrd", shared.reshape(rows, kv, -1, shared.shape[-1]), prefix_value)
        attended = attended.reshape(heads.shape) + _einsum("bhgwqk,bwkhd->bhgwqd", own, value)
        attended = (attended / total).transpose(0, 3, 4, 1, 2, 5)
        return _finish(config, layer, x, attended), None

    x, _ = jax.lax.scan(one, params["embedding"][suffixes], (params["layers"], keys, values))
    return jax.nn.log_softmax(_head(config, params, x), axis=-1)


@partial(jax.jit, static_argnums=(2, 3))
def widen(keys: jax.Array, values: jax.Array, copies: int, length: int) -> tuple[jax.Array, jax.Array]:
    def widen(array: jax.Array) -> jax.Array:
        array = jnp.repeat(array[:, :1, :length], copies, axis=1)
        return jnp.pad(array, ((0, 0), (0, 0), (0, length - array.shape[2]), (0, 0), (0, 0)))

    return widen(keys), widen(values)


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def step(
    config: ModelConfig,
    params: Params,
    keys: jax.Array,
    values: jax.Array,
    position: jax.Array,
    tokens: jax.Array,
) -> Cached:
    seen = (jnp.arange(keys.shape[2]) <= position)[None, None]
    positions = jnp.full((tokens.shape[0], 1), position)
    x = params["embedding"][tokens][:, None]
    # Unrolled: a scan would copy the whole cache at every step instead of writing one position of it.
    for index in range(config.layers):
        layer = _layer(params, index)
        query, key, value = _project(config, layer, x, positions)
        start = (index, 0, position, 0, 0)
        keys = jax.lax.dynamic_update_slice(keys, key[None], start)
        values = jax.lax.dynamic_update_slice(values, value[None], start)
        x = _finish(config, layer, x, _attend(query, keys[index], values[index], seen))
    return keys, values, jax.nn.log_softmax(_head(config, params, x[:, 0]), axis=-1)
