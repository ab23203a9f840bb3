"""Lists of JSON values → NumPy columns.

A column's set of types is taken first (20 ns a value): when it is what it should be, NumPy and Arrow convert
the whole list at C speed. One odd value (a number in a string, as firmware 0 wrote them, or rubbish) sends
only its block through the careful loop. Both ways agree wherever both apply.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ping_llm import addresses
from ping_llm.ingest.columns import BAD, GIVEN, MISSING, UNKNOWN

_NONE = type(None)
_NUMBERS = {int, float}
_INT64_MAX = 2**63 - 1


def floats(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """float64 (NaN where not GIVEN) and states."""
    types = set(map(type, values))
    if types <= _NUMBERS:
        return np.array(values, np.float64), np.zeros(len(values), np.uint8)
    if types <= _NUMBERS | {_NONE}:
        numbers = np.array(values, np.float64)
        return numbers, np.isnan(numbers).astype(np.uint8) * MISSING
    numbers = np.full(len(values), np.nan)
    states = np.full(len(values), GIVEN)
    for index, value in enumerate(values):
        numbers[index], states[index] = _one_float(value)
    return numbers, states


def _one_float(value: Any) -> tuple[float, np.uint8]:
    kind = type(value)
    if kind in _NUMBERS:
        return float(value), GIVEN
    if value is None or value == "":
        return math.nan, MISSING
    if kind is str and len(value) <= 40 and "_" not in value:
        try:
            number = float(value)
        except ValueError:
            return math.nan, BAD
        return (number, GIVEN) if math.isfinite(number) else (math.nan, BAD)
    return math.nan, BAD


def integers(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """int64 (UNKNOWN where absent or bad) and a mask of the bad."""
    types = set(map(type, values))
    if types == {int}:
        try:
            return np.array(values, np.int64), np.zeros(len(values), bool)
        except OverflowError:
            pass
    elif types == {_NONE}:
        return np.full(len(values), UNKNOWN, np.int64), np.zeros(len(values), bool)
    numbers = np.full(len(values), UNKNOWN, np.int64)
    bad = np.zeros(len(values), bool)
    for index, value in enumerate(values):
        if value is None or value == "":
            continue
        number = _one_integer(value)
        if number is None:
            bad[index] = True
        else:
            numbers[index] = number
    return numbers, bad


def _one_integer(value: Any) -> int | None:
    kind = type(value)
    if kind is str and len(value) <= 20 and value.lstrip("-").isascii() and value.lstrip("-").isdigit():
        try:
            value = int(value)
        except ValueError:  # "--1"
            return None
    elif kind is float and value.is_integer():
        value = int(value)
    elif kind is not int:
        return None
    return value if -_INT64_MAX <= value <= _INT64_MAX else None


def microseconds(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Unix seconds, whole or not → int64 microseconds and states; the far too large become the year 5138."""
    if set(map(type, values)) == {int}:
        try:
            seconds = np.array(values, np.int64)
        except OverflowError:
            pass
        else:
            return np.clip(seconds, -(10**11), 10**11) * 1_000_000, np.zeros(len(values), np.uint8)
    numbers, states = floats(values)
    clipped = np.nan_to_num(np.clip(numbers, -1e11, 1e11), nan=0.0)
    return np.rint(clipped * 1e6).astype(np.int64), states


def packed_addresses(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 16] and states."""
    if set(map(type, values)) <= {str, _NONE}:
        texts = values
    else:
        texts = [value if type(value) is str else None for value in values]
    packed, valid = addresses.pack(pa.array(texts, pa.string()))
    states = np.full(len(values), GIVEN)
    for index in np.flatnonzero(~valid).tolist():
        value = values[index]
        states[index] = MISSING if value is None or value == "" else BAD
    return packed, states
