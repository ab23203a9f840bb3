"""Why a sequence of ids is not a context, and where."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ping_llm.errors import PingError
from ping_llm.tokens.vocab import BYTE0, PREFIX_END, VOCABULARY_SIZE, token_name


class Problem(IntEnum):
    """Every way in which a token can be wrong. A Problem's number is its code in the compiled decoder."""

    NOT_AN_ID = 1  # below 0, above 271, or no integer at all
    PADDING = 2  # PAD is never inside a context
    NO_MEASUREMENT = 3  # a context begins with MEASUREMENT
    RESERVED = 4  # THROUGHPUT has no meaning yet
    STRAY_BYTE = 5  # a byte where a field should begin
    STRAY_PREFIX_END = 6  # outside an address, or after none of its bytes
    MISSING_BYTE = 7  # another role before the field has its bytes
    REPEATED_FIELD = 8  # two Srcs, Dsts, Times or Results in one measurement
    TOO_FEW_FIELDS = 9  # a measurement of fewer than two fields
    TRUNCATED = 10  # the sequence ends inside a field
    NO_EARLIER_TIME = 11  # a delta, and no time before it in the context
    OUT_OF_RANGE = 12  # with this byte, the number is larger than any of its kind
    MAPPED_ADDRESS = 13  # with this byte, an IPv6 role holds an IPv4 address


class DecodeError(PingError):
    """The first token that no continuation could make right.

    Attributes:
      position: its index; the length of the sequence if that ends too early.
      problem: what is wrong with it.
      reason: the same as a sentence.
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
            return "THROUGHPUT is reserved: no measurement has it yet"
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
    """The last role before a position, and how many tokens lie between."""
    for index in range(position - 1, -1, -1):
        if 0 <= ids[index] < BYTE0 and ids[index] != PREFIX_END:
            return token_name(ids[index]), position - index - 1
    return "nothing", 0
