"""Longest-prefix median: the median between the narrowest pair of prefixes with enough measurements.

Addresses that are close in the address space are often close in the network. This is the idea behind King
(Gummadi et al., "King: estimating latency between arbitrary Internet end hosts", IMW 2002) and iPlane's
clustering by BGP atoms (Madhyastha et al., OSDI 2006), here without their probes.
"""

from typing import ClassVar

import numpy as np

from ping_llm.answer.methods.base import PointMethod, medians
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids, prefixes_of

# Leading bits of each width, for IPv4 and IPv6: a host, a site, a provider's block, a region, anywhere.
_HOST, _SITE, _BLOCK, _REGION, _ANY = range(5)
_IPV4_BITS = (32, 24, 16, 8, 0)
_IPV6_BITS = (128, 48, 32, 20, 0)

#: (source, destination) from the narrowest to the widest.
LADDER = (
    (_HOST, _HOST),
    (_SITE, _HOST),
    (_HOST, _SITE),
    (_SITE, _SITE),
    (_BLOCK, _HOST),
    (_BLOCK, _SITE),
    (_HOST, _BLOCK),
    (_SITE, _BLOCK),
    (_REGION, _HOST),
    (_REGION, _SITE),
    (_BLOCK, _BLOCK),
    (_ANY, _HOST),
    (_ANY, _SITE),
    (_REGION, _BLOCK),
    (_HOST, _ANY),
    (_SITE, _ANY),
    (_ANY, _BLOCK),
    (_ANY, _REGION),
    (_ANY, _ANY),
)

#: Least number of replies of a median that is used, except on the widest rung.
_ENOUGH = 3


class Prefixes(PointMethod):
    name = "prefixes"
    paper = "Gummadi et al., King, IMW 2002; Madhyastha et al., iPlane, OSDI 2006 (locality of prefixes)"
    groups: ClassVar[int] = len(LADDER)

    def learn(self, train: Columns) -> None:
        replies = train.take(train.replied)
        self._rungs = []
        for rung in LADDER:
            ids = Ids(_keys(replies.src, replies.dst, rung))
            count = np.bincount(ids.of_rows, minlength=len(ids))
            self._rungs.append((ids, medians(ids.of_rows, replies.rtt, len(ids)), count))

    def points(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        point, group = np.full(len(queries), np.nan), np.full(len(queries), len(LADDER) - 1)
        open_ = np.arange(len(queries))
        for number, (rung, (ids, median, count)) in enumerate(zip(LADDER, self._rungs, strict=True)):
            if not len(open_):
                break
            found = ids.find(_keys(queries.src[open_], queries.dst[open_], rung))
            good = found >= 0
            if rung != (_ANY, _ANY):
                good[good] = count[found[good]] >= _ENOUGH
            point[open_[good]], group[open_[good]] = median[found[good]], number
            open_ = open_[~good]
        overall = float(np.nanmedian(self._rungs[-1][1])) if len(self._rungs[-1][1]) else 50.0
        return np.where(np.isnan(point), overall, point), group


def _keys(src: np.ndarray, dst: np.ndarray, rung: tuple[int, int]) -> np.ndarray:
    """Keys of both prefixes, uint8 [n, 34]; they include the IP version."""
    ends = [
        prefixes_of(end, _IPV4_BITS[width], _IPV6_BITS[width])
        for end, width in zip((src, dst), rung, strict=True)
    ]
    return np.concatenate(ends, axis=1)
