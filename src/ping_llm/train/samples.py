"""Samples of a network during training: its answers to a few fixed questions.

At steps 1, 2, 5, 10, 20, 50 … and the last, the current network answers them on the CPU, as a query without a
stack does: exactly, from all codes of the RTT encoding. `samples.jsonl` has a record of each sample, in the
form of those in metrics.jsonl; `runs report` shows them.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import PingError
from ping_llm.files import read_yaml
from ping_llm.measurements.schema import MAX_RTT_MS
from ping_llm.model import checkpoint
from ping_llm.tokens import reference, vocab
from ping_llm.tokens.rtt import RttEncoding, rtt_encoding
from ping_llm.tokens.vocab import BYTE0
from ping_llm.train import settings
from ping_llm.train.records import Records

#: Largest number of tokens of a question.
LONGEST = 256

#: Smallest number of earlier measurements of a question, if there are such contexts.
_KNOWN = 2

#: Quantiles that bound the interval that is shown.
LOW, HIGH = 0.1, 0.9


@dataclass(frozen=True)
class SampleQuestion:
    """A question about the last result of a context.

    Attributes:
      prompt: tokens up to and including RTT.
      asked: the question in words.
      known: number of earlier measurements in the context.
      rtt: the measured RTT, ms.
    """

    prompt: np.ndarray
    asked: str
    known: int
    rtt: float


def questions(batch: dict[str, np.ndarray], encoding: RttEncoding, count: int) -> list[SampleQuestion]:
    """Questions from a packed batch: the first contexts that state a destination before their last result."""
    found = list(_questions(batch, encoding))
    # Stable sort: those with earlier measurements first, otherwise in the order of the batch.
    return sorted(found, key=lambda question: question.known < _KNOWN)[:count]


def _questions(batch: dict[str, np.ndarray], encoding: RttEncoding) -> Iterator[SampleQuestion]:
    for tokens, segments in zip(batch["targets"], batch["targets_segmentation"], strict=True):
        for segment in range(1, int(segments.max()) + 1):
            context = tokens[segments == segment]
            end = _last_result(context)
            if not end:
                continue
            known = int(np.count_nonzero(context[:end] == vocab.MEASUREMENT)) - 1
            stated = reference.decode(context, encoding)[known]
            assert stated.rtt is not None
            asked = f"{stated.src or 'unnamed source'} → {stated.dst}"
            yield SampleQuestion(context[:end].astype(np.int32), asked, known, stated.rtt)


def _last_result(context: np.ndarray) -> int:
    """Number of tokens up to and including the last RTT that follows its destination; 0: there is none."""
    for place in np.flatnonzero(context[:LONGEST] == vocab.RTT)[::-1]:
        begun = np.flatnonzero(context[:place] == vocab.MEASUREMENT)[-1]
        if np.isin(context[begun:place], (vocab.DST_IPV4, vocab.DST_IPV6)).any():
            return int(place) + 1
    return 0


def answers(engine: Any, encoding: RttEncoding, asked: list[SampleQuestion]) -> list[dict[str, float]]:
    """Median, interval, probability of no reply, and bits of the true code, for each question."""
    prefix = engine.prefill([question.prompt for question in asked], tail=2)
    # As in answers: RTTs above what the schema allows are impossible.
    edges = encoding.edges_table()[: min(encoding.encode(MAX_RTT_MS), encoding.largest_code) + 1]
    codes, first_bytes = len(edges), -(-len(edges) // 256)
    ways = np.arange(BYTE0, BYTE0 + first_bytes, dtype=np.int32)[None, :, None].repeat(len(asked), axis=0)
    first = _shares(prefix.tail[:, 1, BYTE0 : BYTE0 + first_bytes])
    possible = np.arange(256 * first_bytes).reshape(first_bytes, 256) < codes
    second = np.where(possible, engine.branch(prefix, ways)[:, :, 0, BYTE0:], -np.inf)
    mass = (first[:, :, None] * _shares(second)).reshape(len(asked), -1)[:, :codes]
    roles = prefix.tail[:, 0].astype(np.float64)
    failure = 1 / (1 + np.exp(roles[:, vocab.RTT] - roles[:, vocab.FAILED]))
    found = []
    for question, own, failed in zip(asked, mass, failure, strict=True):
        levels = np.cumsum(own)
        low, median, high = (float(edges[np.searchsorted(levels, at)]) for at in (LOW, 0.5, HIGH))
        bits = -np.log2(max(float(own[encoding.encode(question.rtt)]), 1e-300))
        found.append(
            {"median": median, "low": low, "high": high, "failure": float(failed), "bits": float(bits)}
        )
    return found


def _shares(log_probabilities: np.ndarray) -> np.ndarray:
    """Probabilities normalised over the given values."""
    values = np.exp(log_probabilities.astype(np.float64))
    return values / values.sum(axis=-1, keepdims=True)


def due(step: int, steps: int) -> bool:
    """Whether samples are taken after this step, counted from 0."""
    first = str(step + 1)[0]
    return step + 1 == steps or (first in "125" and str(step + 1).strip("0") == first)


#: Smallest number of steps of a training with samples: shorter ones are trials, and compiling takes seconds.
FEWEST_STEPS = 50

#: Number of sequences from which questions are chosen.
_SEQUENCES = 8


class Samples:
    """Takes samples during a training. An error ends the samples with a warning, not the training."""

    def __init__(self, run: Path, step: int, steps: int, encoding: RttEncoding, asked: list[SampleQuestion]):
        self._run, self._steps, self._encoding, self._asked = run, steps, encoding, asked
        self._records = Records(run / "samples.jsonl", step)

    @classmethod
    def of(cls, run: Path, config: Any, step: int, source: Callable[[int], Any]) -> "Samples | None":
        """The samples of a config's training from `step` on, or None if it has none.

        Args:
          source: opens batches with the given number of sequences.
        """
        options = settings.context_options(config)
        encoding = rtt_encoding(options.rtt_encoding, options.clip_limit_ms)
        if not config.network_samples or config.steps < FEWEST_STEPS or encoding.bytes > 2:
            return None
        batches = source(_SEQUENCES)
        try:
            asked = questions(next(batches), encoding, config.network_samples)
        except (StopIteration, PingError):  # the training itself reports errors in its data
            return None
        finally:
            batches.close()
        return cls(run, step, config.steps, encoding, asked)

    def take(self, step: int, weights: Callable[[], checkpoint.Tensors]) -> None:
        """Sample after a step, if it is due.

        Args:
          weights: returns the parameters by MaxText's names; called only if they are needed.
        """
        if not self._asked or not due(step, self._steps):
            return
        try:
            self._records.append(self._record(step, weights()))
        except (PingError, RuntimeError, ValueError, OSError) as error:
            print(f"warning: no samples of what was learned are taken from here on: {error}", file=sys.stderr)
            self._asked = []

    def _record(self, step: int, params: checkpoint.Tensors) -> dict[str, Any]:
        import jax

        from ping_llm.model.engine import Engine

        config, tensors = checkpoint.to_llama(params, read_yaml(self._run / "config.yml"))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):  # GPU memory is for the training
            found = answers(Engine(config, tensors), self._encoding, self._asked)
        loss = float(np.mean([each["bits"] for each in found])) * float(np.log(2))
        shown = [
            {"asked": question.asked, "known": question.known, "rtt": question.rtt, **answer}
            for question, answer in zip(self._asked, found, strict=True)
        ]
        return {"kind": "sample", "step": step, "loss": loss, "answers": shown}

    def close(self) -> None:
        self._records.close()
