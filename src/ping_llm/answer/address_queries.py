"""Questions about addresses: complete them, find those at an RTT, sample whole measurements."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

import numpy as np

from ping_llm.answer.address_tree import AddressTree, Completions
from ping_llm.answer.complete import (
    CANDIDATES,
    Inverse,
    destination_tree,
    inverse,
    nothing,
    source_tree,
    weighed,
    with_chances,
)
from ping_llm.answer.conditions import Conditions, Given
from ping_llm.answer.context import Context, Measured, Question, as_microseconds, as_prefix
from ping_llm.answer.generate import ROOM_IPV4, ROOM_IPV6, Generated, generate
from ping_llm.answer.results import INVERSE_PASSES, PASSES
from ping_llm.answer.score import Scorer
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix
from ping_llm.tokens.reference import encode_optional
from ping_llm.tokens.vocab import OPTIONAL, OPTIONAL_LENGTHS, Field

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

Address = str | Prefix
Time = datetime | int | float | str
Known = Context | Measured


class AddressQueries:
    """The part of `Model` whose answers are addresses."""

    @property
    def _whole(self) -> "Model":
        return cast("Model", self)

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
        passes: int = PASSES,
        conditions: Given = None,
    ) -> Completions:
        """Return the most probable completions of a partial address.

        The list is exact unless the search reached its limit. Then `exact` is False, and the list holds the
        completions found so far, which are the most probable ones.

        Args:
          src, dst: one is the partial address (a prefix or None), the other is the known address.
          field: which of them to complete, "dst" or "src".
          count: number of completions.
          bits: complete to prefixes of this length instead of whole addresses (a multiple of 8).
          version: 4 or 6, where neither address is given.
          passes: limit of the search, in passes through the network.
          conditions: as for `rtt`.
        """
        return self._tree(src, dst, at, context, field, bits, version, conditions).top(count, passes)

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
        conditions: Given = None,
    ) -> list[Prefix]:
        """Sample completions of a partial address."""
        tree = self._tree(src, dst, at, context, field, bits, version, conditions)
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
        raw: bool = False,
        passes: int = INVERSE_PASSES,
        conditions: Given = None,
    ) -> Inverse:
        """Find destinations at low <= RTT < high ms from a source: P(dst | src, RTT in the range).

        The network finds candidates, which are then weighted by their calibrated RTTs (not with `raw`).
        `passes` limits the search, as in `complete`.
        """
        question = Question.of(src, within, at, context, conditions)
        limit = question.dst or nothing(question.src.version)
        depth = _depth(limit, bits)
        # The network gets the most relevant measurements of the source; calibrated answers use all of them.
        shown = question
        if self._whole.data is not None and context is None:
            most = max(self._whole.config.max_length // 11, 4)
            shown = replace(question, context=self._whole.data.context(question, most))
        if raw or self._whole.stack is None:
            found = inverse(self._whole, shown, low, high, limit, depth, count, passes)
            return found if raw else with_chances(self._whole, found, question, low, high)
        found = inverse(self._whole, shown, low, high, limit, depth, max(CANDIDATES * count, 32), passes)
        return weighed(self._whole, found, question, low, high, count)

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
        prefixes: bool = False,
        conditions: Given = None,
    ) -> Generated:
        """Sample measurements: of any source, of a given source, or as a continuation of its history.

        The context may take up to half of the length that the model was trained on. Addresses are whole
        unless `prefixes` is True. All new measurements state the values of `conditions` (as for `rtt`).
        """
        given = Conditions.of(conditions)
        self._whole.check_conditions(given)
        beginning = np.zeros(0, np.int32)
        notes: tuple[str, ...] = ()
        goes_on = False
        if src is not None:
            question = Question.of(src, None, at, context, given)
            each = ROOM_IPV4 if question.src.version == 4 else ROOM_IPV6
            each += sum(OPTIONAL_LENGTHS[name] for name in self._whole.optional_fields)
            answer = min(measurements * each, self._whole.config.max_length // 2)
            prompt = self._whole.prompts([question], order=(Field.SRC, Field.TIME), tail=(), answer=answer)[0]
            beginning, notes, goes_on = prompt.ids, prompt.notes, True
            if prompt.used and question.seconds is None:
                # The context has stated the source, so the next measurement begins without it.
                beginning, goes_on = prompt.context, False
        made = generate(
            self._whole,
            beginning,
            histories,
            measurements,
            temperature,
            seed,
            goes_on=goes_on,
            prefixes=prefixes,
            stated=[
                token
                for name, value in given.stated.items()
                for token in encode_optional(OPTIONAL[name], value)
            ],
        )
        return replace(made, notes=(*notes, *made.notes))

    def scorer(self) -> Scorer:
        """Return a scorer that gives the bits of measurements in a stream; see `ping_llm.answer.score`."""
        return Scorer(self._whole)

    def _tree(
        self,
        src: Address | None,
        dst: Address | None,
        at: Time | None,
        context: Known | None,
        field: str,
        bits: int | None,
        version: int | None,
        conditions: Given,
    ) -> AddressTree:
        if field not in ("src", "dst"):
            raise UsageError(f"field must be src or dst, not {field!r}")
        if field == "src":
            if context is not None:
                raise UsageError(
                    "a context must not be given with field src: it has measurements of a known source"
                )
            known = None if dst is None else as_prefix(dst, "destination")
            partial = None if src is None else as_prefix(src, "source")
            within = partial or nothing(known.version if known is not None else version or 4)
            if known is not None and known.version != within.version:
                raise UsageError(
                    f"the source {within} and the destination {known} must have the same IP version"
                )
            seconds = None if at is None else as_microseconds(at) // 1_000_000
            given = Conditions.of(conditions)
            return source_tree(self._whole, known, seconds, within, _depth(within, bits), given)
        if src is None:
            raise UsageError("src must be given to complete a destination")
        question = Question.of(src, dst, at, context, conditions)
        within = question.dst or nothing(question.src.version)
        return destination_tree(self._whole, question, within, _depth(within, bits))


def _depth(within: Prefix, bits: int | None) -> int:
    """Number of leading address bytes in each completion."""
    whole = within.address_bits
    if bits is None:
        return whole // 8
    if bits % 8 or not within.bits <= bits <= whole:
        raise UsageError(f"bits must be a multiple of 8 from {within.bits} to {whole}, not {bits}")
    return max(bits // 8, -(-within.bits // 8))
