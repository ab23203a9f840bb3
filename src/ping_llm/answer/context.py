"""A question, and its context of earlier measurements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.conditions import COLUMNS, LARGEST, NO_CONDITIONS, Conditions, array_of
from ping_llm.errors import UsageError
from ping_llm.interchange import Table, is_table
from ping_llm.measurements.addresses import Prefix, is_ipv4, pack_one, parse_prefix, unnamed, unpack_one
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import END_TIME, MAX_RTT_MS, MIN_TIME, Measurement, is_rtt

#: What can be read as measurements: a file, measurements, dictionaries of their fields, or a table.
Measured = str | Path | Sequence[Measurement] | Sequence[Mapping[str, Any]] | Table

_MICROSECONDS = 1_000_000
_LAST_SECOND = int(END_TIME.timestamp())


@dataclass(frozen=True)
class Context:
    """Measurements of one source, in time order; those without a time (-1) may be anywhere.

    A context for `base` may hold measurements of several sources.

    Attributes:
      src: uint8 [n, 16].
      dst: uint8 [n, 16].
      time: int64 [n], µs since 1970; NO_TIME: unknown.
      rtt: float64 [n], ms; -1 for no reply.
      rank: int64 [n]. 0 is the most relevant measurement; if not all fit, the largest ranks are left out.
      known: number of bytes of each destination that are stated; 0: all.
      also: further columns of the measurements table by name, [n] each; -1: unknown.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    rtt: np.ndarray
    rank: np.ndarray
    known: int = 0
    also: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rtt)

    def column(self, name: str) -> np.ndarray:
        """Return a further column; all -1 if it was not given."""
        return self.also[name] if name in self.also else np.full(len(self), -1, np.int64)

    @property
    def seconds(self) -> np.ndarray:
        """Seconds since 1970; -1: unknown."""
        return self.time // _MICROSECONDS

    def columns(self) -> Columns:
        return Columns(self.time, self.src, self.dst, self.rtt, **self.also)

    @classmethod
    def of(
        cls,
        src: np.ndarray | bytes,
        dst: np.ndarray,
        time: np.ndarray,
        rtt: np.ndarray,
        rank: np.ndarray | None = None,
        also: Mapping[str, np.ndarray] | None = None,
    ) -> "Context":
        """Make a context from columns (time in µs) in any row order. By default the newest rank first."""
        count = len(rtt)
        if isinstance(src, bytes):
            src = np.frombuffer(src, np.uint8)
        source = np.broadcast_to(src, (count, 16))
        time = np.asarray(time, np.int64)
        order = np.argsort(time, kind="stable")
        ranks = np.arange(count)[::-1] if rank is None else np.asarray(rank)[order]
        return cls(
            source[order], np.asarray(dst)[order], time[order], np.asarray(rtt, np.float64)[order], ranks,
            also={name: column[order] for name, column in (also or {}).items()},
        )  # fmt: skip

    @classmethod
    def of_columns(cls, known: Columns, rank: np.ndarray | None = None) -> "Context":
        """Make a context from a table of measurements, with all of its optional columns."""
        return cls.of(known.src, known.dst, known.time, known.rtt, rank, known.optional())

    @classmethod
    def from_measurements(cls, measurements: "Measured") -> "Context":
        """Make a context from measurements, dictionaries of their fields, a table, or the path of a file.

        A table has the columns src_addr, dst_addr, rtt and, if known, event_time.
        """
        given: Any = measurements
        if isinstance(given, str | Path):
            from ping_llm.answer.files import read_columns

            return cls.of_columns(read_columns(Path(given), optional=LARGEST))
        if isinstance(given, Sequence) and any(isinstance(one, Mapping) for one in given):
            given = _table_of_dictionaries(given)
        if is_table(given):
            from ping_llm.answer.table import context_of_table

            return context_of_table(given)
        rows = given if isinstance(given, Sequence) else ()
        known = [one for one in rows if isinstance(one, Measurement)]
        if not isinstance(given, Sequence) or len(known) < len(given):
            raise UsageError(
                f"{_words(given)} cannot be read as measurements: give a path, a list of Measurement "
                "or of dictionaries, or a table of pandas, polars or pyarrow"
            )
        try:
            packed = [
                np.frombuffer(b"".join(map(pack_one, texts)), np.uint8).reshape(-1, 16)
                for texts in ([m.src_addr for m in known], [m.dst_addr for m in known])
            ]
        except ValueError as error:
            raise UsageError(f"a measurement of the context: {error}") from None
        time = np.array([microseconds_of(m.event_time) for m in known], np.int64)
        also = {name: array_of(name, [getattr(m, name) for m in known]) for name in COLUMNS.values()}
        rtt = np.array([m.rtt for m in known], np.float64)
        wrong = np.flatnonzero(~is_rtt(rtt) | (is_ipv4(packed[0]) != is_ipv4(packed[1])))
        if len(wrong):
            one = known[wrong[0]]
            raise UsageError(
                f"measurement {wrong[0]} of the context: "
                + (
                    f"{one.src_addr} and {one.dst_addr} must have the same IP version"
                    if is_rtt(one.rtt)
                    else f"rtt must be -1 (no reply) or 0 to {MAX_RTT_MS:,.0f} ms, not {one.rtt}"
                )
            )
        return cls.of(packed[0], packed[1], time, rtt, also=also)

    @classmethod
    def empty(cls) -> "Context":
        none = np.zeros((0, 16), np.uint8)
        return cls(none, none, np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))

    def take(self, index: np.ndarray) -> "Context":
        columns = (self.src, self.dst, self.time, self.rtt, self.rank)
        src, dst, time, rtt, rank = (column[index] for column in columns)
        also = {name: column[index] for name, column in self.also.items()}
        return Context(src, dst, time, rtt, rank, self.known, also)

    def scrambled(self, key: int) -> "Context":
        """Return a copy with pseudonyms of the destinations."""
        from ping_llm.measurements.scramble import pseudonyms  # imported late: it loads Numba

        dst, known = pseudonyms(self.dst, key)
        return replace(self, dst=dst, known=known)


