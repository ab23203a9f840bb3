"""Options of a world, with all defaults, and its random streams.

Random numbers are counter-based: a number is a pure function of (seed, stream, index). So a measurement does
not depend on the block, thread or restart that drew it. With NumPy's generators, the output would depend on
their order of use and, for the distributions, on NumPy's version.
"""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import UsageError
from ping_llm.hashing import GOLDEN, finalize, finalize_one
from ping_llm.measurements.schema import END_TIME, MIN_TIME

#: Version of worlds. It changes when the same options give different bytes; an old world.json is then
#: refused.
WORLD_VERSION = 2

#: Default measurements per probe: a typical dump has about 28 measurements per source.
MEASUREMENTS_PER_PROBE = 28

#: Limits. 50 M probes need about 8 GB of tables; the IPv4 prefixes below have room for four times as many.
MAX_PROBES = 50_000_000
MAX_TARGETS = 1_000_000
MAX_ASES = 4_000


@dataclass(frozen=True)
class WorldOptions:
    """Options of a world. Sizes that are None are derived from the others by `resolved`.

    Attributes:
      anycast_share: Share of targets in several places; the nearest place replies.
      detour_share: Share of AS pairs with a detour, because they do not meet nearby.
      changed_share: Share of routes that differ from the usual route of their pair.
      width: A probe with c measurements has about width · √c targets.
      jitter, congestion: Factors on the jitter and congestion of the access links.
      size_delay: Factor on the time that a byte takes on the access links. Above 0, each measurement has its
        own size, and its RTT grows with it.
    """

    measurements: int = 1_000_000
    probes: int | None = None
    targets: int | None = None
    days: int | None = None
    ases: int | None = None
    seed: int = 0
    ipv6_share: float = 0.42
    failed_share: float = 0.035
    start: str = "2024-01-01"
    anycast_share: float = 0.0
    detour_share: float = 0.12
    changed_share: float = 0.25
    width: float = 0.8
    jitter: float = 1.0
    congestion: float = 1.0
    size_delay: float = 0.0

    def resolved(self) -> "WorldOptions":
        """The same options with all sizes set. Raises UsageError if they cannot be simulated."""
        _check("measurements", self.measurements, 1, 10**12)
        probes = self.probes if self.probes is not None else default_probes(self.measurements)
        _check("probes", probes, 1, min(MAX_PROBES, self.measurements))
        targets = self.targets if self.targets is not None else max(8, round(4 * probes**0.5))
        _check("targets", targets, 1, MAX_TARGETS)
        # 7 days for a million measurements, 22 for a hundred million.
        days = self.days if self.days is not None else max(1, round(7 * (self.measurements / 1e6) ** 0.25))
        _check("days", days, 1, 20_000)
        # About as many ASes as hosts per AS. An AS has at most 240 sites of 250 hosts.
        hosts = probes + targets
        ases = self.ases if self.ases is not None else max(4, round(hosts**0.5), hosts // 20_000)
        _check("ases", ases, 2, MAX_ASES)
        if hosts > ases * 40_000:
            raise UsageError(
                f"{hosts:,} probes and targets do not fit into {ases:,} autonomous systems (40,000 each): "
                "give more --ases or fewer --probes."
            )
        for name, share, limit in (("ipv6", self.ipv6_share, 1.0), ("failed", self.failed_share, 0.5)):
            if not 0 <= share <= limit:
                raise UsageError(f"--{name} is a share between 0 and {limit}, not {share}.")
        for name in ("anycast_share", "detour_share", "changed_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is a share between 0 and 1, not {getattr(self, name)}.")
        for name in ("width", "jitter", "congestion"):
            if not 0 < getattr(self, name) <= 100:
                raise UsageError(f"{name} is a number above 0 and at most 100, not {getattr(self, name)}.")
        if not 0 <= self.size_delay <= 1000:
            raise UsageError(f"--size-delay is a number from 0 to 1000, not {self.size_delay}.")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed is a number from 0 to 2^63 - 1, not {self.seed}.")
        resolved = replace(self, probes=probes, targets=targets, days=days, ases=ases)
        last_day = resolved.start_date + timedelta(days=days)
        if resolved.start_date < MIN_TIME.date() or last_day > END_TIME.date():
            raise UsageError(f"The days from {self.start} to {last_day} are not all between 1970 and 2100.")
        return resolved

    @property
    def start_date(self) -> date:
        try:
            return date.fromisoformat(self.start)
        except ValueError:
            raise UsageError(f"--start {self.start!r} is not a date: write it like 2024-01-31.") from None

    @property
    def start_second(self) -> int:
        first = self.start_date
        return int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp())

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        if not self.size_delay:
            del values["size_delay"]  # so that worlds without it are described as before this option existed
        return values


def default_probes(measurements: int) -> int:
    return min(MAX_PROBES, max(1, round(measurements / MEASUREMENTS_PER_PROBE)))


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"--{name} is a number from {low:,} to {high:,}, not {value:,}.")


_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT11 = np.uint64(11)


class Draw(IntEnum):
    """Purposes of random numbers. The codes are part of the world's version: never reuse one."""

    AS_PLACE = 1
    AS_PREFIX = 2
    AS_ACCESS = 3
    AS_CONGESTION = 4
    SITE_PLACE = 5
    PROBE_ACCESS = 6
    PROBE_DELAY = 7
    PROBE_JITTER = 8
    PROBE_COUNT = 9
    PROBE_INTERFACE = 10
    PROBE_INTERVAL = 11
    PROBE_START = 12
    TARGET_FAILURE = 13
    TARGET_HOUR = 14
    TARGET_DELAY = 15
    TARGET_INTERFACE = 16
    TARGET_SIZE = 17
    SLOT_TARGET = 18
    SLOT_PHASE = 19
    TIME_JITTER = 20
    PAIR_INFLATION = 21
    PAIR_DETOUR = 22
    ROUTE_LENGTH = 23
    ROUTE_OFFSET = 24
    ROUTE_CHANGE = 25
    FAILURE = 26
    COMPONENT = 27
    JITTER = 28
    PACKET_LOSS = 29
    TARGET_RANK = 30
    ANYCAST = 31
    WORLD = 32
    SIZE = 33


def stream_key(seed: int, stream: Draw) -> np.uint64:
    values = np.array([seed], np.uint64)
    return finalize(finalize(values + GOLDEN) + np.array([int(stream)], np.uint64) * _ODD)[0]


@kernel
def bits_at(key, first, second):
    """64 random bits for a key and two counters, in kernels."""
    return finalize_one(finalize_one(key + np.uint64(first) * GOLDEN) + np.uint64(second) * _ODD)


@kernel
def uniform_at(key, first, second):
    """A random number strictly between 0 and 1 for a key and two counters, in kernels."""
    return (np.float64(bits_at(key, first, second) >> _SHIFT11) + 0.5) * 2.0**-53


def bits(seed: int, stream: Draw, first: np.ndarray, second: np.ndarray | int = 0) -> np.ndarray:
    """`bits_at` for arrays."""
    key = np.array([stream_key(seed, stream)])
    inner = finalize(key + np.asarray(first).astype(np.uint64) * GOLDEN)
    return finalize(inner + np.atleast_1d(np.asarray(second)).astype(np.uint64) * _ODD)


def uniform(seed: int, stream: Draw, first: np.ndarray, second: np.ndarray | int = 0) -> np.ndarray:
    """`uniform_at` for arrays."""
    return ((bits(seed, stream, first, second) >> _SHIFT11).astype(np.float64) + 0.5) * 2.0**-53
