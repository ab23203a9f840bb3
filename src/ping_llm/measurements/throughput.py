"""The throughput of a measurement as a code of 12 bits, used in tokens and in probe rows.

The code is a float with 5 exponent and 7 mantissa bits, in whole kbit/s, like `compact` for microseconds: it
is exact below 256 kbit/s and has a relative error of at most 1/256 above. `plain_code` and `mbps_of` are the
specification in Python; the kernels of `throughput_kernels` are tested against them.
"""

import math

import numpy as np

#: Largest code. A probe row stores 1 + the code in 12 bits, so it is one less than 12 bits could hold.
LARGEST_CODE = 4094
LARGEST_KBITS = 254 << 30  # kbit/s of LARGEST_CODE: 273 Tbit/s

#: Value of an unknown throughput or code.
UNKNOWN_THROUGHPUT = -1


def plain_code(mbps: float) -> int:
    """The code of a throughput in Mbit/s; ValueError if it is not finite, or negative."""
    if not (math.isfinite(mbps) and mbps >= 0):
        raise ValueError(f"{mbps} Mbit/s is not a throughput: it must be finite and not negative")
    kbits = round(min(mbps * 1000.0, float(LARGEST_KBITS)))
    if kbits < 128:
        return kbits
    exponent = kbits.bit_length() - 7
    step = 1 << (exponent - 1)
    quotient, rest = divmod(kbits, step)
    quotient += 2 * rest > step or (2 * rest == step and quotient % 2)
    return (exponent << 7) + quotient - 128


def mbps_of(code: int) -> float:
    """The throughput of a code, in Mbit/s. `plain_code(mbps_of(code)) == code`."""
    if not 0 <= code <= LARGEST_CODE:
        raise ValueError(f"{code} is not a code of a throughput: they are 0 to {LARGEST_CODE}")
    kbits = code if code < 128 else (128 + code % 128) << ((code >> 7) - 1)
    return kbits / 1000.0


_MBPS = np.array([UNKNOWN_THROUGHPUT, *map(mbps_of, range(LARGEST_CODE + 1))], np.float64)


def stored_mbps(stored: np.ndarray) -> np.ndarray:
    """The inverse of `throughput_kernels.stored_codes`: Mbit/s, -1.0 where unknown."""
    out: np.ndarray = _MBPS[stored]
    return out
