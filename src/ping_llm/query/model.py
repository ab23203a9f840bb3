"""A loaded model: one method a question."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.addresses import Prefix
from ping_llm.errors import PingError
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine
from ping_llm.query import rtt as rtt_query
from ping_llm.query.context import Context, Prompt, Question, build_prompts
from ping_llm.query.distribution import RttDistribution, mix
from ping_llm.query.orders import ONE_ORDER, orders_of
from ping_llm.query.rtt import RttScores
from ping_llm.schema import Measurement
from ping_llm.tokens.rtt import DEFAULT_CLIP_LIMIT_MS, RttEncoding, rtt_encoding
from ping_llm.tokens.vocab import RTT, Field

Address = str | Prefix
Time = datetime | int | float | str
Known = Context | Sequence[Measurement]


@dataclass(frozen=True)
class RttAnswer:
    """The answer to an rtt question."""

    question: Question
    distribution: RttDistribution
    #: Measurements of the context that were given, and that were used.
    context_given: int = 0
    context_used: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def failure(self) -> float:
        return self.distribution.failure


class Model:
    """Weights, tokens and engine. `ping_llm.load` makes one."""

    def __init__(
        self, engine: Engine, encoding: RttEncoding, tokens: dict[str, Any], origin: Path | None = None
    ):
        self.engine, self.encoding, self.tokens, self.origin = engine, encoding, tokens, origin

    @classmethod
    def load(cls, source: str | Path) -> "Model":
        """Load a run, a checkpoint or an export."""
        model = export.read(source)
        try:
            encoding = rtt_encoding(
                model.tokens.get("rtt_encoding", "compact"),
                model.tokens.get("clip_limit_ms") or DEFAULT_CLIP_LIMIT_MS,
            )
        except ValueError as error:
            raise PingError(f"{model.origin}: {error}") from None
        return cls(Engine(model.config, model.tensors), encoding, model.tokens, model.origin)

    @property
    def config(self) -> ModelConfig:
        return self.engine.config

    @property
    def has_time(self) -> bool:
        return "time" in self.tokens.get("context", {}).get("fields", "time")

    def rtt(
        self,
        src: Address,
        dst: Address,
        at: Time | None = None,
        context: Known | None = None,
        *,
        all_orders: bool = False,
    ) -> RttAnswer:
        """P(rtt, failure | src, dst, time, context), exact.

        Args:
          src, dst: addresses, or prefixes such as 203.0.113.0/24 or 203.0.113.?
          at: a datetime, seconds since 1970 or an ISO text.
          context: past measurements of the same source.
          all_orders: average over the orders in which the question's fields can be stated.
        """
        return self.rtt_many([Question.of(src, dst, at, context)], all_orders=all_orders)[0]

    def rtt_many(self, questions: Sequence[Question], *, all_orders: bool = False) -> list[RttAnswer]:
        """Many questions, in batches, answers in the same order. Each distribution takes half a megabyte."""
        answers: list[RttAnswer | None] = [None] * len(questions)
        for index, answer in self.rtt_stream(questions, all_orders=all_orders):
            answers[index] = answer
        return [answer for answer in answers if answer is not None]

    def rtt_stream(
        self, questions: Sequence[Question], *, all_orders: bool = False
    ) -> Iterator[tuple[int, RttAnswer]]:
        """As `rtt_many`, one (index, answer) at a time as they are done: shortest contexts first."""
        if not all_orders:
            prompts = self.prompts(questions)
            for index, distribution in self._distributions(prompts):
                yield index, _answer(questions[index], prompts[index], [distribution])
            return
        for index, question in enumerate(questions):
            prompts = [
                prompt for order in orders_of(question) for prompt in self.prompts([question], order=order)
            ]
            parts = [distribution for _, distribution in self._distributions(prompts)]
            yield index, _answer(question, prompts[0], parts)

    def rtt_scores(
        self,
        questions: Sequence[Question],
        observed: np.ndarray | None = None,
        levels: Sequence[float] = (0.5,),
    ) -> RttScores:
        """P(failure), bits of the observed results and quantiles: exact, and much cheaper than distributions.

        Args:
          questions: what is known, each with a context of its own if any.
          observed: float64 [n], ms, -1 for no reply.
          levels: which quantiles.
        """
        prompts = [prompt.ids for prompt in self.prompts(questions)]
        return rtt_query.scores(self.engine, self.encoding, prompts, observed, levels)

    def prompts(
        self,
        questions: Sequence[Question],
        *,
        order: Sequence[Field] = ONE_ORDER,
        tail: Sequence[int] = (RTT,),
    ) -> list[Prompt]:
        """The questions as tokens, for at most the length that the model was trained on."""
        room = self.config.max_length - 1 - self.encoding.bytes
        return build_prompts(questions, self.encoding, room, order=order, tail=tail)

    def _distributions(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, RttDistribution]]:
        return rtt_query.distributions(self.engine, self.encoding, [prompt.ids for prompt in prompts])


def _answer(question: Question, prompt: Prompt, parts: Sequence[RttDistribution]) -> RttAnswer:
    notes = []
    if prompt.used < prompt.given:
        notes.append(
            f"{prompt.given - prompt.used} of {prompt.given} measurements of the context were left out: "
            "later than the asked time, or the least relevant where not all fit"
        )
    distribution = parts[0] if len(parts) == 1 else mix(parts)
    if distribution.unresolved > 1e-3:
        notes.append(f"probabilities of single milliseconds are exact to {distribution.unresolved:.2g} only")
    return RttAnswer(question, distribution, prompt.given, prompt.used, tuple(notes))
