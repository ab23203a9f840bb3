"""Logits in plain JAX, with a KV cache whose prefix many continuations share.

Four ways in, each compiled once a shape (sequences are padded to a few lengths, so shapes are few):
  log_probabilities   whole packed batches, segment-aware: scoring and hold-out bits
  prefill + branch    one context, many short continuations of it: exact distributions
  prefill + extend    one context, many questions about it: its cache is copied, not computed again
  prefill + step      one token at a time: sampling

A branch attends to the one shared prefix and to its own few tokens, so 256 continuations of a context of
400 tokens cost 256 tokens of compute and no copy of the cache. Layers are scanned: compiling, which is what
a first question waits for, takes a quarter to a third less than unrolled (4 layers).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ping_llm.errors import PingError
from ping_llm.model.checkpoint import Tensors
from ping_llm.model.config import ModelConfig

Params = dict[str, Any]

#: The first input of a segment: nothing has been said yet.
START = 0

#: Sequences are padded to the next of these (then to multiples of 512), batches to 1, 4, 16, 64 … rows: a new
#: shape costs a second and a half of compiling, padding a few milliseconds.
LENGTHS = (64, 128, 192, 256, 384, 512)

_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


@dataclass(frozen=True)
class Prefix:
    """Contexts that have been read: their cache, and what comes next.

    Attributes:
      keys, values: [layers, rows, length, kv_heads, head_dim].
      lengths: inputs of each row, the leading PAD included; int32 [rows].
      tail: float32 [rows, n, vocabulary], log-probabilities after each of the last n inputs.
    """

    keys: jax.Array
    values: jax.Array
    lengths: np.ndarray
    tail: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, row: int) -> "Prefix":
        """One row by itself."""
        one = slice(row, row + 1)
        return Prefix(self.keys[:, one], self.values[:, one], self.lengths[one], self.tail[one])


def keep_compiled() -> None:
    """Keep compiled functions between processes, unless JAX was told where: a second start takes a fifth."""
    if jax.config.jax_compilation_cache_dir is None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "ping-llm" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


class Engine:
    """One model on one device."""

    def __init__(self, config: ModelConfig, tensors: Tensors):
        self.config = config
        self._params = _prepare(config, tensors)

    def log_probabilities(
        self, inputs: np.ndarray, targets: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        """Natural log-probability of each target of a packed batch; 0 where there is none (segmentation 0).

        All arguments are int32 [batch, length]; segmentation is that of the inputs. The sum over a segment is
        what the training loss adds up.
        """
        return np.asarray(
            _target_log_probabilities(self.config, self._params, inputs, targets, positions, segmentation)
        )

    def logits(self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
        """float32 [batch, length, vocabulary] of a packed batch."""
        return np.asarray(_packed_logits(self.config, self._params, inputs, positions, segmentation))

    def prefill(self, sequences: Sequence[np.ndarray], tail: int = 1) -> Prefix:
        """Read token sequences (without the leading PAD, which is added) and keep the cache.

        Args:
          sequences: one array of ids a row, of any lengths.
          tail: for how many of the last inputs the next-token distribution is kept.
        """
        lengths = np.array([len(sequence) + 1 for sequence in sequences], np.int32)
        longest = int(lengths.max())
        self._check_length(longest)
        if lengths.min() < tail:
            raise ValueError(f"tail {tail} is longer than the shortest sequence")
        rows = _padded_rows(len(sequences))
        inputs = np.full((rows, padded_length(longest)), START, np.int32)
        for row, sequence in enumerate(sequences):
            inputs[row, 1 : len(sequence) + 1] = sequence
        padded = np.full(rows, tail, np.int32)
        padded[: len(lengths)] = lengths
        keys, values, last = _prefill(self.config, self._params, inputs, padded, tail)
        return Prefix(keys, values, lengths, np.asarray(last)[: len(lengths)])

    def extend(self, prefix: Prefix, suffixes: Sequence[np.ndarray], tail: int = 1) -> Prefix:
        """Go on from one context in several ways: as `prefill` of whole sequences, but it is read only once.

        Args:
          prefix: one row.
          suffixes: of each new row the further ids, at least `tail`.
          tail: as for `prefill`.
        """
        if len(prefix) != 1:
            raise ValueError("only one context can be extended")
        start, more = int(prefix.lengths[0]), np.array([len(suffix) for suffix in suffixes], np.int32)
        self._check_length(start + int(more.max()))
        if more.min() < tail:
            raise ValueError(f"tail {tail} is longer than the shortest suffix")
        rows, depth = _padded_rows(len(suffixes)), -(-int(more.max()) // 16) * 16
        inputs, lengths = np.full((rows, depth), START, np.int32), np.full(rows, tail, np.int32)
        for row, suffix in enumerate(suffixes):
            inputs[row, : len(suffix)] = suffix
        lengths[: len(more)] = more
        keys, values, last = _extend(
            self.config, self._params, prefix.keys, prefix.values, np.int32(start), inputs, lengths, tail,
            padded_length(start + depth),
        )  # fmt: skip
        return Prefix(keys, values, start + more, np.asarray(last)[: len(more)])

    def branch(self, prefix: Prefix, suffixes: np.ndarray) -> np.ndarray:
        """Continue each context in many ways.

        Args:
          prefix: rows that have been read.
          suffixes: int32 [rows, ways, depth]: for each row, the tokens of each continuation.

        Returns:
          float32 [rows, ways, depth, vocabulary]: log-probabilities of what follows each suffix token.
        """
        rows, ways, depth = suffixes.shape
        padded = np.zeros((prefix.keys.shape[1], _padded_ways(ways), depth), np.int32)
        padded[:rows, :ways] = suffixes
        lengths = np.ones(padded.shape[0], np.int32)
        lengths[:rows] = prefix.lengths
        out = _branch(self.config, self._params, prefix.keys, prefix.values, lengths, padded)
        return np.asarray(out)[:rows, :ways]

    def _check_length(self, longest: int) -> None:
        if longest > self.config.max_length:
            raise PingError(
                f"a context of {longest} tokens is longer than the {self.config.max_length} "
                "this model was trained on"
            )

    def start(self, prefix: Prefix, copies: int, room: int) -> "Decoder":
        """Begin sampling: `copies` continuations of the only row of `prefix`, at most `room` tokens each."""
        return Decoder(self.config, self._params, prefix, copies, room)


class Decoder:
    """Token-at-a-time decoding with a growing cache, updated in place."""

    def __init__(self, config: ModelConfig, params: Params, prefix: Prefix, copies: int, room: int):
        if len(prefix) != 1:
            raise ValueError("sampling starts from one context")
        self._config, self._params = config, params
        self._rows = copies
        length = padded_length(int(prefix.lengths[0]) + room)
        self._keys, self._values = _widen(prefix.keys, prefix.values, _padded_rows(copies), length)
        self._position = int(prefix.lengths[0])
        self.log_probabilities = np.repeat(prefix.tail[:, -1], copies, axis=0)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Append one token a row; return the log-probabilities of the next, float32 [copies, vocabulary]."""
        padded = np.zeros(self._keys.shape[1], np.int32)
        padded[: self._rows] = tokens
        self._keys, self._values, out = _step(
            self._config, self._params, self._keys, self._values, np.int32(self._position), padded
        )
        self._position += 1
        self.log_probabilities = np.asarray(out)[: self._rows]
        return self.log_probabilities


