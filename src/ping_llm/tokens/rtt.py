"""The five RTT encodings: conversion between a round-trip time and an integer code in big-endian bytes.

All are monotone: a larger code never means a smaller RTT, so comparing bytes compares RTTs. Four of them
encode whole microseconds, the resolution of Atlas: µs = rtt · 1000, rounded half to even. Only `float64`
keeps all bits.

    name      bytes  code of u µs                              step                    largest
    compact   2      5-bit exponent, 11-bit mantissa           1 µs, then 1/4096–1/2048  50 days
    float64   8      the bits of the double                    exact                   any double
    micros    8      u                                         1 µs                    8.9 years
    log       2      2816 · log2(1 + u / 4096), rounded        1 µs, then 1/4062       11.5 h
    clipped   2      u / step, rounded                         limit / 65,535          the limit

An RTT above the largest one gets the largest code; all encodings except `clipped` reach beyond
schema.MAX_RTT_MS. A code above the largest code cannot be decoded.
"""

import builtins
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from math import isfinite
from typing import ClassVar

import numpy as np

from ping_llm.measurements.schema import MAX_RTT_MS

#: Default limit of `clipped`, which gives 16 µs per step. In a typical dump p99 is 343 ms, and about one
#: reply in a thousand is above a second.
DEFAULT_CLIP_LIMIT_MS = 1000.0

MICROS_LARGEST = 2**48 - 1  # below 2^51, u / 1000 * 1000 rounds back to u in doubles
COMPACT_LARGEST = 4095 << 30  # µs of code 65,535

# Constants of `log`. The offset of 4096 µs makes the first step 1.008 µs, so that every code is used and 0
# has its own code; far above 4096 µs the scale is logarithmic.
LOG_PER_OCTAVE = 2816
LOG_OFFSET_BITS = 12
LOG_OFFSET = 1 << LOG_OFFSET_BITS
LOG_LAST_OCTAVE = 35  # 2^35 <= 4096 · 2^(65535 / 2816) < 2^36


def micros_of(ms: float) -> int:
    """An RTT in whole microseconds, rounded half to even, at most MICROS_LARGEST."""
    if not (isfinite(ms) and ms >= 0):
        raise ValueError(f"{ms} ms is not a round-trip time: it must be finite and not negative")
    return round(min(ms * 1000.0, float(MICROS_LARGEST)))


class RttEncoding(ABC):
    """An RTT encoding. A code is an unsigned integer of `bytes` bytes, at most `largest_code`."""

    name: ClassVar[str]
    id: ClassVar[int]  # code of the encoding in compiled kernels
    bytes: ClassVar[int]
    clip_limit_ms: float = 0.0  # only `clipped` has one

    @property
    @abstractmethod
    def largest_code(self) -> int: ...

    @abstractmethod
    def encode(self, ms: float) -> int:
        """The code of an RTT; raises ValueError for NaN, infinite and negative values."""

    @abstractmethod
    def decode(self, code: int) -> float:
        """The RTT in ms that a code stands for. `encode(decode(code)) == code`."""

    @abstractmethod
    def lower_edge(self, code: int) -> float:
        """The smallest RTT, in ms, of this code's bin. An RTT exactly at an edge is rounded half to even."""

    @property
    def largest_ms(self) -> float:
        return self.decode(self.largest_code)

    def edges(self, code: int) -> tuple[float, float]:
        """The lower and upper edge of a code's bin, in ms. The last bin ends at infinity."""
        upper = self.lower_edge(code + 1) if code < self.largest_code else float("inf")
        return self.lower_edge(code), upper

    def prefix_edges(self, prefix: builtins.bytes) -> tuple[float, float]:
        """The bin of all codes whose first bytes are `prefix`; raises ValueError if there is none."""
        rest = max(8 * (self.bytes - len(prefix)), 0)
        first = int.from_bytes(prefix, "big") << rest
        last = min(first + (1 << rest) - 1, self.largest_code)
        if len(prefix) > self.bytes or first > last:
            raise ValueError(f"no {self.name} code begins with the bytes {prefix.hex(' ')}")
        return self.edges(first)[0], self.edges(last)[1]

    def edges_table(self) -> np.ndarray:
        """All edges of a two-byte encoding: float64 [largest_code + 2], the last one infinity."""
        if self.bytes > 2:
            raise ValueError(f"{self.name} has 2^{8 * self.bytes} codes: use edges() for single bins")
        return np.array([*map(self.lower_edge, range(self.largest_code + 1)), np.inf])

    def to_bytes(self, code: int) -> builtins.bytes:
        return code.to_bytes(self.bytes, "big")


