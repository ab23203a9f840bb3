"""A loaded model: one method a question."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.addresses import Prefix
from ping_llm.errors import PingError, UsageError
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, keep_compiled
from ping_llm.query import rtt as rtt_query
from ping_llm.query.address_tree import AddressTree, Completions
from ping_llm.query.complete import Inverse, destination_tree, inverse, nothing, source_tree
from ping_llm.query.context import Context, Prompt, Question, as_prefix, as_seconds, build_prompts
from ping_llm.query.distribution import RttDistribution, mix
from ping_llm.query.generate import ROOM_IPV4, ROOM_IPV6, Generated, generate
from ping_llm.query.orders import ONE_ORDER, orders_of
from ping_llm.query.rtt import RttScores
from ping_llm.query.score import Scorer
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
        keep_compiled()
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

    @property
    def knows_unnamed_sources(self) -> bool:
        """Whether it was trained on contexts that do not tell their source."""
        return self.tokens.get("context", {}).get("unnamed_source_probability", 0.0) > 0

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
        uneven = [
            index
            for index, question in enumerate(questions)
            if question.src.bits % 8 or (question.dst is not None and question.dst.bits % 8)
        ]
        if uneven:
            yield from self._uneven(questions, set(uneven), all_orders)
            return
        if not all_orders:
            prompts = self.prompts(questions)
            for index, distribution in self.distributions(prompts):
                yield index, _answer(questions[index], prompts[index], [distribution])
            return
        for index, question in enumerate(questions):
            prompts = [
                prompt for order in orders_of(question) for prompt in self.prompts([question], order=order)
            ]
            parts = [distribution for _, distribution in self.distributions(prompts)]
            yield index, _answer(question, prompts[0], parts)

    def _uneven(
        self, questions: Sequence[Question], uneven: set[int], all_orders: bool
    ) -> Iterator[tuple[int, RttAnswer]]:
        """A prefix that ends inside a byte is the mixture of those that end after it."""
        even = [index for index in range(len(questions)) if index not in uneven]
        for index, answer in self.rtt_stream([questions[i] for i in even], all_orders=all_orders):
            yield even[index], answer
        for index in sorted(uneven):
            question = questions[index]
            if question.src.bits % 8:
                if question.context is not None:
                    raise UsageError(
                        f"the source {question.src} does not end at a byte: with a context use /8, /16, /24 …"
                    )
                known = question.dst if question.dst is not None and not question.dst.bits % 8 else None
                depth = question.src.bits // 8 + 1
                parts = source_tree(self, known, question.seconds, question.src, depth).top(256).best
                asked = [replace(question, src=part.address) for part in parts]
            else:
                assert question.dst is not None
                tree = destination_tree(self, question, question.dst, question.dst.bits // 8 + 1)
                parts = tree.top(256).best
                asked = [replace(question, dst=part.address) for part in parts]
            answers = self.rtt_many(asked, all_orders=all_orders)
            mixture = mix([a.distribution for a in answers], [part.probability for part in parts])
            yield index, replace(answers[0], question=question, distribution=mixture)

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

    def complete(
        self,
        src: Address | None = None,
        dst: Address | None = None,
        at: Time | None = None,
        context: Known | None = None,
        *,
        field: str = "dst",
        count: int = 10,
        bits: int | None = None,
        version: int | None = None,
    ) -> Completions:
        """The most probable completions of a partial address, exact.

        Args:
          src, dst: one is the partial address (a prefix, or nothing), the other what is known.
          field: which of them to complete, "dst" or "src".
          count: how many.
          bits: complete to prefixes of this length instead of whole addresses (a multiple of 8).
          version: 4 or 6, where neither address tells it.
        """
        return self._tree(src, dst, at, context, field, bits, version).top(count)

    def sample_addresses(
        self,
        src: Address | None = None,
        dst: Address | None = None,
        at: Time | None = None,
        context: Known | None = None,
        *,
        field: str = "dst",
        count: int = 10,
        bits: int | None = None,
        version: int | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[Prefix]:
        """Random completions of a partial address."""
        tree = self._tree(src, dst, at, context, field, bits, version)
        return tree.sample(count, temperature, np.random.default_rng(seed))

    def inverse(
        self,
        src: Address,
        low: float,
        high: float,
        at: Time | None = None,
        context: Known | None = None,
        *,
        within: Address | None = None,
        count: int = 10,
        bits: int | None = None,
    ) -> Inverse:
        """Which destinations lie low <= RTT < high ms away from a source: P(dst | src, RTT in the range)."""
        question = Question.of(src, within, at, context)
        limit = question.dst or nothing(question.src.version)
        return inverse(self, question, low, high, limit, _depth(limit, bits), count)

    def generate(
        self,
        src: Address | None = None,
        at: Time | None = None,
        context: Known | None = None,
        *,
        histories: int = 1,
        measurements: int = 10,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> Generated:
        """Sample measurements: of any source, of a source, or continuing a source's history.

        What is known may take up to half of the length that the model was trained on.
        """
        beginning = np.zeros(0, np.int32)
        notes: tuple[str, ...] = ()
        goes_on = False
        if src is not None:
            question = Question.of(src, None, at, context)
            each = ROOM_IPV4 if question.src.version == 4 else ROOM_IPV6
            answer = min(measurements * each, self.config.max_length // 2)
            prompt = self.prompts([question], order=(Field.SRC, Field.TIME), tail=(), answer=answer)[0]
            beginning, notes, goes_on = prompt.ids, prompt.notes, True
            if prompt.used and question.seconds is None:
                # The context has said the source, and nothing else is known of the next one.
                beginning, goes_on = beginning[:-1], False
        made = generate(self, beginning, histories, measurements, temperature, seed, goes_on=goes_on)
        return replace(made, notes=(*notes, *made.notes))

    def scorer(self) -> Scorer:
        """Scores measurements of a stream in bits; see `ping_llm.query.score`."""
        return Scorer(self)

    def _tree(
        self,
        src: Address | None,
        dst: Address | None,
        at: Time | None,
        context: Known | None,
        field: str,
        bits: int | None,
        version: int | None,
    ) -> AddressTree:
        if field not in ("src", "dst"):
            raise UsageError(f"the field {field!r} is no address: complete src or dst")
        if field == "src":
            if context is not None:
                raise UsageError("a context says what the source is: there is nothing to complete")
            known = None if dst is None else as_prefix(dst, "destination")
            partial = None if src is None else as_prefix(src, "source")
            within = partial or nothing(known.version if known is not None else version or 4)
            if known is not None and known.version != within.version:
                raise UsageError(f"the source {within} and the destination {known} differ in IP version")
            seconds = None if at is None else as_seconds(at)
            return source_tree(self, known, seconds, within, _depth(within, bits))
        if src is None:
            raise UsageError("say the source: a destination is completed for a source")
        question = Question.of(src, dst, at, context)
        within = question.dst or nothing(question.src.version)
        return destination_tree(self, question, within, _depth(within, bits))

    def prompts(
        self,
        questions: Sequence[Question],
        *,
        order: Sequence[Field] = ONE_ORDER,
        tail: Sequence[int] = (RTT,),
        answer: int | None = None,
    ) -> list[Prompt]:
        """The questions as tokens: with `answer` more, at most the length that the model was trained on."""
        room = self.config.max_length - 1 - (self.encoding.bytes if answer is None else answer)
        return build_prompts(questions, self.encoding, room, order=order, tail=tail)

    def distributions(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, RttDistribution]]:
        """The distribution of the RTT after prompts that end in RTT, as (index, distribution)."""
        return rtt_query.distributions(self.engine, self.encoding, [prompt.ids for prompt in prompts])


def _depth(within: Prefix, bits: int | None) -> int:
    """Bytes of the answers."""
    whole = within.address_bits
    if bits is None:
        return whole // 8
    if bits % 8 or not within.bits <= bits <= whole:
        raise UsageError(f"answers of {bits} bits: give a multiple of 8 from {within.bits} to {whole}")
    return max(bits // 8, -(-within.bits // 8))


def _answer(question: Question, prompt: Prompt, parts: Sequence[RttDistribution]) -> RttAnswer:
    notes = list(prompt.notes)
    distribution = parts[0] if len(parts) == 1 else mix(parts)
    if distribution.unresolved > 1e-3:
        notes.append(f"probabilities of single milliseconds are exact to {distribution.unresolved:.2g} only")
    return RttAnswer(question, distribution, prompt.given, prompt.used, tuple(notes))
