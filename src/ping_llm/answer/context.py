"""A question, its context of earlier measurements, and both as tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import permutations

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.interchange import Table, is_table
from ping_llm.measurements.addresses import Prefix, pack_one, parse_prefix, unnamed, unpack_one
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import END_TIME, MIN_TIME, Measurement
from ping_llm.tokens import vocab
from ping_llm.tokens.reference import encode_address, encode_time
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.vocab import Field

_MICROSECONDS = 1_000_000
_LAST_SECOND = int(END_TIME.timestamp())


@dataclass(frozen=True)
class Context:
    """Measurements of one source in time order; those without a time (-1) may be anywhere.

    Attributes:
      src: uint8 [n, 16].
      dst: uint8 [n, 16].
      time: int64 [n], µs since 1970; NO_TIME: not known.
      rtt: float64 [n], ms; -1 for no reply.
      rank: int64 [n]: 0 is the most relevant; the largest ranks are left out first when not all fit.
      known: bytes of each destination that are stated; 0: all.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    rtt: np.ndarray
    rank: np.ndarray
    known: int = 0

    def __len__(self) -> int:
        return len(self.rtt)

    @property
    def seconds(self) -> np.ndarray:
        """Since 1970; -1: not known."""
        return self.time // _MICROSECONDS

    def columns(self) -> Columns:
        return Columns(self.time, self.src, self.dst, self.rtt)

    @classmethod
    def of(
        cls,
        src: np.ndarray | bytes,
        dst: np.ndarray,
        time: np.ndarray,
        rtt: np.ndarray,
        rank: np.ndarray | None = None,
    ) -> "Context":
        """From columns of rows (time in µs), in any order. By default the newest have the lowest rank."""
        count = len(rtt)
        if isinstance(src, bytes):
            src = np.frombuffer(src, np.uint8)
        source = np.broadcast_to(src, (count, 16))
        time = np.asarray(time, np.int64)
        order = np.argsort(time, kind="stable")
        ranks = np.arange(count)[::-1] if rank is None else np.asarray(rank)[order]
        return cls(
            source[order], np.asarray(dst)[order], time[order], np.asarray(rtt, np.float64)[order], ranks
        )

    @classmethod
    def from_measurements(cls, measurements: Sequence[Measurement] | Table) -> "Context":
        """From measurements one by one, or a table of src_addr, dst_addr, rtt and, if known, event_time."""
        if is_table(measurements):
            from ping_llm.answer.table import context_of_table

            return context_of_table(measurements)
        assert isinstance(measurements, Sequence)
        packed = [
            np.frombuffer(b"".join(map(pack_one, texts)), np.uint8).reshape(-1, 16)
            for texts in ([m.src_addr for m in measurements], [m.dst_addr for m in measurements])
        ]
        time = np.array([microseconds_of(m.event_time) for m in measurements], np.int64)
        return cls.of(packed[0], packed[1], time, np.array([m.rtt for m in measurements], np.float64))

    @classmethod
    def empty(cls) -> "Context":
        none = np.zeros((0, 16), np.uint8)
        return cls(none, none, np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))

    def take(self, index: np.ndarray) -> "Context":
        columns = (self.src, self.dst, self.time, self.rtt, self.rank)
        src, dst, time, rtt, rank = (column[index] for column in columns)
        return Context(src, dst, time, rtt, rank, self.known)

    def scrambled(self, key: int) -> "Context":
        """The same with pseudonyms of the destinations."""
        from ping_llm.measurements.scramble import pseudonyms  # imported late: it loads Numba

        dst, known = pseudonyms(self.dst, key)
        return replace(self, dst=dst, known=known)