class _OfMicros(RttEncoding):
    """An encoding of whole microseconds."""

    @abstractmethod
    def code_of_micros(self, micros: int) -> int: ...

    @abstractmethod
    def micros_of_code(self, code: int) -> int: ...

    @abstractmethod
    def first_micros(self, code: int) -> int:
        """The smallest number of microseconds with this code."""

    def encode(self, ms: float) -> int:
        return self.code_of_micros(micros_of(ms))

    def decode(self, code: int) -> float:
        if not 0 <= code <= self.largest_code:
            raise ValueError(f"{code} is not a code of {self.name}: they are 0 to {self.largest_code}")
        return self.micros_of_code(code) / 1000.0

    def lower_edge(self, code: int) -> float:
        return max((2 * self.first_micros(code) - 1) / 2000.0, 0.0)


@dataclass(frozen=True)
class Compact(_OfMicros):
    """A floating-point number with 5 exponent and 11 mantissa bits.

    Below 2048 µs the code is u. From there, code (e << 11) | m stands for (2048 + m) << (e - 1) µs, e in
    1..31; other values are rounded to the nearest one, ties to the even mantissa.
    """

    name: ClassVar[str] = "compact"
    id: ClassVar[int] = 0
    bytes: ClassVar[int] = 2

    @property
    def largest_code(self) -> int:
        return 65_535

    def code_of_micros(self, micros: int) -> int:
        micros = min(micros, COMPACT_LARGEST)
        if micros < 2048:
            return micros
        exponent = micros.bit_length() - 11
        step = 1 << (exponent - 1)
        significand, rest = divmod(micros, step)
        if 2 * rest > step or (2 * rest == step and significand % 2 == 1):
            significand += 1
        # A significand of 4096 carries into the exponent, which gives the same value.
        return (exponent << 11) + significand - 2048

    def micros_of_code(self, code: int) -> int:
        exponent, mantissa = code >> 11, code & 2047
        return mantissa if exponent == 0 else (2048 + mantissa) << (exponent - 1)

    def first_micros(self, code: int) -> int:
        value = self.micros_of_code(code)
        gap = value - self.micros_of_code(code - 1) if code else 1
        if gap == 1:
            return value
        middle = value - gap // 2
        return middle if code % 2 == 0 else middle + 1


@dataclass(frozen=True)
class Float64(RttEncoding):
    """The bits of the RTT in ms as a double; for non-negative values they have the order of the RTTs."""

    name: ClassVar[str] = "float64"
    id: ClassVar[int] = 1
    bytes: ClassVar[int] = 8

    @property
    def largest_code(self) -> int:
        return 0x7FEF_FFFF_FFFF_FFFF  # the largest finite double; above are infinity, NaNs and negatives

    def encode(self, ms: float) -> int:
        if not (isfinite(ms) and ms >= 0):
            raise ValueError(f"{ms} ms is not a round-trip time: it must be finite and not negative")
        return int.from_bytes(struct.pack(">d", ms + 0.0), "big")  # -0.0 + 0.0 is 0.0

    def decode(self, code: int) -> float:
        if not 0 <= code <= self.largest_code:
            raise ValueError(
                f"{code:#x} is not a code of float64: no finite, non-negative double has these bits"
            )
        return struct.unpack(">d", code.to_bytes(8, "big"))[0]

    def lower_edge(self, code: int) -> float:
        """The double itself; its bin ends at the next double."""
        return self.decode(code)


@dataclass(frozen=True)
class Micros(_OfMicros):
    """Whole microseconds, up to 2^48 - 1, so the first two bytes are always zero."""

    name: ClassVar[str] = "micros"
    id: ClassVar[int] = 2
    bytes: ClassVar[int] = 8

    @property
    def largest_code(self) -> int:
        return MICROS_LARGEST

    def code_of_micros(self, micros: int) -> int:
        return micros

    def micros_of_code(self, code: int) -> int:
        return code

    def first_micros(self, code: int) -> int:
        return code


