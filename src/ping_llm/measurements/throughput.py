"""The throughput of a measurement as a code of 12 bits: what tokens state and what probe rows keep.

A float of 5 exponent and 7 mantissa bits of whole kbit/s, as `compact` is one of microseconds: exact below
256 kbit/s, with a relative error of at most 1/256 above. `plain_code` and `mbps_of` are the specification in
Python; the kernels of `throughput_kernels` are held to them.
"""

import math

import numpy as np

#: 1 + the code has 12 bits in a probe row, so the largest code is one less than those bits could hold.
LARGEST_CODE = 4094
LARGEST_KBITS = 254 << 30  # of LARGEST_CODE: 273 Tbit/s

#: Unknown, in the place of a throughput or of a code.
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
    """Mbit/s of a code. `plain_code(mbps_of(code)) == code`."""
    if not 0 <= code <= LARGEST_CODE:
        raise ValueError(f"{code} is not a code of a throughput: they are 0 to {LARGEST_CODE}")
    kbits = code if code < 128 else (128 + code % 128) << ((code >> 7) - 1)
    return kbits / 1000.0


_MBPS = np.array([UNKNOWN_THROUGHPUT, *map(mbps_of, range(LARGEST_CODE + 1))], np.float64)


def stored_mbps(stored: np.ndarray) -> np.ndarray:
    """The inverse: Mbit/s, -1.0 where unknown."""
    out: np.ndarray = _MBPS[stored]
    return out
