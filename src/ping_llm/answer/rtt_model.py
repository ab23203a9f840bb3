"""What answers questions about RTTs: an engine, the tokens of its model, and its stack.

It needs neither JAX nor Arrow, so that it runs on small devices too (`edge.py`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ping_llm.answer import answering
from ping_llm.answer import rtt as rtt_query
from ping_llm.answer.answering import RAW, STACK, RttAnswer
from ping_llm.answer.conditions import COLUMNS, Conditions, unused
from ping_llm.answer.context import Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.past import Data
from ping_llm.answer.prompts import ONE_ORDER, Prompt, build_prompts
from ping_llm.answer.stack import Stack
from ping_llm.errors import UsageError
from ping_llm.model.config import ModelConfig
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.vocab import OPTIONAL, RTT, Field

if TYPE_CHECKING:
    from ping_llm.model.engine import Engine


class RttModel:
    """The part of `Model` whose answers are RTTs.

    Attributes:
      knows_addresses: whether its network was trained on addresses as they are, and can score them.
    """

    knows_addresses: ClassVar[bool] = True

    def __init__(
        self,
        engine: "Engine",
        encoding: RttEncoding,
        tokens: dict[str, Any],
        origin: Path | None = None,
        stack: Stack | None = None,
    ):
        self.engine, self.encoding, self.tokens, self.origin = engine, encoding, tokens, origin
        self.stack = stack
        self.data: Data | None = None
        self.data_note: str | None = None
        self.doubts: tuple[str, ...] = ()
        self.lost_to: dict[str, dict[str, Any]] = {}

    @property
    def config(self) -> ModelConfig:
        return self.engine.config

    @property
    def has_time(self) -> bool:
        return "time" in self.tokens.get("context", {}).get("fields", "time")

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """Names of the optional fields that it was trained on, besides the time."""
        names = [name.strip() for name in self.tokens.get("context", {}).get("fields", "").split(",")]
        return tuple(name for name in OPTIONAL if name in names)

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """The columns of the measurements table that hold them."""
        return tuple(COLUMNS[name] for name in self.optional_fields)

    def check_conditions(self, *stated: Conditions) -> None:
        """Refuse a question that states what the network was not trained on."""
        names = unused(stated, self.optional_fields)
        if names:
            known = self.tokens.get("context", {}).get("fields", "src,dst,rtt,time")
            raise UsageError(
                f"this model was not trained on {', '.join(names)}, so a question cannot state it; it was "
                f"trained on {known} (network_fields of `ping-llm train`)"
            )

    @property
    def knows_unnamed_sources(self) -> bool:
        """Whether it was trained on contexts that do not name their source."""
        return float(self.tokens.get("context", {}).get("unnamed_source_probability", 0.0)) > 0

    @property
    def knows_only_pseudonyms(self) -> bool:
        """Whether each context that it was trained on had pseudonyms in place of all addresses."""
        return float(self.tokens.get("context", {}).get("scramble_probability", 0.0)) >= 1

    def stacks(self, time: np.ndarray) -> Iterator[tuple[np.ndarray, Stack]]:
        """The stack for questions of these times (int64 [n]): which of them, and theirs."""
        if self.stack is not None:
            yield np.arange(len(time)), self.stack

    def rtt_many(
        self,
        questions: Sequence[Question],
        *,
        data: Data | str | Path | None = None,
        raw: bool = False,
        method: str = STACK,
        all_orders: bool = False,
    ) -> list[RttAnswer]:
        """Many questions, answers in the same order. Each answer takes 70 kB (raw: half a megabyte)."""
        answers: list[RttAnswer | None] = [None] * len(questions)
        for index, answer in self.rtt_stream(
            questions, data=data, raw=raw, method=method, all_orders=all_orders
        ):
            answers[index] = answer
        return [answer for answer in answers if answer is not None]

    def rtt_stream(
        self,
        questions: Sequence[Question],
        *,
        data: Data | str | Path | None = None,
        raw: bool = False,
        method: str = STACK,
        all_orders: bool = False,
    ) -> Iterator[tuple[int, RttAnswer]]:
        """As `rtt_many`, as an iterator of (index, answer) in any order."""
        if all_orders and not (raw or self.stack is None):
            raise UsageError("all_orders needs raw: only raw answers are averaged over orders")
        if method not in (STACK, RAW) and self.stack is None:
            raise UsageError(
                f"this run has no stack, so it cannot be asked for {method!r}; calibrate it first"
            )
        return answering.answers(
            self,
            questions,
            stack=self.stack,
            method=RAW if raw else method,
            data=self.data if data is None else self.open_data(data),
            all_orders=all_orders,
            lost_to=self.lost_to,
        )

    def open_data(self, data: Data | str | Path) -> Data:
        """Probe rows, with the columns that its contexts state."""
        return data if isinstance(data, Data) else Data(data, also=self.optional_columns)

    def prompts(
        self,
        questions: Sequence[Question],
        *,
        order: Sequence[Field] = ONE_ORDER,
        tail: Sequence[int] = (RTT,),
        answer: int | None = None,
    ) -> list[Prompt]:
        """The questions as tokens: with `answer` more, at most the length that the model was trained on."""
        self.check_conditions(*(question.conditions for question in questions))
        room = self.config.max_length - 1 - (self.encoding.bytes if answer is None else answer)
        return build_prompts(
            questions, self.encoding, room, order=order, tail=tail, optional=self.optional_fields
        )

    def distributions(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, RttDistribution]]:
        """The distribution of the RTT after prompts that end in RTT, as (index, distribution)."""
        return rtt_query.distributions(self.engine, self.encoding, prompts)