@cache
def _powers_of_two() -> tuple[Decimal, ...]:
    """2^(j / 5632) for j in 0..5631: the codes of one octave and the edges between them, with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        ratio = Decimal(2) ** (Decimal(1) / (2 * LOG_PER_OCTAVE))
        powers = [Decimal(1)]
        for _ in range(2 * LOG_PER_OCTAVE - 1):
            powers.append(powers[-1] * ratio)
    return tuple(powers)


@cache
def log_thresholds() -> np.ndarray:
    """The edges floor(2^35 · 2^((2j + 1) / 5632)), int64 [2816].

    The exact edges are irrational, so comparing integers with their floor is exact.
    """
    with localcontext() as context:
        context.prec = 60
        return np.array([int(power * 2**LOG_LAST_OCTAVE) for power in _powers_of_two()[1::2]], np.int64)


@dataclass(frozen=True)
class Log(_OfMicros):
    """A log scale with 2816 codes per octave: code c stands for 4096 · (2^(c / 2816) - 1) µs.

    The codes are exact on every machine: u + 4096, shifted to 36 bits, is compared with integer thresholds.
    """

    name: ClassVar[str] = "log"
    id: ClassVar[int] = 3
    bytes: ClassVar[int] = 2

    @property
    def largest_code(self) -> int:
        return 65_535

    def code_of_micros(self, micros: int) -> int:
        shifted = micros + LOG_OFFSET
        octave = shifted.bit_length() - 1
        if octave > LOG_LAST_OCTAVE:
            return self.largest_code
        above = int(np.searchsorted(log_thresholds(), shifted << (LOG_LAST_OCTAVE - octave)))
        return min(LOG_PER_OCTAVE * (octave - LOG_OFFSET_BITS) + above, self.largest_code)

    def micros_of_code(self, code: int) -> int:
        octave, step = divmod(code, LOG_PER_OCTAVE)
        with localcontext() as context:
            context.prec = 60
            return round(_powers_of_two()[2 * step] * (LOG_OFFSET << octave)) - LOG_OFFSET

    def first_micros(self, code: int) -> int:
        if code == 0:
            return 0
        octave, step = divmod(2 * code - 1, 2 * LOG_PER_OCTAVE)
        with localcontext() as context:
            context.prec = 60
            return int(_powers_of_two()[step] * (LOG_OFFSET << octave)) + 1 - LOG_OFFSET


@dataclass(frozen=True)
class Clipped(_OfMicros):
    """Fixed point: u is clipped at the limit and divided by a step of whole microseconds, half to even."""

    clip_limit_ms: float = DEFAULT_CLIP_LIMIT_MS

    name: ClassVar[str] = "clipped"
    id: ClassVar[int] = 4
    bytes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 1.0 <= self.clip_limit_ms <= MAX_RTT_MS:
            raise ValueError(
                f"a clip limit of {self.clip_limit_ms} ms cannot work: choose 1 ms to {MAX_RTT_MS:,.0f} ms"
            )

    @property
    def step(self) -> int:
        """Microseconds per code: the smallest integer with which 65,535 steps reach the limit."""
        return -(-micros_of(self.clip_limit_ms) // 65_535)

    @property
    def largest_code(self) -> int:
        return micros_of(self.clip_limit_ms) // self.step

    def code_of_micros(self, micros: int) -> int:
        code, rest = divmod(micros, self.step)
        if 2 * rest > self.step or (2 * rest == self.step and code % 2 == 1):
            code += 1
        return min(code, self.largest_code)

    def micros_of_code(self, code: int) -> int:
        return code * self.step

    def first_micros(self, code: int) -> int:
        middle, odd = divmod((2 * code - 1) * self.step, 2)
        return max(middle + (1 if odd or code % 2 == 1 else 0), 0) if code else 0


RTT_ENCODINGS: dict[str, type[RttEncoding]] = {
    encoding.name: encoding for encoding in (Compact, Float64, Micros, Log, Clipped)
}


@cache
def rtt_encoding(name: str = "compact", clip_limit_ms: float = DEFAULT_CLIP_LIMIT_MS) -> RttEncoding:
    """The encoding with this name; raises a ValueError that lists the names if there is none."""
    if name not in RTT_ENCODINGS:
        raise ValueError(f"there is no RTT encoding {name!r}: choose one of {', '.join(RTT_ENCODINGS)}")
    return Clipped(clip_limit_ms) if name == "clipped" else RTT_ENCODINGS[name]()
