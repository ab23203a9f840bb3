"""Options of a build: what shapes the bytes (RowOptions), and what only shapes the run (RunOptions)."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import UsageError
from ping_llm.rows import codec

ENGINES = ("duckdb", "reference", "spark")
GROUPINGS = ("src_addr", "probe_id")
_SPLIT_NAMES = {1: ("train",), 2: ("train", "val"), 3: ("train", "val", "test")}
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class RowOptions:
    """The same input and the same RowOptions give the same bytes."""

    max_row_mib: int = 8
    group_by: str = "src_addr"
    split: str | None = None  # such as "probe:0.9,0.1"

    def __post_init__(self) -> None:
        if self.group_by not in GROUPINGS:
            raise UsageError(f"--group-by is {' or '.join(GROUPINGS)}, not {self.group_by!r}")
        if not 1 <= self.max_row_mib <= 1024:
            raise UsageError(f"--max-row-mib must be from 1 to 1024, not {self.max_row_mib}")
        self.fractions()

    @property
    def by_probe(self) -> bool:
        return self.group_by == "probe_id"

    @property
    def max_measurements(self) -> int:
        """The most measurements that a row can hold."""
        return codec.max_measurements(self.max_row_mib << 20)

    def fractions(self) -> list[tuple[str, float]]:
        """(sub-folder, fraction) of each split; one without a name when there is no split."""
        if self.split is None:
            return [("", 1.0)]
        kind, _, numbers = self.split.partition(":")
        try:
            values = [float(number) for number in numbers.split(",")]
        except ValueError:
            values = []
        if kind != "probe" or not values or min(values) <= 0 or abs(sum(values) - 1) > 1e-9:
            raise UsageError(
                f"--split {self.split!r} is not understood; "
                "write probe: and fractions that add up to 1, such as probe:0.9,0.1"
            )
        names = _SPLIT_NAMES.get(len(values)) or tuple(f"split-{i}" for i in range(len(values)))
        return list(zip(names, values, strict=True))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RunOptions:
    """How to run: none of these changes a byte of the result."""

    engine: str = "duckdb"
    workers: int = 0  # 0: one a core
    memory_limit: str = "4GB"
    temp: Path | None = None  # None: below the output folder
    spark_master: str | None = None  # None: what spark-submit or the environment says, else local-cluster

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"--engine is one of {', '.join(ENGINES)}, not {self.engine!r}")
        if self.workers < 0:
            raise UsageError(f"--workers must be positive, not {self.workers}")
        if self.memory_bytes < 256 * 10**6:
            raise UsageError(f"--memory-limit {self.memory_limit} is too little; give at least 256MB")

    @property
    def threads(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory_limit)


def parse_bytes(text: str) -> int:
    """'4GB', '512 MiB' → bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", text.upper())
    if not match:
        raise UsageError(f"{text!r} is not an amount of memory; write it like 4GB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])
