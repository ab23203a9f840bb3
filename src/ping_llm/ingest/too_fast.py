"""Replies that came sooner than light allows, where the places of both ends are known.

The bound is light in vacuum along the great circle, not in fibre: microwave links and satellites with laser
links are faster than fibre, so only vacuum is a bound that nothing can beat. A place is the middle of a city
or a prefix, so each end may be `MARGIN_KM` away from it. What is left is a wrong place, an anycast address,
which has many places, a wrong clock, or an answer from something nearer than the destination.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from ping_llm.ingest.columns import ParsedRecords
from ping_llm.measurements.places import Places, distance_km, locations
from ping_llm.measurements.rules import ACCEPTED, VERDICT
from ping_llm.measurements.schema import Reject

#: km per ms.
VACUUM_KM_PER_MS = 299.792458
#: km by which the place of each end may be wrong: the size of a large metropolitan area. Both together allow
#: a reply to be 1.3 ms faster.
MARGIN_KM = 100.0


@lru_cache(maxsize=1)
def known_places(paths: tuple[str, ...]) -> Places:
    """The places of some files; a worker reads them once."""
    return Places([Path(path) for path in paths])


def fingerprints(paths: tuple[str, ...]) -> list[str]:
    """The content of files, for the options that decide a table."""
    status = [Path(path).stat() for path in paths]
    return [_sha256(path, one.st_size, one.st_mtime_ns) for path, one in zip(paths, status, strict=True)]


@lru_cache(maxsize=64)
def _sha256(path: str, size: int, changed: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reject_too_fast(columns: ParsedRecords, paths: tuple[str, ...]) -> np.ndarray:
    """Reject what no light could have done; which rows that are, bool [n].

    Of a result that becomes several rows (`--rtt each`), the fastest packet counts.
    """
    out = np.zeros(len(columns), bool)
    if not paths:
        return out
    rows = np.flatnonzero(columns.verdict == ACCEPTED)
    places = known_places(paths)
    ends = (locations(places.of_all(side[rows])) for side in (columns.src, columns.dst))
    # NaN, where a place is not known, is never larger.
    least = 2 * (distance_km(*ends) - 2 * MARGIN_KM) / VACUUM_KM_PER_MS
    out[rows] = least > _fastest(columns)[rows]
    columns.verdict[out] = VERDICT[Reject.TOO_FAST]
    return out


def _fastest(columns: ParsedRecords) -> np.ndarray:
    """The RTT of each result; infinite where nothing came back."""
    if columns.packets is None or columns.packet_offsets is None:
        return np.where(columns.rtt >= 0, columns.rtt, np.inf)
    out = np.full(len(columns), np.inf)
    full = np.diff(columns.packet_offsets) > 0
    if full.any():
        replies = np.where(columns.packets >= 0, columns.packets, np.inf)
        out[full] = np.minimum.reduceat(replies, columns.packet_offsets[:-1][full])
    return out