def padded_length(length: int) -> int:
    """The length a sequence is padded to."""
    for allowed in LENGTHS:
        if length <= allowed:
            return allowed
    return -(-length // 512) * 512


def _padded_rows(rows: int) -> int:
    return 4 ** -(-(max(rows, 1) - 1).bit_length() // 2)


def _padded_ways(ways: int) -> int:
    """Powers of two, then multiples of 32: the 174 first bytes of `compact` need 192 and not 256."""
    return _next_power(ways) if ways <= 64 else -(-ways // 32) * 32


def _next_power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _prepare(config: ModelConfig, tensors: Tensors) -> Params:
    """Weights as [in, out]; query, key and value (gate and up) side by side: fewer, larger products."""

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
    """The weights of one layer. Indexing inside a scan copies one layer at a time, slicing before it all."""
    return jax.tree.map(
        lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), params["layers"]
    )


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


def _project(config: ModelConfig, layer: Params, x: jax.Array, positions: jax.Array):
    """Queries grouped by their key head [..., kv, group, dim], keys and values [..., kv, dim]."""
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
    """Output projection, residuals and SwiGLU."""
    x = x + _einsum("...f,fe->...e", attended.reshape(*x.shape[:-1], -1), layer["out"])
    hidden = _einsum("...e,ef->...f", _norm(x, layer["mlp_norm"], config.norm_epsilon), layer["gate_up"])
    gate, up = jnp.split(hidden, 2, axis=-1)
    return x + _einsum("...f,fe->...e", jax.nn.silu(gate) * up, layer["down"])


def _head(config: ModelConfig, params: Params, x: jax.Array) -> jax.Array:
    return _einsum("...e,ev->...v", _norm(x, params["norm"], config.norm_epsilon), params["head"])


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """query [b,q,kv,g,d], key and value [b,k,kv,d], mask [b or 1,q,k].

    The heads of a group are laid one below the other first: one product instead of several narrow ones, a
    third less time.
    """
    batch, queries, kv, group, dim = query.shape
    rows = query.transpose(0, 2, 3, 1, 4).reshape(batch, kv, group * queries, dim)
    scores = _einsum("bhrd,bkhd->bhrk", rows, key).reshape(batch, kv, group, queries, -1)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf), axis=-1)
    attended = _einsum("bhrk,bkhd->bhrd", weights.reshape(*rows.shape[:3], -1), value)
    return attended.reshape(batch, kv, group, queries, dim).transpose(0, 3, 1, 2, 4)