@dataclass(frozen=True)
class Question:
    """Source, destination, time and context of a question. Addresses may be prefixes.

    Attributes:
      time: µs since 1970; None: not known.
    """

    src: Prefix
    dst: Prefix | None = None
    time: int | None = None
    context: Context | None = None

    @property
    def seconds(self) -> int | None:
        """Seconds since 1970, the resolution of tokens."""
        return None if self.time is None else self.time // _MICROSECONDS

    @property
    def is_uneven(self) -> bool:
        """Whether an address is a prefix that ends inside a byte, which tokens cannot state."""
        return bool(self.src.bits % 8 or (self.dst is not None and self.dst.bits % 8))

    @classmethod
    def of(
        cls,
        src: str | Prefix,
        dst: str | Prefix | None = None,
        at: datetime | int | float | str | None = None,
        context: Context | Sequence[Measurement] | Table | None = None,
    ) -> "Question":
        """A question from what a user gives.

        Args:
          src, dst: addresses, or prefixes such as 203.0.113.0/24 or 203.0.113.?
          at: a datetime, seconds since 1970 or an ISO text; not given: not known.
          context: past measurements of the source: a context, measurements, or a table of them.

        Raises:
          UsageError: what cannot be, and why.
        """
        source, destination = as_prefix(src, "source"), None
        if dst is not None:
            destination = as_prefix(dst, "destination")
            if source.version != destination.version:
                raise UsageError(
                    f"the source {source} is IPv{source.version}, the destination {destination} "
                    f"IPv{destination.version}: both must have the same IP version"
                )
        if context is not None and not isinstance(context, Context):
            context = Context.from_measurements(context)
        question = cls(source, destination, None if at is None else as_microseconds(at), context)
        question.check_context()
        return question

    def scrambled(self, key: int) -> "Question":
        """The same with pseudonyms under a key in place of all addresses (`measurements.scramble`)."""
        from ping_llm.measurements.scramble import pseudonym

        return Question(
            pseudonym(self.src, key),
            None if self.dst is None else pseudonym(self.dst, key),
            self.time,
            None if self.context is None else self.context.scrambled(key),
        )

    def check_context(self) -> None:
        if self.context is None or not len(self.context):
            return
        sources = np.unique(self.context.src, axis=0)
        if len(sources) == 1 and self.src == unnamed(self.src.version):
            return
        for packed in sources:
            if not self.src.covers(packed.tobytes()):
                raise UsageError(
                    f"a context must be of the source of the question, {self.src}; a measurement has "
                    f"{unpack_one(packed.tobytes())}"
                )


@dataclass(frozen=True)
class Prompt:
    """The tokens of a question up to where the answer begins."""

    ids: np.ndarray
    #: Measurements of the context: given, included in the prompt, and not earlier than the question.
    given: int
    used: int
    late: int
    #: Largest number of tokens of context and question.
    room: int
    #: Number of leading ids that are the context.
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


def as_prefix(address: str | Prefix, what: str) -> Prefix:
    if isinstance(address, Prefix):
        return address
    try:
        return parse_prefix(address)
    except ValueError as error:
        raise UsageError(f"the {what} {error}") from None


def as_microseconds(at: datetime | int | float | str) -> int:
    """µs since 1970 of a time, a number of seconds, an ISO text or "now"; without a zone it is UTC."""
    if isinstance(at, str) and at.strip().lower() == "now":
        at = datetime.now(UTC)
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            try:
                at = float(str(at))
            except ValueError:
                raise UsageError(
                    f"the time must be like 2024-05-01T12:00:00Z, seconds since 1970 or now, not {at!r}"
                ) from None
    seconds = microseconds_of(at) / _MICROSECONDS if isinstance(at, datetime) else at
    if not 0 <= seconds < _LAST_SECOND:  # nan and infinities are not within either
        raise UsageError(
            f"the time must be within {MIN_TIME:%Y} to {END_TIME:%Y}, not {seconds} s since 1970"
        )
    return microseconds_of(at) if isinstance(at, datetime) else math.floor(at * _MICROSECONDS + 0.5)


def microseconds_of(time: datetime) -> int:
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return round((time - MIN_TIME).total_seconds() * _MICROSECONDS)


def address_tokens(address: Prefix, field: Field) -> list[int]:
    """The tokens of an address or of a prefix that ends at a byte."""
    if not address.is_whole and (address.bits % 8 or address.bits < 8):
        raise UsageError(f"the prefix {address} must end at a byte: /8, /16, /24 …")
    return encode_address(field, address)


