"""Logits in plain JAX, with a KV cache whose prefix many continuations share.

Four ways in, each compiled once a shape (sequences are padded to a few lengths, so shapes are few):
  log_probabilities   whole packed batches, segment-aware: scoring and hold-out bits
  prefill + branch    one context, many short continuations of it: exact distributions
  prefill + extend    one context, many questions about it: its cache is copied, not computed again
  prefill + step      one token at a time: sampling

A branch attends to the one shared prefix and to its own few tokens, so 256 continuations of a context of
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

#: Bytes of contexts that were read and may be asked about again. One of 384 tokens takes 1.5 MB in a model of
#: 0.7 M parameters.
_CONTEXT_BYTES = 128 << 20

#: The first input of a segment: nothing has been said yet.
START = 0

#: Sequences are padded to the next of these (then to multiples of 512), batches to 1, 4, 16, 64 … rows: a new
#: shape costs a second and a half of compiling, padding a few milliseconds.
LENGTHS = (64, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Prefilled:
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

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes + self.tail.nbytes)

    def row(self, row: int) -> "Prefilled":
        """One row by itself."""
        one = slice(row, row + 1)
        return Prefilled(self.keys[:, one], self.values[:, one], self.lengths[one], self.tail[one])


def keep_compiled() -> None:
    """Keep compiled functions between processes, unless JAX was told where: a second start takes a fifth."""
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
        """Natural log-probability of each target of a packed batch; 0 where there is none (segmentation 0).

        All arguments are int32 [batch, length]; segmentation is that of the inputs. The sum over a segment is
        what the training loss adds up.
        """
        return np.asarray(
            transformer.target_log_probabilities(
                self.config, self._params, inputs, targets, positions, segmentation
            )
        )

    def logits(self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
        """float32 [batch, length, vocabulary] of a packed batch."""
        return np.asarray(
            transformer.packed_logits(self.config, self._params, inputs, positions, segmentation)
        )

    def prefill(self, sequences: Sequence[np.ndarray], tail: int = 1) -> Prefilled:
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
        keys, values, last = transformer.prefill(self.config, self._params, inputs, padded, tail)
        return Prefilled(keys, values, lengths, np.asarray(last)[: len(lengths)])

    def context(self, sequence: np.ndarray) -> Prefilled:
        """`prefill` of one context, kept for the next questions about it: the same bits, in no time."""
        return self._contexts.get_or(sequence.tobytes(), lambda: self.prefill([sequence]))

    def extend(self, prefix: Prefilled, suffixes: Sequence[np.ndarray], tail: int = 1) -> Prefilled:
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
        keys, values, last = transformer.extend(
            self.config, self._params, prefix.keys, prefix.values, np.int32(start), inputs, lengths, tail,
            padded_length(start + depth),
        )  # fmt: skip
        return Prefilled(keys, values, start + more, np.asarray(last)[: len(more)])

    def branch(self, prefix: Prefilled, suffixes: np.ndarray) -> np.ndarray:
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
        out = transformer.branch(self.config, self._params, prefix.keys, prefix.values, lengths, padded)
        return np.asarray(out)[:rows, :ways]

    def _check_length(self, longest: int) -> None:
        if longest > self.config.max_length:
            raise PingError(
                f"a context of {longest} tokens is longer than the {self.config.max_length} "
                "this model was trained on"
            )

    def start(self, prefix: Prefilled, copies: int, room: int) -> "Decoder":
        """Begin sampling: `copies` continuations of the only row of `prefix`, at most `room` tokens each."""
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
        """Append one token a row; return the log-probabilities of the next, float32 [copies, vocabulary]."""
        padded = np.zeros(self._keys.shape[1], np.int32)
        padded[: self._rows] = tokens
        self._keys, self._values, out = transformer.step(
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
    return int(4 ** -(-(max(rows, 1) - 1).bit_length() // 2))


def _padded_ways(ways: int) -> int:
    """Powers of two, then multiples of 16: the 174 first bytes of `compact` need 176 and not 256."""
    return _next_power(ways) if ways <= 64 else -(-ways // 16) * 16


def _next_power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
