"""What names a stream of batches, and what makes it: small enough to hand to another process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ping_llm.contexts.options import ContextOptions, Parameters
from ping_llm.contexts.plan import Planner, unit_sequences
from ping_llm.contexts.units import NOTES, SKIP, STOP, Rows, UnitFiller
from ping_llm.errors import UsageError
from ping_llm.rows.store import RowStore


@dataclass(frozen=True)
class Stream:
    """One host's share of a stream. The arguments are those of `Batches`."""

    rows: Rows
    batch_size: int
    length: int
    options: ContextOptions = field(default_factory=ContextOptions)
    seed: int = 0
    epochs: int | None = None
    process_index: int = 0
    process_count: int = 1
    on_bad_row: str = STOP

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "process_count"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(
                f"epochs is {self.epochs}: it must be at least 1, or nothing for a stream without end"
            )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed is {self.seed}: give a whole number from 0 to 2^63 - 1")
        if not 0 <= self.process_index < self.process_count or self.batch_size % self.process_count:
            raise UsageError(
                f"a global batch of {self.batch_size} cannot be shared by {self.process_count} hosts "
                f"(this is {self.process_index}): make the batch a multiple of the hosts"
            )
        if self.on_bad_row not in (STOP, SKIP):
            raise UsageError(f"on_bad_row is {self.on_bad_row!r}: choose {STOP} or {SKIP}")
        Parameters.of(self.options, self.length)

    def identity(self) -> dict[str, Any]:
        """What two equal streams have in common; hosts and threads are not part of it."""
        return {
            "fingerprint": self.rows.fingerprint,
            "options": self.options.digest(),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "length": self.length,
            "epochs": self.epochs,
        }

    def planner(self) -> Planner:
        return Planner(
            self.rows.index,
            Parameters.of(self.options, self.length),
            unit_sequences(self.batch_size),
            self.length,
            self.seed,
        )

    def filler(self) -> UnitFiller:
        return UnitFiller(
            rows=self.rows,
            parameters=Parameters.of(self.options, self.length),
            seed=self.seed,
            length=self.length,
            batch_size=self.batch_size,
            process_index=self.process_index,
            process_count=self.process_count,
            fillers=self.epochs is None,
            on_bad_row=self.on_bad_row,
        )

    def unit_bytes(self) -> int:
        """Memory of a filled unit of this host."""
        sequences = unit_sequences(self.batch_size) // self.process_count
        return 4 * sequences * (4 * self.length + NOTES * self.options.max_segments)


def open_rows(rows: str | Path | Rows, data_format: str = "probe_chunks") -> Rows:
    """The rows behind a path: `probe_chunks` are built rows, `network_parquet` is a table of measurements."""
    if not isinstance(rows, str | Path):
        return rows
    if data_format == "probe_chunks":
        return RowStore(rows)
    if data_format == "network_parquet":
        from ping_llm.contexts.parquet_rows import rows_of_parquet

        return rows_of_parquet(rows)
    raise UsageError(
        f"network_data_format is {data_format!r}: choose probe_chunks (rows that `ping-llm rows build` made) "
        "or network_parquet (measurements as Parquet, for small data)"
    )
