"""The reference codec: the specification in Python, and the reference for tests of the compiled codec.

    Context     ::= Measurement{0..}
    Measurement ::= MEASUREMENT Field{2..}           fields in any order, each at most once
    Src / Dst   ::= ROLE byte{4 or 16}  |  ROLE byte{1..n-1} PREFIX_END
    Time        ::= TIME_ABS byte{8}  |  TIME_DELTA1 byte  |  TIME_DELTA4 byte{4}
    Result      ::= RTT byte{k}  |  FAILED
    Size ::= SIZE byte{2}   Errors ::= ERRORS byte   MsmId ::= MSM_ID byte{8}
    ProbeId ::= EXTRA 01 byte{4}   Throughput ::= EXTRA 02 byte{2}

It takes about 20 µs to encode a measurement and 80 µs to decode one, fast enough for questions and tests.
Contexts for training are made by the compiled functions of codec.py, which are a hundred times as fast.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np

from ping_llm.errors import PingError
from ping_llm.measurements.addresses import MAPPED_PREFIX, Prefix
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.measurements.throughput import mbps_of, plain_code
from ping_llm.tokens import vocab
from ping_llm.tokens.rtt import RttEncoding, rtt_encoding
from ping_llm.tokens.statement import Statement, check
from ping_llm.tokens.vocab import (
    BYTE0,
    FIELD_OF_EXTRA,
    FIELD_OF_ROLE,
    LEAST_FIELDS,
    VOCABULARY_SIZE,
    Field,
    starts_field,
    token_name,
)


class Problem(IntEnum):
    """All ways in which a token can be wrong. The numbers are codes in the compiled decoder of the tests."""

    NOT_AN_ID = 1  # below 0, above 271, or not an integer
    PADDING = 2  # PAD is never inside a context
    NO_MEASUREMENT = 3  # a context begins with MEASUREMENT
    RESERVED = 4  # a byte after EXTRA that has no meaning
    STRAY_BYTE = 5  # a byte where a field should begin
    STRAY_PREFIX_END = 6  # outside an address, or before its first byte
    MISSING_BYTE = 7  # another role before the field has all its bytes
    REPEATED_FIELD = 8  # the same field twice in one measurement
    TOO_FEW_FIELDS = 9  # a measurement of fewer than two fields
    TRUNCATED = 10  # the sequence ends inside a field
    NO_EARLIER_TIME = 11  # a delta without an earlier time in the context
    OUT_OF_RANGE = 12  # with this byte, the number exceeds the largest value of the field
    MAPPED_ADDRESS = 13  # with this byte, an IPv6 role holds an IPv4 address


class DecodeError(PingError):
    """An invalid sequence; names the first token after which no continuation is valid.

    Attributes:
      position: Index of the token; the length of the sequence if it ends too early.
      problem: What is wrong with the token.
      reason: The problem as a sentence.
    """

    def __init__(self, problem: Problem, ids: Sequence[Any] | np.ndarray, position: int):
        self.problem, self.position = problem, position
        self.reason = _reason(problem, ids, position)
        super().__init__(f"token {position}: {self.reason}")


def _reason(problem: Problem, ids: Sequence[Any] | np.ndarray, position: int) -> str:
    if problem == Problem.NOT_AN_ID:
        return f"{ids[position]} is not a token id: ids are whole numbers from 0 to {VOCABULARY_SIZE - 1}"
    token = _name(ids[position]) if position < len(ids) else "the end"
    field, written = _field_before(ids, position)
    match problem:
        case Problem.PADDING:
            return "PAD inside a context: only what follows a context is padded"
        case Problem.NO_MEASUREMENT:
            return f"a context begins with MEASUREMENT, not with {token}"
        case Problem.RESERVED:
            return f"{token} after EXTRA is reserved: only 01 (a probe id) and 02 (a throughput) may follow"
        case Problem.STRAY_BYTE:
            return f"{token} after the last byte of {field}: a role is due"
        case Problem.STRAY_PREFIX_END:
            return f"PREFIX_END after {written} bytes of {field}: it ends an address of at least one byte"
        case Problem.MISSING_BYTE:
            return f"{token} after {written} bytes of {field}: more bytes are due"
        case Problem.REPEATED_FIELD:
            return f"{token}, but this measurement already has that field"
        case Problem.TOO_FEW_FIELDS:
            return f"{token} after fewer than two fields of a measurement"
        case Problem.TRUNCATED:
            return f"the sequence ends after {written} bytes of {field}"
        case Problem.NO_EARLIER_TIME:
            return f"{token}, but no measurement before it in this context has a time"
        case Problem.OUT_OF_RANGE:
            return f"{token} as byte {written} of {field} makes a number that is too large for it"
        case Problem.MAPPED_ADDRESS:
            return (
                f"{token} as byte {written} of {field} makes an IPv4 address: it belongs under the IPv4 role"
            )


def _name(token: int) -> str:
    return f"the byte {token_name(token)}" if token >= BYTE0 else token_name(token)


def _field_before(ids: Sequence[Any] | np.ndarray, position: int) -> tuple[str, int]:
    """The last role before a position, and the number of tokens in between."""
    for index in range(position - 1, -1, -1):
        if ids[index] >= 0 and starts_field(ids[index]):
            return token_name(ids[index]), position - index - 1
    return "nothing", 0


#: The fields that a role can begin.
_FIELDS_OF_ROLE = {
    role: tuple(field for field, roles in vocab.ROLES.items() if role in roles)
    for role in (*FIELD_OF_ROLE, vocab.EXTRA)
}

#: Number of address bytes for each address role.
_ADDRESS_BYTES = {vocab.SRC_IPV4: 4, vocab.SRC_IPV6: 16, vocab.DST_IPV4: 4, vocab.DST_IPV6: 16}


def encode(statements: Iterable[Statement], encoding: RttEncoding | None = None) -> list[int]:
    """Encode one context.

    Raises:
      EncodeError: a statement holds a value that has no tokens.
    """
    encoding = encoding or rtt_encoding()
    ids: list[int] = []
    previous_seconds = None
    for statement in statements:
        ids += encode_one(statement, previous_seconds, encoding)
        if Field.TIME in statement.order:
            previous_seconds = statement.seconds
    return ids


def encode_one(statement: Statement, previous_seconds: int | None, encoding: RttEncoding) -> list[int]:
    """Encode one measurement; `previous_seconds` is the last time that its context stated, if any."""
    ids = [vocab.MEASUREMENT]
    for field in check(statement):
        ids += _encode_field(field, statement, previous_seconds, encoding)
    return ids


def _encode_field(
    field: Field, statement: Statement, previous_seconds: int | None, encoding: RttEncoding
) -> list[int]:
    value: Any = statement.value(field)
    match field:
        case Field.SRC:
            return encode_address(Field.SRC, value)
        case Field.DST:
            return encode_address(Field.DST, value)
        case Field.TIME:
            return encode_time(value, previous_seconds)
        case Field.RESULT:
            return encode_result(value, encoding)
        case _:
            return encode_optional(field, value)


def encode_optional(field: Field, value: float) -> list[int]:
    match field:
        case Field.SIZE:
            return [vocab.SIZE, *_bytes(value, 2)]
        case Field.ERRORS:
            return [vocab.ERRORS, *_bytes(min(int(value), vocab.LARGEST_ERRORS), 1)]
        case Field.MSM_ID:
            return [vocab.MSM_ID, *_bytes(value, 8)]
        case Field.PROBE_ID:
            return [vocab.EXTRA, *_bytes(vocab.EXTRA_PROBE_ID, 1), *_bytes(value, 4)]
        case Field.THROUGHPUT:
            return [vocab.EXTRA, *_bytes(vocab.EXTRA_THROUGHPUT, 1), *_bytes(plain_code(value), 2)]
    raise ValueError(f"{field.name} is not an optional field")


def encode_address(field: Field, address: Prefix) -> list[int]:
    role_ipv4, role_ipv6 = vocab.ROLES[field]
    role = role_ipv4 if address.version == 4 else role_ipv6
    known = [BYTE0 + byte for byte in address.known_bytes]
    return [role, *known] if address.is_whole else [role, *known, vocab.PREFIX_END]


def encode_time(seconds: int, previous_seconds: int | None) -> list[int]:
    if previous_seconds is not None:
        delta = seconds - previous_seconds
        if 0 <= delta <= vocab.LARGEST_DELTA1:
            return [vocab.TIME_DELTA1, *_bytes(delta, 1)]
        if 0 <= delta <= vocab.LARGEST_DELTA4:
            return [vocab.TIME_DELTA4, *_bytes(delta, 4)]
    return [vocab.TIME_ABS, *_bytes(seconds, 8)]


def encode_result(rtt: float, encoding: RttEncoding) -> list[int]:
    if rtt == NO_REPLY:
        return [vocab.FAILED]
    return [vocab.RTT, *_bytes(encoding.encode(rtt), encoding.bytes)]


def _bytes(number: float, count: int) -> list[int]:
    return [BYTE0 + byte for byte in int(number).to_bytes(count, "big")]


def decode(ids: Sequence[int] | np.ndarray, encoding: RttEncoding | None = None) -> list[Statement]:
    """Decode one context to measurements, with inherited sources and absolute times.

    If the first measurement has no Src, its source is unknown.

    Raises:
      DecodeError: with the position of the first token after which no continuation is valid.
    """
    return _Decoder(ids, encoding or rtt_encoding()).context()


class _Decoder:
    def __init__(self, ids: Sequence[int] | np.ndarray, encoding: RttEncoding):
        self._ids, self._encoding = ids, encoding
        self._position = 0
        self._source: Prefix | None = None
        self._seconds: int | None = None

    def context(self) -> list[Statement]:
        statements = []
        while self._position < len(self._ids):
            statements.append(self._measurement())
        return statements

    def _measurement(self) -> Statement:
        if self._peek() != vocab.MEASUREMENT:
            self._fail(Problem.PADDING if self._peek() == vocab.PAD else Problem.NO_MEASUREMENT)
        self._position += 1
        statement = Statement(order=())
        while self._position < len(self._ids) and self._peek() != vocab.MEASUREMENT:
            role = self._peek()
            field = self._field_that_begins(statement.order)
            statement = self._read_field(role, field, replace(statement, order=(*statement.order, field)))
        if len(statement.order) < LEAST_FIELDS:
            self._fail(Problem.TOO_FEW_FIELDS)
        if Field.SRC not in statement.order:
            statement = replace(statement, src=self._source)
        self._source = statement.src
        return statement

    def _field_that_begins(self, stated: tuple[Field, ...]) -> Field:
        role = self._peek()
        if role == vocab.PAD:
            self._fail(Problem.PADDING)
        if role >= BYTE0:
            self._fail(Problem.STRAY_BYTE)
        if role == vocab.PREFIX_END:
            self._fail(Problem.STRAY_PREFIX_END)
        if set(_FIELDS_OF_ROLE[role]) <= set(stated):
            self._fail(Problem.REPEATED_FIELD)
        if role in (vocab.TIME_DELTA1, vocab.TIME_DELTA4) and self._seconds is None:
            self._fail(Problem.NO_EARLIER_TIME)
        self._position += 1
        return self._extra_field(stated) if role == vocab.EXTRA else FIELD_OF_ROLE[role]

    def _extra_field(self, stated: tuple[Field, ...]) -> Field:
        field = FIELD_OF_EXTRA.get(self._byte())
        if field is None or field in stated:
            problem = Problem.RESERVED if field is None else Problem.REPEATED_FIELD
            self._fail(problem, self._position - 1)
        return field

    def _read_field(self, role: int, field: Field, statement: Statement) -> Statement:
        match field:
            case Field.SRC:
                return replace(statement, src=self._address(role))
            case Field.DST:
                return replace(statement, dst=self._address(role))
            case Field.TIME:
                self._seconds = self._time(role)
                return replace(statement, seconds=self._seconds)
            case Field.RESULT if role == vocab.FAILED:
                return replace(statement, rtt=NO_REPLY)
            case Field.RESULT:
                code = self._number(self._encoding.bytes, self._encoding.largest_code)
                return replace(statement, rtt=self._encoding.decode(code))
            case Field.SIZE:
                return replace(statement, size=self._number(2, vocab.LARGEST_SIZE))
            case Field.ERRORS:
                return replace(statement, errors=self._number(1, vocab.LARGEST_ERRORS))
            case Field.MSM_ID:
                return replace(statement, msm_id=self._number(8, vocab.LARGEST_MSM_ID))
            case Field.PROBE_ID:
                return replace(statement, probe_id=self._number(4, vocab.LARGEST_PROBE_ID))
            case Field.THROUGHPUT:
                return replace(statement, throughput=mbps_of(self._number(2, vocab.LARGEST_THROUGHPUT)))

    def _address(self, role: int) -> Prefix:
        count = _ADDRESS_BYTES[role]
        known = b""
        while len(known) < count:
            if known and self._position < len(self._ids) and self._peek() == vocab.PREFIX_END:
                self._position += 1
                break
            known += bytes([self._byte()])
            if count == 16 and known == MAPPED_PREFIX:
                self._fail(Problem.MAPPED_ADDRESS, self._position - 1)
        start = MAPPED_PREFIX if count == 4 else b""
        return Prefix((start + known).ljust(16, b"\0"), 8 * len(known))

    def _time(self, role: int) -> int:
        if role == vocab.TIME_ABS:
            return self._number(8, vocab.LARGEST_SECONDS)
        assert self._seconds is not None
        room = vocab.LARGEST_SECONDS - self._seconds
        if role == vocab.TIME_DELTA1:
            return self._seconds + self._number(1, min(room, vocab.LARGEST_DELTA1))
        return self._seconds + self._number(4, min(room, vocab.LARGEST_DELTA4))

    def _number(self, count: int, largest: int) -> int:
        """Read a big-endian number; fail at the first byte after which all numbers are too large."""
        number = 0
        for missing in reversed(range(count)):
            number = 256 * number + self._byte()
            if number > largest >> (8 * missing):
                self._fail(Problem.OUT_OF_RANGE, self._position - 1)
        return number

    def _byte(self) -> int:
        if self._position == len(self._ids):
            self._fail(Problem.TRUNCATED)
        token = self._peek()
        if token == vocab.PAD:
            self._fail(Problem.PADDING)
        if token == vocab.PREFIX_END:
            self._fail(Problem.STRAY_PREFIX_END)
        if token < BYTE0:
            self._fail(Problem.MISSING_BYTE)
        self._position += 1
        return token - BYTE0

    def _peek(self) -> int:
        try:
            token = operator.index(self._ids[self._position])
        except TypeError:
            self._fail(Problem.NOT_AN_ID)
        if not 0 <= token < vocab.VOCABULARY_SIZE:
            self._fail(Problem.NOT_AN_ID)
        return token

    def _fail(self, problem: Problem, position: int | None = None) -> NoReturn:
        raise DecodeError(problem, self._ids, self._position if position is None else position)
