"""Codes of throughputs, compiled: `throughput.plain_code` for arrays."""

import math

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.measurements.throughput import LARGEST_KBITS


@kernel
def throughput_code(mbps: float) -> np.int64:
    """The code of a throughput in Mbit/s; -1 if it is unknown (negative)."""
    if mbps < 0.0:
        return np.int64(-1)
    kbits = np.int64(np.rint(min(mbps * 1000.0, float(LARGEST_KBITS))))
    if kbits < 128:
        return kbits
    exponent = math.frexp(float(kbits))[1] - 7
    step = np.int64(1) << (exponent - 1)
    quotient = kbits // step
    twice = 2 * (kbits - quotient * step)
    if twice > step or (twice == step and quotient & 1):
        quotient += 1
    # A significand of 256 carries into the exponent, which gives the same value.
    return (exponent << 7) + quotient - 128


@kernel
def _stored_into(mbps: np.ndarray, out: np.ndarray) -> None:
    for index in range(len(mbps)):
        out[index] = throughput_code(mbps[index]) + 1


def stored_codes(mbps: np.ndarray) -> np.ndarray:
    """Convert Mbit/s (negative: unknown) to the form stored in probe rows, uint16 [n]: 0, or 1 + the code."""
    out = np.empty(len(mbps), np.uint16)
    _stored_into(np.ascontiguousarray(mbps, np.float64), out)
    return out