def _attend_back(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Each position attends to itself and those before it: in parts, so that later keys are not looked at."""
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


def _packed(config: ModelConfig, params: Params, inputs, positions, segmentation) -> jax.Array:
    length = inputs.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    # A padded position attends to the other padding, so that no row of the softmax is empty.
    mask = causal & (segmentation[:, :, None] == segmentation[:, None, :])

    def one(x, layer):
        query, key, value = _project(config, layer, x, positions)
        return _finish(config, layer, x, _attend(query, key, value, mask)), None

    x, _ = jax.lax.scan(one, params["embedding"][inputs], params["layers"])
    return _head(config, params, x)


@partial(jax.jit, static_argnums=0)
def _packed_logits(config, params, inputs, positions, segmentation):
    return _packed(config, params, inputs, positions, segmentation)


@partial(jax.jit, static_argnums=0)
def _target_log_probabilities(config, params, inputs, targets, positions, segmentation):
    logits = _packed(config, params, inputs, positions, segmentation)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.where(segmentation != 0, chosen - jax.nn.logsumexp(logits, axis=-1), 0.0)


@partial(jax.jit, static_argnums=(0, 4))
def _prefill(config, params, inputs, lengths, tail):
    length = inputs.shape[1]
    positions = jnp.arange(length)[None]

    def one(x, index):
        layer = _layer(params, index)
        query, key, value = _project(config, layer, x, positions)
        # Padding stands at the end, where no real position can see it.
        return _finish(config, layer, x, _attend_back(query, key, value)), (key, value)

    x, (keys, values) = jax.lax.scan(one, params["embedding"][inputs], jnp.arange(config.layers - 1))
    # Of the last layer, all keys and values are kept, but what it says is asked for at the tail only.
    layer = _layer(params, config.layers - 1)
    query, key, value = _project(config, layer, x, positions)
    last = lengths[:, None] - tail + jnp.arange(tail)
    x = jnp.take_along_axis(x, last[..., None], axis=1)
    query = jnp.take_along_axis(query, last[..., None, None, None], axis=1)
    x = _finish(config, layer, x, _attend(query, key, value, jnp.arange(length) <= last[..., None]))
    keys, values = jnp.concatenate([keys, key[None]]), jnp.concatenate([values, value[None]])
    return keys, values, jax.nn.log_softmax(_head(config, params, x), axis=-1)


@partial(jax.jit, static_argnums=(0, 7, 8))
def _extend(config, params, keys, values, start, inputs, lengths, tail, length):
    rows, depth = inputs.shape
    positions = start + jnp.arange(depth)[None]
    mask = jnp.arange(length) <= positions[..., None]
    missing = ((0, 0), (0, length - keys.shape[2]), (0, 0), (0, 0))

    def widened(old, new):
        old = jnp.broadcast_to(jnp.pad(old[:1], missing), (rows, length, *old.shape[2:]))
        return jax.lax.dynamic_update_slice(old, new, (0, start, 0, 0))

    def one(x, at):
        layer, old_key, old_value = at
        query, key, value = _project(config, layer, x, positions)
        key, value = widened(old_key, key), widened(old_value, value)
        return _finish(config, layer, x, _attend(query, key, value, mask)), (key, value)

    x, (keys, values) = jax.lax.scan(one, params["embedding"][inputs], (params["layers"], keys, values))
    last = lengths[:, None] - tail + jnp.arange(tail)
    x = jnp.take_along_axis(x, last[..., None], axis=1)
    return keys, values, jax.nn.log_softmax(_head(config, params, x), axis=-1)


@partial(jax.jit, static_argnums=0)
def _branch(config, params, keys, values, lengths, suffixes):
    rows, depth = suffixes.shape[0], suffixes.shape[2]
    kv, dim = config.kv_heads, config.head_dim
    positions = lengths[:, None, None] + jnp.arange(depth)
    seen = jnp.arange(keys.shape[2]) < lengths[:, None]
    causal = jnp.tril(jnp.ones((depth, depth), bool))

    def one(x, at):
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
def _widen(keys, values, copies, length):
    def widen(array):
        array = jnp.repeat(array[:, :1, :length], copies, axis=1)
        return jnp.pad(array, ((0, 0), (0, 0), (0, length - array.shape[2]), (0, 0), (0, 0)))

    return widen(keys), widen(values)


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def _step(config, params, keys, values, position, tokens):
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
