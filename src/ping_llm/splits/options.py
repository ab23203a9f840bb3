"""Options of a split into shards, with all defaults and limits."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from ping_llm.errors import UsageError

RULES = ("time", "probe", "pair", "row")
STRATA = ("time", "msm_id", "ip_version", "failed", "probe_id")
SPLITS = {1: ("train",), 2: ("train", "test"), 3: ("train", "val", "test")}

#: Rows per shard: 100 million rows make 200 shards. With the default fractions, a multiple of ten shards
#: divides evenly: 8 : 1 : 1.
ROWS_PER_SHARD = 500_000
FEWEST_SHARDS, MOST_SHARDS = 10, 2_000

#: Rows collected before they are written, as one row group per shard: 72 bytes per row.
BUFFER_ROWS = 4_000_000

#: Tolerances of the checks: shards of a split within 5 % of equal size, strata within 1 % of their share.
SIZE_TOLERANCE = 0.05
STRATUM_TOLERANCE = 0.01


@dataclass(frozen=True)
class ShardOptions:
    """Options that determine the output.

    Attributes:
      by: Unit that is never in two splits: `time`, `probe` (a source), `pair` (of addresses, in either
        direction), or `row`.
      fractions: Fractions of train, val and test; of train and test if there are two.
      shards: Number of shards in all splits together; None: one per ROWS_PER_SHARD rows.
      stratify: Columns whose values are spread evenly over the shards.
      gap_seconds: Seconds left out between the splits, by time only.
      seed: Random seed of the hash used by probe, pair and row.
    """

    by: str = "time"
    fractions: tuple[float, ...] = (0.8, 0.1, 0.1)
    shards: int | None = None
    stratify: tuple[str, ...] = ()
    gap_seconds: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in RULES:
            raise UsageError(f"--by must be one of {', '.join(RULES)} or held-out, not {self.by}.")
        if len(self.fractions) not in SPLITS:
            raise UsageError("--fractions must be two numbers (train, test) or three (train, val, test).")
        if not all(0 <= fraction <= 1 for fraction in self.fractions) or abs(sum(self.fractions) - 1) > 1e-9:
            given = ",".join(f"{fraction:g}" for fraction in self.fractions)
            raise UsageError(f"--fractions {given} must be shares that add up to 1.")
        for name in self.stratify:
            if name not in STRATA:
                raise UsageError(f"--stratify must name columns of {', '.join(STRATA)}, not {name}.")
        if len(set(self.stratify)) != len(self.stratify):
            raise UsageError("--stratify must name each column once.")
        if self.gap_seconds and self.by != "time":
            raise UsageError(f"--gap does not apply to --by {self.by}.")
        if self.shards is not None and not len(self.used) <= self.shards <= MOST_SHARDS:
            raise UsageError(f"--shards must be from {len(self.used)} to {MOST_SHARDS:,}, not {self.shards}.")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must be from 0 to 2^63 - 1, not {self.seed}.")

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS[len(self.fractions)]

    @property
    def used(self) -> list[int]:
        """Indices of the splits with a fraction above 0."""
        return [index for index, fraction in enumerate(self.fractions) if fraction > 0]

    def shards_for(self, rows: int) -> int:
        if self.shards is not None:
            return self.shards
        tens = round(rows / ROWS_PER_SHARD / 10) * 10
        return min(MOST_SHARDS, max(FEWEST_SHARDS, tens))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_duration(text: str) -> int:
    """Convert 90s, 15m, 6h, 2d, or a plain number of seconds, to seconds."""
    match = re.fullmatch(r"(\d+)\s*([smhd]?)", text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a duration: write 90s, 15m, 6h or 2d.")
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]


def parse_fractions(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--fractions {text!r} are not numbers: write them like 0.8,0.1,0.1.") from None
