"""Tokens → columns, compiled: the reference's decoder for many contexts at a time."""

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.tokens.columns import StatementColumns
from ping_llm.tokens.reference import DecodeError, Problem
from ping_llm.tokens.rtt import Log, RttEncoding, rtt_encoding
from ping_llm.tokens.vocab import (
    BYTE0,
    DST_IPV4,
    ERRORS,
    EXTRA,
    EXTRA_PROBE_ID,
    EXTRA_THROUGHPUT,
    FAILED,
    LARGEST_DELTA1,
    LARGEST_DELTA4,
    LARGEST_ERRORS,
    LARGEST_MSM_ID,
    LARGEST_PROBE_ID,
    LARGEST_SECONDS,
    LARGEST_SIZE,
    LARGEST_THROUGHPUT,
    LEAST_FIELDS,
    MEASUREMENT,
    MSM_ID,
    PAD,
    PREFIX_END,
    RTT,
    SIZE,
    SRC_IPV4,
    TIME_ABS,
    TIME_DELTA1,
    TIME_DELTA4,
    VOCABULARY_SIZE,
    Field,
)

# Numba takes plain integers, not enumerations, as cheap constants.
_SRC, _DST, _TIME, _RESULT, _SIZE, _ERRORS, _MSM_ID, _PROBE_ID, _THROUGHPUT = map(int, Field)
_FIELD_OF_ROLE = np.array(
    [
        -1,
        -1,
        _SRC,
        _SRC,
        _DST,
        _DST,
        _TIME,
        _TIME,
        _TIME,
        _RESULT,
        _RESULT,
        -1,
        _SIZE,
        _ERRORS,
        _MSM_ID,
        _PROBE_ID,
    ]
)
(
    _NOT_AN_ID,
    _PADDING,
    _NO_MEASUREMENT,
    _RESERVED,
    _STRAY_BYTE,
    _STRAY_PREFIX_END,
    _MISSING_BYTE,
    _REPEATED_FIELD,
    _TOO_FEW_FIELDS,
    _TRUNCATED,
    _NO_EARLIER_TIME,
    _OUT_OF_RANGE,
    _MAPPED_ADDRESS,
) = (int(problem) for problem in Problem)
_COMPACT, _FLOAT64, _MICROS, _LOG, _CLIPPED = range(5)


def decode_columns(
    ids: np.ndarray | Sequence[Any],
    encoding: RttEncoding | None = None,
    context_starts: Sequence[int] | np.ndarray = (0,),
) -> StatementColumns:
    """The statements of one or many contexts, with inherited sources and absolute times.

    Args:
      ids: the contexts' tokens, one after the other.
      encoding: the RTT encoding they were written with.
      context_starts: where each context begins, in rising order from 0.

    Raises:
      DecodeError: for the first context that is wrong, with the position in `ids`.
    """
    encoding = encoding or rtt_encoding()
    tokens = _as_tokens(ids)
    bounds = np.append(np.asarray(context_starts, np.int64), len(tokens))
    c = StatementColumns.empty(int((tokens == MEASUREMENT).sum()))
    log_values = _log_values() if encoding.id == _LOG else np.zeros(0)
    row = 0
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        row, position, problem = _decode_context(
            tokens, start, end, row,
            c.order, c.first, c.src, c.src_known, c.dst, c.dst_known,
            c.seconds, c.rtt, c.size, c.errors, c.msm_id, c.probe_id, c.throughput,
            encoding.id, encoding.bytes, encoding.largest_code, getattr(encoding, "step", 1), log_values,
        )  # fmt: skip
        if problem:
            raise DecodeError(Problem(problem), ids[:end], position)
    return c


