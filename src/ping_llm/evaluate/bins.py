"""The common currency: a result is a failure or one of the millisecond bins [k, k + 1).

Whatever a method's own resolution, its likelihood is the probability that it gave to the bin the
result fell into, in bits. So a 2-byte encoding, a 8-byte one and a quantile table can be compared.
"""

import numpy as np

from ping_llm.query.distribution import WORST_BITS
from ping_llm.schema import MAX_RTT_MS, NO_REPLY

#: Of a failure, in place of a bin's number.
FAILURE = -1

#: Bins 0 … BIN_COUNT - 1 hold every RTT that the schema allows, its largest included.
BIN_COUNT = int(MAX_RTT_MS) + 1


def bin_of(rtt: np.ndarray) -> np.ndarray:
    """int64: the millisecond bin of each RTT, FAILURE where there was no reply."""
    return np.where(rtt == NO_REPLY, FAILURE, np.floor(rtt)).astype(np.int64)


def bits_of(probability: np.ndarray) -> np.ndarray:
    """-log2, at most WORST_BITS."""
    return -np.log2(np.clip(probability, 2.0**-WORST_BITS, 1.0))


def result_bits(failure: np.ndarray, bin_probability: np.ndarray, rtt: np.ndarray) -> np.ndarray:
    """Bits of each result.

    Args:
      failure: probability of no reply, [n].
      bin_probability: probability of the result's bin given a reply, [n]; ignored where there was none.
      rtt: the results, [n].
    """
    failed = rtt == NO_REPLY
    return bits_of(np.where(failed, failure, (1.0 - failure) * bin_probability))


def histogram_bits(failure: float, bins: np.ndarray, rtt: np.ndarray) -> np.ndarray:
    """Bits of each result under one distribution: `bins[k]` is P(bin k | reply), zero beyond its end."""
    number = bin_of(rtt)
    inside = (number >= 0) & (number < len(bins))
    probability = np.where(inside, bins[np.clip(number, 0, len(bins) - 1)], 0.0)
    return result_bits(np.full(len(rtt), failure), probability, rtt)