@dataclass(frozen=True)
class Question:
    """Source, destination, time, context and conditions of a question. Addresses may be prefixes.

    Attributes:
      time: µs since 1970; None: unknown.
      conditions: further stated values, for networks that were trained on them.
    """

    src: Prefix
    dst: Prefix | None = None
    time: int | None = None
    context: Context | None = None
    conditions: Conditions = NO_CONDITIONS

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
        context: "Context | Measured | None" = None,
        conditions: Conditions | Mapping[str, float] | None = None,
    ) -> "Question":
        """Make a question from user input.

        Args:
          src, dst: addresses, or prefixes such as 203.0.113.0/24 or 203.0.113.?
          at: a datetime, seconds since 1970 or an ISO text; None: unknown.
          context: past measurements of the source: a context, or what `Context.from_measurements` takes.
          conditions: any of `size`, `errors`, `msm_id`, `probe_id`, `throughput`.

        Raises:
          UsageError: a value is invalid; the message gives the reason.
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
        time = None if at is None else as_microseconds(at)
        question = cls(source, destination, time, context, Conditions.of(conditions))
        question.check_context()
        return question

    def scrambled(self, key: int) -> "Question":
        """Return a copy with all addresses replaced by pseudonyms under a key (`measurements.scramble`)."""
        from ping_llm.measurements.scramble import pseudonym

        return Question(
            pseudonym(self.src, key),
            None if self.dst is None else pseudonym(self.dst, key),
            self.time,
            None if self.context is None else self.context.scrambled(key),
            self.conditions,
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
                    f"all measurements of a context must have the question's source {self.src}, and one has "
                    f"{unpack_one(packed.tobytes())}"
                )


def _table_of_dictionaries(rows: Sequence[Any]) -> dict[str, list[Any]]:
    if not all(isinstance(row, Mapping) for row in rows):
        raise UsageError("a list of dictionaries must hold nothing else")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _words(value: object) -> str:
    """The type of a value, and of what a list holds besides measurements."""
    name = type(value).__name__
    if not isinstance(value, Sequence):
        return name
    other = next(one for one in value if not isinstance(one, Measurement))
    return f"a {name} with {type(other).__name__}"


def as_prefix(address: str | Prefix, what: str) -> Prefix:
    if isinstance(address, Prefix):
        return address
    try:
        return parse_prefix(address)
    except ValueError as error:
        raise UsageError(f"the {what} {error}") from None


def as_microseconds(at: datetime | int | float | str) -> int:
    """Convert a datetime, a number of seconds, an ISO text or "now" to µs since 1970.

    A time without a zone is UTC.
    """
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
