"""Where every result went: results = measurements + duplicates + not pings + rejects, a file and in all."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ping_llm.errors import PingError
from ping_llm.schema import Reject


@dataclass
class Account:
    """Counts of results; `packets` counts rows written, which differ only with `--rtt each`."""

    results: int = 0
    measurements: int = 0
    duplicates: int = 0
    not_pings: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    packets: int = 0

    def __iadd__(self, other: "Account") -> "Account":
        self.results += other.results
        self.measurements += other.measurements
        self.duplicates += other.duplicates
        self.not_pings += other.not_pings
        self.rejects.update(other.rejects)
        self.packets += other.packets
        return self

    @property
    def rejected(self) -> int:
        return sum(self.rejects.values())

    def check(self, name: str) -> None:
        """Raise unless every result went somewhere, once."""
        accounted = self.measurements + self.duplicates + self.not_pings + self.rejected
        if self.results != accounted:
            raise PingError(
                f"{name}: {self.results:,} results came in but {accounted:,} are accounted for "
                f"({self.measurements:,} measurements, {self.duplicates:,} duplicates, "
                f"{self.not_pings:,} not pings, {self.rejected:,} rejects). That is a bug: please report it"
            )

    def as_json(self, with_packets: bool) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "results": self.results,
            "measurements": self.measurements,
            "duplicates": self.duplicates,
            "not_pings": self.not_pings,
            # In the order of the list, so that the same counts are the same bytes.
            "rejects": {reason.value: self.rejects[reason] for reason in Reject if self.rejects[reason]},
        }
        if with_packets:
            counts["packets"] = self.packets
        return counts
