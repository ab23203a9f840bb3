"""Rejection of replies that are faster than light allows, where the places of both ends are known.

The bound is light in vacuum along the great circle, not in fibre: microwave links and satellites with laser
links are faster than fibre, so only vacuum is a strict bound. A place is the middle of a city or a prefix, so
each end may be `MARGIN_KM` away from it. A reply that is still too fast has a wrong place, an anycast
address, which has many places, a wrong clock, or comes from something nearer than the destination.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from ping_llm.ingest.columns import ParsedRecords
from ping_llm.measurements.places import Places, distance_km, locations
from ping_llm.measurements.rules import ACCEPTED, VERDICT
from ping_llm.measurements.schema import Reject

#: Speed of light in vacuum, in km per ms.
VACUUM_KM_PER_MS = 299.792458
#: Largest error of the place of each end, in km: the size of a large metropolitan area. Both ends together
#: lower the bound of the RTT by 1.3 ms.
MARGIN_KM = 100.0


@lru_cache(maxsize=1)
def known_places(paths: tuple[str, ...]) -> Places:
    """The places in some files; each worker reads them once."""
    return Places([Path(path) for path in paths])


def fingerprints(paths: tuple[str, ...]) -> list[str]:
    """SHA-256 of the content of files, for the options that determine a table."""
    status = [Path(path).stat() for path in paths]
    return [_sha256(path, one.st_size, one.st_mtime_ns) for path, one in zip(paths, status, strict=True)]


@lru_cache(maxsize=64)
def _sha256(path: str, size: int, changed: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reject_too_fast(columns: ParsedRecords, paths: tuple[str, ...]) -> np.ndarray:
    """Reject rows whose RTT is shorter than light needs; return a mask of these rows, bool [n].

    For a result that becomes several rows (`--rtt each`), its fastest packet is compared.
    """
    out = np.zeros(len(columns), bool)
    if not paths:
        return out
    rows = np.flatnonzero(columns.verdict == ACCEPTED)
    places = known_places(paths)
    ends = (locations(places.of_all(side[rows])) for side in (columns.src, columns.dst))
    # Where a place is not known, the bound is NaN, and NaN is never larger.
    least = 2 * (distance_km(*ends) - 2 * MARGIN_KM) / VACUUM_KM_PER_MS
    out[rows] = least > _fastest(columns)[rows]
    columns.verdict[out] = VERDICT[Reject.TOO_FAST]
    return out


def _fastest(columns: ParsedRecords) -> np.ndarray:
    """The smallest RTT of each result; infinite where there is no reply."""
    if columns.packets is None or columns.packet_offsets is None:
        return np.where(columns.rtt >= 0, columns.rtt, np.inf)
    out = np.full(len(columns), np.inf)
    full = np.diff(columns.packet_offsets) > 0
    if full.any():
        replies = np.where(columns.packets >= 0, columns.packets, np.inf)
        out[full] = np.minimum.reduceat(replies, columns.packet_offsets[:-1][full])
    return out
