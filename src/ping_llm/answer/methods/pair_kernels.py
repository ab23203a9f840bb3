"""Compiled statistics of a pair's past, rtt[low:high] with the newest last."""

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.measurements.schema import HOUR_US

LAST, RECENT_MEDIAN, WEIGHTED, MEDIAN, HOUR = range(5)

#: Number of newest values that count as recent.
RECENT = 8

#: Weight of the newest value in the exponentially weighted mean of logs; logs, so that one spike does little.
NEWEST_WEIGHT = 0.3

#: Factor by which the weight of each older result falls in the recent rate of failures, over 24 results.
_FAILURE_DECAY = 0.85


@kernel
def from_past(
    rtt: np.ndarray, time: np.ndarray, low: np.ndarray, high: np.ndarray, now: np.ndarray, kind: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Point estimate, number of values and spread (mean absolute step of log RTT) of each past."""
    n = len(low)
    point, spread = np.zeros(n), np.zeros(n)
    count = np.zeros(n, np.int64)
    for i in range(n):
        a, b = low[i], high[i]
        count[i] = b - a
        if b == a:
            continue
        first = max(a, b - RECENT)
        for j in range(first + 1, b):
            spread[i] += abs(np.log((rtt[j] + 0.1) / (rtt[j - 1] + 0.1)))
        spread[i] /= max(b - first - 1, 1)
        if kind == LAST:
            point[i] = rtt[b - 1]
        elif kind == RECENT_MEDIAN:
            point[i] = np.median(rtt[first:b])
        elif kind == WEIGHTED:
            mean = np.log(rtt[first] + 0.1)
            for j in range(first + 1, b):
                mean += NEWEST_WEIGHT * (np.log(rtt[j] + 0.1) - mean)
            point[i] = np.exp(mean) - 0.1
        elif kind == MEDIAN:
            point[i] = np.median(rtt[a:b])
        else:
            if now[i] < 0:  # the question has no time, so it has no hour
                point[i] = np.median(rtt[a:b])
                continue
            hour = (now[i] // HOUR_US) % 24
            same = np.empty(b - a)
            found = 0
            for j in range(a, b):
                # The same hour of the day or one beside it, across midnight too.
                if ((time[j] // HOUR_US) % 24 - hour + 25) % 24 <= 2:
                    same[found] = rtt[j]
                    found += 1
            point[i] = np.median(same[:found]) if found else np.median(rtt[a:b])
    return point, count, spread


@kernel
def recent_failures(rtt: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Summed weights of the failures, and of all, among the newest results of each past."""
    n = len(low)
    failed, total = np.zeros(n), np.zeros(n)
    for i in range(n):
        weight = 1.0
        for j in range(high[i] - 1, max(low[i], high[i] - 24) - 1, -1):
            total[i] += weight
            if rtt[j] < 0:
                failed[i] += weight
            weight *= _FAILURE_DECAY
    return failed, total