def build_prompts(
    questions: Sequence[Question],
    encoding: RttEncoding,
    room: int,
    *,
    order: Sequence[Field] = (Field.SRC, Field.DST, Field.TIME),
    tail: Sequence[int] = (),
) -> list[Prompt]:
    """Contexts and questions as tokens: measurements, then MEASUREMENT, the known fields in `order`, and
    `tail`.

    The source stands once, at the beginning, as in most training contexts. Measurements that are not
    earlier than the asked time are left out; so are the least relevant where not all fit into `room`
    tokens.
    """
    contexts = [
        _fitting(question, encoding, room - _question_length(question) - len(tail)) for question in questions
    ]
    bodies = _encode(questions, contexts, encoding)
    prompts = []
    for question, context, body in zip(questions, contexts, bodies, strict=True):
        timed = context.seconds[context.seconds >= 0]
        previous = int(timed[-1]) if len(timed) else None
        ids = [vocab.MEASUREMENT]
        for field in order:
            if field is Field.SRC and not len(context):
                ids += address_tokens(question.src, field)
            elif field is Field.DST and question.dst is not None:
                ids += address_tokens(question.dst, field)
            elif field is Field.TIME and question.seconds is not None:
                ids += encode_time(question.seconds, previous)
        given = late = 0
        if question.context is not None:
            given = len(question.context)
            if question.seconds is not None:
                late = int((question.context.seconds >= question.seconds).sum())
        tokens = np.concatenate([body, ids, tail]).astype(np.int32)
        prompts.append(Prompt(tokens, given, len(context), late, room, len(body)))
    return prompts


def _question_length(question: Question) -> int:
    """Tokens of the question itself, at most."""
    width = 17 if question.src.version == 6 else 5
    return 1 + 2 * width + 9


def _fitting(question: Question, encoding: RttEncoding, room: int) -> Context:
    context = question.context
    if context is None or not len(context):
        return Context.empty()
    if question.seconds is not None:
        context = context.take(context.seconds < question.seconds)
    # At most: role and address, time (absolute for the first, then mostly short), result, MEASUREMENT.
    address = context.known + 2 if context.known else 17 if question.src.version == 6 else 5
    while len(context):
        timed = context.seconds[context.seconds >= 0]
        deltas = np.diff(timed)
        times = 9 * min(len(timed), 1) + np.where(deltas > vocab.LARGEST_DELTA1, 5, 2).sum()
        results = np.where(context.rtt < 0, 1, 1 + encoding.bytes).sum()
        excess = int(address + len(context) * (1 + address) + times + results) - room
        if excess <= 0:
            break
        # The smallest measurement has so many tokens: drop no more than is surely needed at a time.
        drop = max(1, excess // (2 + address + 9 + encoding.bytes + 1))
        keep = np.sort(np.argsort(context.rank, kind="stable")[: max(len(context) - drop, 0)])
        context = context.take(keep)
    return context


def _encode(
    questions: Sequence[Question], contexts: Sequence[Context], encoding: RttEncoding
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
    for question, start, count in zip(questions, starts, counts, strict=True):
        if count:
            columns.src[start] = np.frombuffer(question.src.packed, np.uint8)
            columns.src_known[start] = 0 if question.src.is_whole else question.src.bits // 8
    timed = columns.seconds >= 0
    for first in (True, False):
        for has_time in (True, False):
            rows = (columns.first == first) & (timed == has_time)
            order = [Field.SRC] * first + [Field.DST] + [Field.TIME] * has_time + [Field.RESULT]
            columns.order[rows, : len(order)] = order
    ids, offsets = encode_columns(columns, encoding)
    return [ids[offsets[start] : offsets[start + count]] for start, count in zip(starts, counts, strict=True)]


#: The order of a single pass.
ONE_ORDER = (Field.SRC, Field.DST, Field.TIME)


def orders_of(question: Question) -> list[tuple[Field, ...]]:
    """All orders of the fields that the question states itself (a context has already stated the source)."""
    stated = []
    if question.context is None or not len(question.context):
        stated.append(Field.SRC)
    if question.dst is not None:
        stated.append(Field.DST)
    if question.seconds is not None:
        stated.append(Field.TIME)
    return list(permutations(stated))
