"""Prompts: questions and their contexts as tokens, up to where the answer begins."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ping_llm.answer.conditions import COLUMNS
from ping_llm.answer.context import Context, Question
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix
from ping_llm.tokens import vocab
from ping_llm.tokens.reference import encode_address, encode_optional, encode_time
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.vocab import OPTIONAL, OPTIONAL_LENGTHS, Field


@dataclass(frozen=True)
class Prompt:
    """The tokens of a question up to where the answer begins."""

    ids: np.ndarray
    #: Numbers of context measurements: given, included in the prompt, and left out because they are not
    #: earlier than the question.
    given: int
    used: int
    late: int
    #: Largest number of tokens of context and question.
    room: int
    #: Number of leading ids that belong to the context.
    context_ids: int = 0

    @property
    def context(self) -> np.ndarray:
        return self.ids[: self.context_ids]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about measurements that were left out."""
        notes = []
        if self.late:
            notes.append(
                f"{self.late} of {self.given} known measurements were left out: "
                "they are not earlier than the time of the question"
            )
        if too_many := self.given - self.late - self.used:
            notes.append(
                f"{too_many} of {self.given} known measurements were left out, the least relevant: "
                f"only {self.room} tokens are available"
            )
        return tuple(notes)


def address_tokens(address: Prefix, field: Field) -> list[int]:
    """The tokens of an address or of a prefix that ends at a byte."""
    if not address.is_whole and (address.bits % 8 or address.bits < 8):
        raise UsageError(f"the prefix {address} must end at a byte: /8, /16, /24 …")
    return encode_address(field, address)


#: Default order of a question's fields, where not all orders are averaged.
ONE_ORDER = (Field.SRC, Field.DST, Field.TIME)


def build_prompts(
    questions: Sequence[Question],
    encoding: RttEncoding,
    room: int,
    *,
    order: Sequence[Field] = ONE_ORDER,
    tail: Sequence[int] = (),
    optional: Collection[str] = (),
) -> list[Prompt]:
    """Encode contexts and questions: measurements, then MEASUREMENT, the known fields in `order`, and `tail`.

    The source is stated once, at the beginning, as in most training contexts. Measurements that are not
    earlier than the question's time are left out. So are the least relevant ones, if not all fit into `room`
    tokens.

    Args:
      order: order of the question's fields; conditions that it does not name come after them.
      optional: names of the optional fields that the measurements of a context state, where they are known.
    """
    contexts = [
        _fitting(question, encoding, room - _question_length(question) - len(tail), optional)
        for question in questions
    ]
    bodies = _encode(questions, contexts, encoding, optional)
    prompts = []
    for question, context, body in zip(questions, contexts, bodies, strict=True):
        timed = context.seconds[context.seconds >= 0]
        previous = int(timed[-1]) if len(timed) else None
        conditions = {OPTIONAL[name]: value for name, value in question.conditions.stated.items()}
        ids = [vocab.MEASUREMENT]
        for field in (*order, *(field for field in conditions if field not in order)):
            if field is Field.SRC and not len(context):
                ids += address_tokens(question.src, field)
            elif field is Field.DST and question.dst is not None:
                ids += address_tokens(question.dst, field)
            elif field is Field.TIME and question.seconds is not None:
                ids += encode_time(question.seconds, previous)
            elif field in conditions:
                ids += encode_optional(field, conditions[field])
        given = late = 0
        if question.context is not None:
            given = len(question.context)
            if question.seconds is not None:
                late = int((question.context.seconds >= question.seconds).sum())
        tokens = np.concatenate([body, ids, tail]).astype(np.int32)
        prompts.append(Prompt(tokens, given, len(context), late, room, len(body)))
    return prompts


def _question_length(question: Question) -> int:
    """Upper bound on the tokens of the question itself."""
    width = 17 if question.src.version == 6 else 5
    return 1 + 2 * width + 9 + sum(OPTIONAL_LENGTHS[name] for name in question.conditions.stated)


def _fitting(question: Question, encoding: RttEncoding, room: int, optional: Collection[str]) -> Context:
    context = question.context
    if context is None or not len(context):
        return Context.empty()
    if question.seconds is not None:
        context = context.take(context.seconds < question.seconds)
    # Upper bound: role and address, time (absolute for the first, then mostly short), result, MEASUREMENT.
    address = context.known + 2 if context.known else 17 if question.src.version == 6 else 5
    longest = 2 + address + 9 + encoding.bytes + 1 + sum(OPTIONAL_LENGTHS[name] for name in optional)
    while len(context):
        timed = context.seconds[context.seconds >= 0]
        deltas = np.diff(timed)
        times = 9 * min(len(timed), 1) + np.where(deltas > vocab.LARGEST_DELTA1, 5, 2).sum()
        results = np.where(context.rtt < 0, 1, 1 + encoding.bytes).sum()
        further = sum(
            OPTIONAL_LENGTHS[name] * int((context.column(COLUMNS[name]) >= 0).sum()) for name in optional
        )
        excess = int(address + len(context) * (1 + address) + times + results) + further - room
        if excess <= 0:
            break
        # `longest` is the size of the largest measurement, so this drops no more than is certainly needed.
        drop = max(1, excess // longest)
        keep = np.sort(np.argsort(context.rank, kind="stable")[: max(len(context) - drop, 0)])
        context = context.take(keep)
    return context


def _encode(
    questions: Sequence[Question],
    contexts: Sequence[Context],
    encoding: RttEncoding,
    optional: Collection[str],
) -> list[np.ndarray]:
    """The tokens of each context."""
    counts = np.array([len(context) for context in contexts])
    total = int(counts.sum())
    if total == 0:
        return [np.zeros(0, np.int32)] * len(contexts)
    from ping_llm.tokens.columns import StatementColumns, encode_columns  # imported late: it loads Numba

    columns = StatementColumns.empty(total)
    starts = np.cumsum(counts) - counts
    columns.first[starts[counts > 0]] = True
    columns.dst[:] = np.concatenate([context.dst for context in contexts])
    columns.dst_known[:] = np.repeat([context.known for context in contexts], counts)
    columns.seconds[:] = np.concatenate([context.seconds for context in contexts])
    columns.rtt[:] = np.concatenate([context.rtt for context in contexts])
    for name in optional:
        getattr(columns, name)[:] = np.concatenate([context.column(COLUMNS[name]) for context in contexts])
    for question, start, count in zip(questions, starts, counts, strict=True):
        if count:
            columns.src[start] = np.frombuffer(question.src.packed, np.uint8)
            columns.src_known[start] = 0 if question.src.is_whole else question.src.bits // 8
    columns.state(optional)
    ids, offsets = encode_columns(columns, encoding)
    return [ids[offsets[start] : offsets[start + count]] for start, count in zip(starts, counts, strict=True)]


def orders_of(question: Question) -> list[tuple[Field, ...]]:
    """All orders of the ends and the time that the question states; conditions come after them.

    With a context, the question does not state the source, because the context has.
    """
    stated = []
    if question.context is None or not len(question.context):
        stated.append(Field.SRC)
    if question.dst is not None:
        stated.append(Field.DST)
    if question.seconds is not None:
        stated.append(Field.TIME)
    return list(permutations(stated))
