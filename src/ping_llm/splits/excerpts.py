"""Small sets of measurements as a user has them at hand, drawn from a study, each with one question.

A question about a measurement of the study; known are up to a few hundred earlier measurements among a few
sources and destinations: one pair's own past, a source's other destinations, what others measured.
"""

from collections.abc import Iterator

import numpy as np

from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids
from ping_llm.splits.holdout import is_timeless
from ping_llm.splits.questions import Test

#: How many other sources and destinations are among the measurements, drawn from these.
_OTHERS = (0, 0, 1, 3, 7)

#: In so many of them nothing of the asked pair is known.
_NEW_SHARE = 0.35


def excerpts(data: Columns, count: int, most: int, seed: int = 0) -> Iterator[tuple[Columns, Test]]:
    """At most `count` sets of 1 to `most` measurements, even in the logarithm, and a question to each."""
    random = np.random.default_rng(seed)
    timeless = is_timeless(data)
    data = data.sorted_by_time()
    src, dst = Ids(data.src).of_rows, Ids(data.dst).of_rows
    for row in random.permutation(len(data))[:count].tolist():
        sources = _with_others(random, src, dst == dst[row], src[row])
        destinations = _with_others(random, dst, src == src[row], dst[row])
        known = np.isin(src, sources) & np.isin(dst, destinations)
        if random.random() < _NEW_SHARE:
            known &= (src != src[row]) | (dst != dst[row])
        known[row] = False
        if not timeless:
            known &= data.time < data.time[row]
        rows = np.flatnonzero(known)
        size = int(np.exp(random.uniform(0, np.log(most + 1))))
        if timeless:
            rows = np.sort(random.permutation(rows)[:size])
        if len(rows):
            train = data.take(rows[-size:])
            asked = data.take(np.array([row]))
            yield train, Test("excerpt", "excerpt", asked, History(train), not timeless)


def _with_others(random: np.random.Generator, ends: np.ndarray, met: np.ndarray, own: int) -> np.ndarray:
    """An end and some of those that it was measured together with."""
    others = np.unique(ends[met])
    others = random.permutation(others[others != own])
    return np.append(others[: random.choice(_OTHERS)], own)
