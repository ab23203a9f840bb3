"""What a world is made from: seed, sizes and shares. Every default is here."""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from ping_llm.errors import UsageError
from ping_llm.schema import END_TIME, MIN_TIME

#: Changes whenever the same options would give other bytes: an old world.json is then refused.
WORLD_VERSION = 2

#: The typical dump has about 28 measurements per source.
MEASUREMENTS_PER_PROBE = 28

#: 50 M probes cost about 8 GB of tables; the IPv4 prefixes below would hold four times as many.
MAX_PROBES = 50_000_000
MAX_TARGETS = 1_000_000
MAX_ASES = 4_000


@dataclass(frozen=True)
class WorldOptions:
    """None means: derived from the other sizes by `resolved`."""

    measurements: int = 1_000_000
    probes: int | None = None
    targets: int | None = None
    days: int | None = None
    ases: int | None = None
    seed: int = 0
    ipv6_share: float = 0.42
    failed_share: float = 0.035
    start: str = "2024-01-01"

    def resolved(self) -> "WorldOptions":
        """The same options with every size a number. Raises UsageError for what cannot be simulated."""
        _check("measurements", self.measurements, 1, 10**12)
        probes = self.probes if self.probes is not None else default_probes(self.measurements)
        _check("probes", probes, 1, min(MAX_PROBES, self.measurements))
        targets = self.targets if self.targets is not None else max(8, round(4 * probes**0.5))
        _check("targets", targets, 1, MAX_TARGETS)
        # 7 days for a million, 22 for a hundred million.
        days = self.days if self.days is not None else max(1, round(7 * (self.measurements / 1e6) ** 0.25))
        _check("days", days, 1, 20_000)
        # About as many ASes as hosts in each. An AS has at most 240 sites of 250 hosts.
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
        return asdict(self)


def default_probes(measurements: int) -> int:
    return min(MAX_PROBES, max(1, round(measurements / MEASUREMENTS_PER_PROBE)))


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"--{name} is a number from {low:,} to {high:,}, not {value:,}.")
