"""Vectorised conversion of Arrow columns of any type to NumPy columns and states.

Values of a wrong type get the state BAD.
"""

import math
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ping_llm.measurements import addresses
from ping_llm.measurements.rules import BAD, GIVEN, MISSING, UNKNOWN
from ping_llm.measurements.schema import END_TIME_US, KINDS, PING

_FLOAT_TEXT = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?\s*$"
_INTEGER_TEXT = r"^\s*[+-]?\d{1,18}\s*$"
_ZONED_TEXT = r"(Z|[+-]\d\d:?\d\d)$"

#: Ranges of numbers that are times, with their factors to µs: seconds until 2100, then, from 1973 on,
#: milliseconds, microseconds and nanoseconds. A number between the ranges is not a time.
_UNITS = (
    (0.0, END_TIME_US / 1e6, 1e6),
    (1e11, END_TIME_US / 1e3, 1e3),
    (1e14, END_TIME_US, 1.0),
    (1e17, END_TIME_US * 1e3, 1e-3),
)


def _states(array: pa.Array) -> np.ndarray:
    states = np.full(len(array), GIVEN)
    if array.null_count:
        states[~np.asarray(array.is_valid())] = MISSING
    return states


def _plain(array: pa.Array) -> pa.Array:
    """Decode dictionaries, and convert all types of text to string."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_text(array.type) or pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            return decoded_text(array)
    return array


def decoded_text(array: pa.Array) -> pa.Array:
    """Convert text or bytes to string, with U+FFFD in place of invalid UTF-8."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    values = array.cast(pa.large_binary()).to_pylist()
    return pa.array(
        [None if value is None else value.decode("utf-8", "replace") for value in values], pa.string()
    )


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _all_bad(array: pa.Array) -> np.ndarray:
    return np.where(_states(array) == MISSING, MISSING, BAD)


def floats(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Convert to float64 and states. NaN in a column of numbers is GIVEN; the rules reject it later."""
    array = _plain(array)
    states = _states(array)
    if _is_number(array.type):
        return np.asarray(array.cast(pa.float64(), safe=False).fill_null(math.nan)), states
    numbers = np.full(len(array), math.nan)
    if is_text(array.type):
        readable = np.asarray(pc.match_substring_regex(array, _FLOAT_TEXT).fill_null(False))
        states[(states == GIVEN) & ~readable] = BAD
        texts = pc.utf8_trim_whitespace(array.filter(pa.array(readable)))
        texts = pc.utf8_ltrim(texts, "+")
        numbers[readable] = np.asarray(texts.cast(pa.float64()))
        return numbers, states
    return numbers, _all_bad(array)


def integers(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Convert to int64 (UNKNOWN where absent or bad) and a mask of bad values."""
    array = _plain(array)
    numbers = np.full(len(array), UNKNOWN, np.int64)
    if pa.types.is_integer(array.type):
        if pa.types.is_uint64(array.type):
            too_large = np.asarray(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())).fill_null(False))
            given = np.asarray(array.is_valid()) & ~too_large
            numbers[given] = np.asarray(array.filter(pa.array(given)).cast(pa.int64()))
            return numbers, too_large
        # A copy, because memory owned by Arrow is read-only.
        return np.array(array.cast(pa.int64()).fill_null(UNKNOWN)), np.zeros(len(array), bool)
    whole = np.zeros(len(array), bool)
    if is_text(array.type):
        whole = np.asarray(pc.match_substring_regex(array, _INTEGER_TEXT).fill_null(False))
        texts = pc.utf8_ltrim(pc.utf8_trim_whitespace(array.filter(pa.array(whole))), "+")
        numbers[whole] = np.asarray(texts.cast(pa.int64()))
    # Integral floats such as 3.0, as numbers or text: pandas writes a column of integers with gaps like this.
    values, states = floats(array)
    with np.errstate(invalid="ignore"):
        integral = (states == GIVEN) & ~whole & (np.abs(values) < 2**53) & (values == np.floor(values))
    numbers[integral] = values[integral].astype(np.int64)
    missing = (states == MISSING) | (np.isnan(values) & (states == GIVEN))
    return numbers, ~(whole | integral | missing)


