"""Logits in plain JAX, with a KV cache whose prefix many continuations share.

There are four uses, each compiled once per shape (sequences are padded to a few lengths, so shapes are few):
  log_probabilities   whole packed batches, segment-aware: scoring and held-out bits
  prefill + branch    one context, many short continuations of it: exact distributions
  prefill + extend    one context, many questions about it: its cache is copied, not computed again
  prefill + step      one token at a time: sampling

A branch attends to the shared prefix and to its own few tokens, so 256 continuations of a context of
400 tokens cost 256 tokens of compute and no copy of the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from ping_llm.errors import PingError
from ping_llm.files import cache_folder, say_no_cache
from ping_llm.model import transformer
from ping_llm.model.checkpoint import Tensors
from ping_llm.model.config import ModelConfig
from ping_llm.recent import Recent

#: Memory limit of contexts kept for further questions, in bytes. One of 384 tokens takes 1.5 MB in a model of
#: 0.7 M parameters.
_CONTEXT_BYTES = 128 << 20

#: First input of a segment, before its first token.
START = 0

#: Lengths to which sequences are padded (then multiples of 512); batches are padded to 1, 4, 16, 64 … rows. A
#: new shape costs 1.5 s of compiling, padding a few milliseconds.
LENGTHS = (64, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Prefilled:
    """Contexts that have been read: their cache, and the distributions of the next tokens.

    Attributes:
      keys, values: [layers, rows, length, kv_heads, head_dim].
      lengths: number of inputs of each row, including the leading PAD; int32 [rows].
      tail: float32 [rows, n, vocabulary], log-probabilities after each of the last n inputs.
    """

    keys: jax.Array
    values: jax.Array
    lengths: np.ndarray
    tail: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes + self.tail.nbytes)

    def row(self, row: int) -> "Prefilled":
        """Select a single row."""
        one = slice(row, row + 1)
        return Prefilled(self.keys[:, one], self.values[:, one], self.lengths[one], self.tail[one])


def keep_compiled() -> None:
    """Keep compiled functions on disk, unless JAX already does: a second start takes a fifth of the time."""
    if jax.config.jax_compilation_cache_dir is None:
        folder = cache_folder("jax")
        if folder is None:
            say_no_cache()
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


class Engine:
    """One model on one device."""

    def __init__(self, config: ModelConfig, tensors: Tensors):
        self.config = config
        self._params = transformer.prepare(config, tensors)
        self._contexts: Recent[bytes, Prefilled] = Recent(_CONTEXT_BYTES, lambda prefix: prefix.nbytes)

    def log_probabilities(
        self, inputs: np.ndarray, targets: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        """Natural log-probability of each target of a packed batch; 0 for padding (segmentation 0).

        All arguments are int32 [batch, length]; segmentation is that of the inputs. The training loss adds up
        the same values, negated.
        """
        return np.asarray(
            transformer.target_log_probabilities(
                self.config, self._params, inputs, targets, positions, segmentation
            )
        )

    def logits(self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
        """Logits of a packed batch, float32 [batch, length, vocabulary]."""
        return np.asarray(
            transformer.packed_logits(self.config, self._params, inputs, positions, segmentation)
        )

    def prefill(self, sequences: Sequence[np.ndarray], tail: int = 1) -> Prefilled:
        """Read token sequences (without the leading PAD, which is added) and keep the cache.

        Args:
          sequences: one array of token ids per row, of any lengths.
          tail: number of last inputs for which the next-token distribution is kept.
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
        keys, values, last = transformer.prefill(self.config, self._params, inputs, padded, tail)
        return Prefilled(keys, values, lengths, np.asarray(last)[: len(lengths)])

    def context(self, sequence: np.ndarray) -> Prefilled:
        """Return `prefill` of one context, which is cached for further questions with identical results."""
        return self._contexts.get_or(sequence.tobytes(), lambda: self.prefill([sequence]))

    def extend(self, prefix: Prefilled, suffixes: Sequence[np.ndarray], tail: int = 1) -> Prefilled:
        """Append several suffixes to one context: as `prefill` of whole sequences, but it is read only once.

        Args:
          prefix: the context, a single row.
          suffixes: the further token ids of each new row, at least `tail`.
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
        keys, values, last = transformer.extend(
            self.config, self._params, prefix.keys, prefix.values, np.int32(start), inputs, lengths, tail,
            padded_length(start + depth),
        )  # fmt: skip
        return Prefilled(keys, values, start + more, np.asarray(last)[: len(more)])

    def branch(self, prefix: Prefilled, suffixes: np.ndarray) -> np.ndarray:
        """Evaluate many continuations of each context.

        Args:
          prefix: rows that have been read.
          suffixes: int32 [rows, ways, depth], the tokens of each continuation of each row.

        Returns:
          float32 [rows, ways, depth, vocabulary]: log-probabilities of the token after each suffix token.
        """
        rows, ways, depth = suffixes.shape
        padded = np.zeros((prefix.keys.shape[1], _padded_ways(ways), depth), np.int32)
        padded[:rows, :ways] = suffixes
        lengths = np.ones(padded.shape[0], np.int32)
        lengths[:rows] = prefix.lengths
        out = transformer.branch(self.config, self._params, prefix.keys, prefix.values, lengths, padded)
        return np.asarray(out)[:rows, :ways]

    def _check_length(self, longest: int) -> None:
        if longest > self.config.max_length:
            raise PingError(
                f"a context of {longest} tokens is longer than the {self.config.max_length} "
                "this model was trained on"
            )

    def start(self, prefix: Prefilled, copies: int, room: int) -> "Decoder":
        """Begin sampling `copies` continuations of the single row of `prefix`, at most `room` tokens each."""
        return Decoder(self.config, self._params, prefix, copies, room)


class Decoder:
    """Token-at-a-time decoding with a growing cache, updated in place."""

    def __init__(
        self, config: ModelConfig, params: transformer.Params, prefix: Prefilled, copies: int, room: int
    ):
        if len(prefix) != 1:
            raise ValueError("sampling starts from one context")
        self._config, self._params = config, params
        self._rows = copies
        length = padded_length(int(prefix.lengths[0]) + room)
        self._keys, self._values = transformer.widen(prefix.keys, prefix.values, _padded_rows(copies), length)
        self._position = int(prefix.lengths[0])
        self.log_probabilities = np.repeat(prefix.tail[:, -1], copies, axis=0)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Append one token per row; return log-probabilities of the next, float32 [copies, vocabulary]."""
        padded = np.zeros(self._keys.shape[1], np.int32)
        padded[: self._rows] = tokens
        self._keys, self._values, out = transformer.step(
            self._config, self._params, self._keys, self._values, np.int32(self._position), padded
        )
        self._position += 1
        self.log_probabilities = np.asarray(out)[: self._rows]
        return self.log_probabilities


def padded_length(length: int) -> int:
    """The length to which a sequence is padded."""
    for allowed in LENGTHS:
        if length <= allowed:
            return allowed
    return -(-length // 512) * 512


def _padded_rows(rows: int) -> int:
    return int(4 ** -(-(max(rows, 1) - 1).bit_length() // 2))


def _padded_ways(ways: int) -> int:
    """Powers of two, above 64 multiples of 16: the 174 first bytes of `compact` need 176 instead of 256."""
    return _next_power(ways) if ways <= 64 else -(-ways // 16) * 16


def _next_power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
