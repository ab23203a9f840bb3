"""The engine of an edge export: a graph in onnxruntime, with the interface of `engine.Engine`, without JAX.

It takes one context at a time, which is all that questions about RTTs need. Continuations of a context are
run as one row with a mask that separates them, so they share the cache: 174 continuations of a context of 400
tokens cost 174 tokens and no copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ping_llm.errors import PingError, UsageError
from ping_llm.model.config import ModelConfig
from ping_llm.recent import Recent

GRAPH, INT8_GRAPH = "model.onnx", "model.int8.onnx"

#: First input of a context, PAD.
_START = 0
_HIDDEN = np.float32(-1e30)
#: Memory limit of contexts kept for further questions, in bytes.
_CONTEXT_BYTES = 16 << 20


@dataclass(frozen=True)
class Prefilled:
    """A context that has been read, as `engine.Prefilled`; the cache is by name of the graph's input."""

    cache: dict[str, np.ndarray]
    lengths: np.ndarray
    tail: np.ndarray

    def __len__(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        return int(sum(part.nbytes for part in self.cache.values()) + self.tail.nbytes)

    def row(self, row: int) -> "Prefilled":
        return self


class EdgeEngine:
    """An ONNX graph on one CPU."""

    def __init__(self, config: ModelConfig, graph: Path, threads: int = 0):
        import onnxruntime

        self.config = config
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(
                str(graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has a class for each kind of invalid file
            raise PingError(f"cannot read {graph}: {error}") from None
        self._outputs = [output.name for output in self._session.get_outputs()]
        wanted = {f"past_key_values.{layer}.key" for layer in range(config.layers)} | {"hidden"}
        if not wanted <= {given.name for given in self._session.get_inputs()}:
            raise PingError(f"{graph} is not the graph of an edge export of {config.layers} layers")
        self._contexts: Recent[bytes, Prefilled] = Recent(_CONTEXT_BYTES, lambda prefix: prefix.nbytes)

    def prefill(self, sequences: Sequence[np.ndarray], tail: int = 1) -> Prefilled:
        """As `Engine.prefill`, for one sequence."""
        empty = np.zeros((1, self.config.kv_heads, 0, self.config.head_dim), np.float32)
        names = [f"{layer}.{part}" for layer in range(self.config.layers) for part in ("key", "value")]
        nothing = Prefilled(
            {f"past_key_values.{name}": empty for name in names}, np.zeros(1, np.int32), np.empty(0)
        )
        return self.extend(nothing, [np.append(_START, _only(sequences))], tail)

    def context(self, sequence: np.ndarray) -> Prefilled:
        """As `Engine.context`."""
        return self._contexts.get_or(sequence.tobytes(), lambda: self.prefill([sequence]))

    def extend(self, prefix: Prefilled, suffixes: Sequence[np.ndarray], tail: int = 1) -> Prefilled:
        """As `Engine.extend`, for one suffix."""
        suffix, start = _only(suffixes), int(prefix.lengths[0])
        if start + len(suffix) > self.config.max_length:
            raise PingError(
                f"a context of {start + len(suffix)} tokens is longer than the {self.config.max_length} "
                "this model was trained on"
            )
        if len(suffix) < tail:
            raise ValueError(f"tail {tail} is longer than the shortest suffix")
        own = np.triu(np.full((len(suffix), len(suffix)), _HIDDEN), 1)
        logits, *present = self._run(prefix, suffix, start + np.arange(len(suffix)), own, self._outputs)
        names = [name.replace("present", "past_key_values") for name in self._outputs[1:]]
        return Prefilled(
            dict(zip(names, present, strict=True)),
            np.array([start + len(suffix)], np.int32),
            _log_softmax(logits[:, len(suffix) - tail :]),
        )

    def branch(self, prefix: Prefilled, suffixes: np.ndarray) -> np.ndarray:
        """As `Engine.branch`, for one context."""
        rows, ways, depth = suffixes.shape
        if rows != 1:
            raise _unable()
        way, place = np.divmod(np.arange(ways * depth), depth)
        seen = (way[:, None] == way) & (place[:, None] >= place)
        own = np.where(seen, np.float32(0), _HIDDEN)
        positions = int(prefix.lengths[0]) + place
        (logits,) = self._run(prefix, suffixes.reshape(-1), positions, own, self._outputs[:1])
        return _log_softmax(logits).reshape(1, ways, depth, -1)

    def _run(
        self, prefix: Prefilled, ids: np.ndarray, positions: np.ndarray, own: np.ndarray, outputs: list[str]
    ) -> list[Any]:
        before = np.zeros((len(ids), int(prefix.lengths[0])), np.float32)
        inputs = {
            "input_ids": ids[None].astype(np.int64),
            "position_ids": positions.astype(np.int64),
            "hidden": np.concatenate([before, own], axis=1),
        }
        return list(self._session.run(outputs, inputs | prefix.cache))

    def log_probabilities(self, *arguments: Any) -> NoReturn:
        raise _unable()

    logits = start = log_probabilities


def _only(sequences: Sequence[np.ndarray]) -> np.ndarray:
    if len(sequences) != 1:
        raise _unable()
    return sequences[0]


def _unable() -> UsageError:
    return UsageError(
        "an edge export answers questions about RTTs (rtt, rank, explain, plan); ask the run, or an export "
        "with --to hf, for anything else"
    )


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    above = logits - logits.max(axis=-1, keepdims=True)
    out: np.ndarray = above - np.log(np.exp(above).sum(axis=-1, keepdims=True))
    return out