def optional_floats(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Convert to float64 (UNKNOWN where absent or bad) and a mask of bad values.

    NaN is absent, as in `integers`.
    """
    numbers, states = floats(array)
    bad = states == BAD
    return np.where(np.isnan(numbers) | bad, float(UNKNOWN), numbers), bad


def packed_addresses(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Convert to packed addresses, uint8 [n, 16], and states. 16-byte binary values are packed already."""
    if array.type == pa.binary(16):
        states = _states(array)
        packed = np.zeros((len(array), 16), np.uint8)
        given = states == GIVEN
        values = array.filter(pa.array(given)).cast(pa.binary()).to_pylist()
        packed[given] = np.frombuffer(b"".join(values), np.uint8).reshape(-1, 16)
        return packed, states
    array = _plain(array)
    if not is_text(array.type):
        return np.zeros((len(array), 16), np.uint8), _all_bad(array)
    array = pc.utf8_trim_whitespace(array)
    packed, valid = addresses.pack(array)
    states = _states(array)
    empty = np.asarray(pc.equal(pc.binary_length(array), 0).fill_null(False))
    states[empty] = MISSING
    states[(states == GIVEN) & ~valid] = BAD
    return packed, states


def kinds(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Convert to indices in schema.KINDS, uint8, and a mask of invalid names. An absent kind is a ping."""
    array = _plain(array)
    if not is_text(array.type):
        return np.full(len(array), PING, np.uint8), _all_bad(array) == BAD
    texts = pc.utf8_trim_whitespace(array).fill_null("")
    found = np.asarray(pc.index_in(texts, pa.array(KINDS)).fill_null(-1))
    bad = (found < 0) & ~np.asarray(pc.equal(texts, ""))
    return np.where(found < 0, PING, found).astype(np.uint8), bad


def times(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Convert timestamps, dates, numbers (see _UNITS) or texts to int64 µs and states; UTC by default."""
    array = _plain(array)
    states = _states(array)
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        return _timestamps(array, states)
    if _is_number(array.type):
        return _epochs(*floats(array))
    if not is_text(array.type):
        return np.zeros(len(array), np.int64), _all_bad(array)
    numbers, number_states = floats(array)
    time_us, states = _epochs(numbers, number_states)
    others = np.flatnonzero(number_states == BAD)
    if len(others):
        time_us[others], states[others] = _dates(pc.utf8_trim_whitespace(array.take(pa.array(others))))
    return time_us, states


def _timestamps(array: pa.Array, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    factor = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}[array.type.unit]
    raw = np.asarray(array.cast(pa.int64()).fill_null(0))
    if not factor:
        return raw // 1_000, states
    limit = 2**62 // factor
    return np.clip(raw, -limit, limit) * factor, states


def _epochs(numbers: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    time_us = np.full(len(numbers), -1, np.int64)
    for least, end, factor in _UNITS:
        with np.errstate(invalid="ignore"):
            here = (numbers >= least) & (numbers < end)
        time_us[here] = np.rint(numbers[here] * factor).astype(np.int64)
    return time_us, states


def _dates(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Parse ISO 8601 texts to int64 µs and states: all at once if all are valid, else one by one."""
    states = np.full(len(texts), GIVEN)
    zoned = np.asarray(pc.match_substring_regex(texts, _ZONED_TEXT))
    try:
        if pc.any(pc.match_substring(texts, "\0")).as_py():
            raise pa.ArrowInvalid("a NUL before the zone, which Arrow and Python pass over")
        time_us = np.empty(len(texts), np.int64)
        for mask, kind in ((zoned, pa.timestamp("us", "UTC")), (~zoned, pa.timestamp("us"))):
            time_us[mask] = np.asarray(texts.filter(pa.array(mask)).cast(kind).cast(pa.int64()))
        return time_us, states
    except pa.ArrowInvalid:
        pass
    time_us = np.zeros(len(texts), np.int64)
    for index, text in enumerate(texts.to_pylist()):
        try:
            if "\0" in text:
                raise ValueError
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            whole = int(moment.replace(microsecond=0).timestamp())
            time_us[index] = whole * 1_000_000 + moment.microsecond
        except (ValueError, OverflowError):
            states[index] = MISSING if not text else BAD
    return time_us, states