def _as_tokens(ids: np.ndarray | Sequence[Any]) -> np.ndarray:
    """int64 ids; what is no id at all becomes -1, which the kernel refuses at its place."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return np.where((ids >= 0) & (ids < VOCABULARY_SIZE), ids.astype(np.int64), -1)
    return np.array([_as_token(token) for token in ids], np.int64)


def _as_token(token: Any) -> int:
    try:
        token = operator.index(token)
    except TypeError:
        return -1
    return token if 0 <= token < VOCABULARY_SIZE else -1


@cache
def _log_values() -> np.ndarray:
    """ms of every `log` code: rounding 4096 · 2^(c / 2816) in doubles errs for about one code in 65,536."""
    log = Log()
    return np.array([log.decode(code) for code in range(log.largest_code + 1)])


@kernel
def _byte_problem(tokens, position, end):
    """0 if there is a byte at `position`."""
    if position >= end:
        return _TRUNCATED
    token = tokens[position]
    if token < 0:
        return _NOT_AN_ID
    if token == PAD:
        return _PADDING
    if token == PREFIX_END:
        return _STRAY_PREFIX_END
    return 0 if token >= BYTE0 else _MISSING_BYTE


@kernel
def _read_number(tokens, position, end, count, largest):
    """Number, position after it (or of the wrong token) and problem."""
    number = np.int64(0)
    for index in range(count):
        problem = _byte_problem(tokens, position, end)
        if problem:
            return number, position, problem
        # Before the shift: eight bytes may not fit into 63 bits.
        limit = largest >> (8 * (count - 1 - index))
        byte = tokens[position] - BYTE0
        if number > limit >> 8 or (number == limit >> 8 and byte > (limit & 255)):
            return number, position, _OUT_OF_RANGE
        number = (number << 8) | byte
        position += 1
    return number, position, 0


@kernel
def _read_address(tokens, position, end, count, packed):
    """Writes into `packed`. Returns known bytes (0: all), position and problem."""
    packed[:] = 0
    first = 16 - count
    if count == 4:
        packed[10] = packed[11] = 255
    zeros = True  # all of the first ten bytes so far
    for index in range(count):
        if index and position < end and tokens[position] == PREFIX_END:
            return index, position + 1, 0
        problem = _byte_problem(tokens, position, end)
        if problem:
            return 0, position, problem
        byte = tokens[position] - BYTE0
        packed[first + index] = byte
        if index < 10 and byte != 0:
            zeros = False
        if count == 16 and index == 11 and zeros and packed[10] == 255 and byte == 255:
            return 0, position, _MAPPED_ADDRESS
        position += 1
    return 0, position, 0


@kernel
def _rtt_of_code(code, encoding_id, step, log_values):
    if encoding_id == _FLOAT64:
        return np.int64(code).view(np.float64)
    if encoding_id == _LOG:
        return log_values[code]
    micros = code
    if encoding_id == _COMPACT and code >= 2048:
        micros = (2048 + (code & 2047)) << ((code >> 11) - 1)
    elif encoding_id == _CLIPPED:
        micros = code * step
    return micros / 1000.0


@kernel
def _role_problem(token, stated, has_time):
    """0 if a field may begin with this token."""
    if token < 0:
        return _NOT_AN_ID
    if token == PAD:
        return _PADDING
    if token >= BYTE0:
        return _STRAY_BYTE
    if token == PREFIX_END:
        return _STRAY_PREFIX_END
    fields = 1 << _FIELD_OF_ROLE[token]
    if token == EXTRA:  # which of the two the next byte says
        fields |= 1 << _THROUGHPUT
    if stated & fields == fields:
        return _REPEATED_FIELD
    if token in (TIME_DELTA1, TIME_DELTA4) and not has_time:
        return _NO_EARLIER_TIME
    return 0


@kernel
def _field_of_extra(tokens, position, end, stated):
    """The field that the byte after EXTRA names, and the problem with it."""
    problem = _byte_problem(tokens, position, end)
    if problem:
        return _PROBE_ID, problem
    field = _PROBE_ID
    if tokens[position] == BYTE0 + EXTRA_THROUGHPUT:
        field = _THROUGHPUT
    elif tokens[position] != BYTE0 + EXTRA_PROBE_ID:
        return field, _RESERVED
    return field, _REPEATED_FIELD if stated & (1 << field) else 0


@kernel
def _decode_context(
    tokens, start, end, row,
    order, first, src, src_known, dst, dst_known,
    seconds, rtt, size, errors, msm_id, probe_id, throughput,
    encoding_id, rtt_bytes, largest_code, step, log_values,
):  # fmt: skip
    """Fills rows from `row` on. Returns the row after the last, the position and the problem."""
    first_row = row
    time = np.int64(-1)
    position = start
    while position < end:
        token = tokens[position]
        if token != MEASUREMENT:
            problem = _NOT_AN_ID if token < 0 else _PADDING if token == PAD else _NO_MEASUREMENT
            return row, position, problem
        position += 1
        first[row] = row == first_row
        stated = 0
        count = 0
        while position < end and tokens[position] != MEASUREMENT:
            role = tokens[position]
            problem = _role_problem(role, stated, time >= 0)
            if problem:
                return row, position, problem
            field = _FIELD_OF_ROLE[role]
            if role == EXTRA:
                field, problem = _field_of_extra(tokens, position + 1, end, stated)
                if problem:
                    return row, position + 1, problem
                position += 1
            stated |= 1 << field
            order[row, count] = field
            count += 1
            position += 1
            if field == _SRC:
                length = 4 if role == SRC_IPV4 else 16
                src_known[row], position, problem = _read_address(tokens, position, end, length, src[row])
            elif field == _DST:
                length = 4 if role == DST_IPV4 else 16
                dst_known[row], position, problem = _read_address(tokens, position, end, length, dst[row])
            elif role == TIME_ABS:
                time, position, problem = _read_number(tokens, position, end, 8, LARGEST_SECONDS)
                seconds[row] = time
            elif field == _TIME:
                length, most = (1, LARGEST_DELTA1) if role == TIME_DELTA1 else (4, LARGEST_DELTA4)
                room = min(np.int64(most), LARGEST_SECONDS - time)
                delta, position, problem = _read_number(tokens, position, end, length, room)
                time += delta
                seconds[row] = time
            elif role == FAILED:
                rtt[row] = -1.0
            elif role == RTT:
                code, position, problem = _read_number(tokens, position, end, rtt_bytes, largest_code)
                if not problem:
                    rtt[row] = _rtt_of_code(code, encoding_id, step, log_values)
            elif role == SIZE:
                size[row], position, problem = _read_number(tokens, position, end, 2, LARGEST_SIZE)
            elif role == ERRORS:
                errors[row], position, problem = _read_number(tokens, position, end, 1, LARGEST_ERRORS)
            elif role == MSM_ID:
                msm_id[row], position, problem = _read_number(tokens, position, end, 8, LARGEST_MSM_ID)
            elif field == _PROBE_ID:
                probe_id[row], position, problem = _read_number(tokens, position, end, 4, LARGEST_PROBE_ID)
            elif field == _THROUGHPUT:
                code, position, problem = _read_number(tokens, position, end, 2, LARGEST_THROUGHPUT)
                if not problem:
                    kbits = code if code < 128 else (128 + (code & 127)) << ((code >> 7) - 1)
                    throughput[row] = kbits / 1000.0
            if problem:
                return row, position, problem
        if count < LEAST_FIELDS:
            return row, position, _TOO_FEW_FIELDS
        if not stated & (1 << _SRC) and row > first_row:
            src[row] = src[row - 1]
            src_known[row] = src_known[row - 1]
        row += 1
    return row, position, 0
