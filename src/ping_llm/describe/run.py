"""`ping-llm describe`: open data, compute figures, and return text, JSON or HTML."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ping_llm.describe.figures import Figures, by_place, measure
from ping_llm.errors import PingError, UsageError
from ping_llm.files import whole_file
from ping_llm.ingest import read_measurements
from ping_llm.ingest.accounting import Account, read_summary
from ping_llm.ingest.options import IngestOptions, find_files
from ping_llm.ingest.run import report_from_json
from ping_llm.measurements.parquet import ParquetInput, connect, open_input
from ping_llm.measurements.places import Places
from ping_llm.measurements.schema import LAST_VERSION, TABLE_VERSIONS
from ping_llm.progress import Progress
from ping_llm.splits.run import REPORT_FILE

MEASUREMENTS_KIND, SPLITS_KIND, RAW_KIND = "measurements", "splits", "raw input"


@dataclass(frozen=True)
class Source:
    """Named tables of measurements: the splits, or one table `all`."""

    kind: str
    parts: dict[str, ParquetInput]
    troubles: tuple[str, ...] = ()


def open_source(places: Sequence[str], temporary: Path) -> Source:
    """Open splits, measurements or raw input. Raw input is read once, into Parquet below `temporary`."""
    folder = Path(places[0])
    if len(places) == 1 and (folder / REPORT_FILE).exists():
        names = [name for name in ("train", "val", "test") if (folder / name).is_dir()]
        return Source(SPLITS_KIND, {name: open_input([str(folder / name)]) for name in names})
    find_files(places)  # raises if a path does not exist
    try:
        return Source(MEASUREMENTS_KIND, {"all": open_input(places)})
    except PingError:
        troubles: list[str] = []
        return Source(RAW_KIND, {"all": _read_raw(places, temporary, troubles)}, tuple(troubles))


def _read_raw(places: Sequence[str], temporary: Path, troubles: list[str]) -> ParquetInput:
    path = temporary / "raw.parquet"
    rows = 0
    with (
        Progress("read", unit="measurements") as progress,
        whole_file(path) as aside,
        pq.ParquetWriter(aside, TABLE_VERSIONS[LAST_VERSION], compression="zstd") as writer,
    ):
        for batch in read_measurements(places, version=LAST_VERSION, troubles=troubles):
            writer.write_batch(batch)
            progress.advance(len(batch))
            rows += len(batch)
    if not rows:
        why = f": {troubles[0]}" if troubles else "; `ping-llm ingest` says why."
        raise PingError(f"{' '.join(places)} has no measurement{why}")
    return open_input([str(path)])


@dataclass(frozen=True)
class Description:
    """The figures of the data at a path.

    Attributes:
      troubles: sentences about damaged files of raw input.
      ingested: counts of the results that `ingest` read for these measurements, if it left a report.
    """

    title: str
    kind: str
    parts: dict[str, Figures]
    troubles: tuple[str, ...] = ()
    ingested: Account | None = None

    def as_json(self) -> dict[str, Any]:
        summaries = {name: figures.summary for name, figures in self.parts.items()}
        head: dict[str, Any] = {"path": self.title, "kind": self.kind}
        if self.ingested is not None:
            head["ingest"] = self.ingested.as_json(
                with_packets=False, with_hops=self.ingested.traceroutes > 0
            )
        if self.kind == SPLITS_KIND:
            return {**head, "splits": summaries}
        return {**head, **summaries["all"]}

    def as_text(self) -> str:
        from ping_llm.describe.page import render_text as render

        summaries = {name: figures.summary for name, figures in self.parts.items()}
        return render(self.kind, summaries, self.ingested)

    def as_html(self) -> str:
        from ping_llm.describe.page import render_page as render

        return render(self.title, self.kind, self.parts, self.ingested)


def describe(
    places: Sequence[str],
    memory_mb: int = 1_000,
    threads: int = 2,
    temporary: Path | None = None,
    located: Places | None = None,
) -> Description:
    """Compute the figures of measurements, of the splits of a sharding, or of raw input.

    Args:
      located: places of prefixes, which add figures by country and AS.
      temporary: folder for data that do not fit into memory; None: the system's own.
    """
    with tempfile.TemporaryDirectory(prefix="ping-llm-", dir=temporary) as folder:
        source = open_source(places, Path(folder))
        total = sum(data.rows for data in source.parts.values())
        parts = {}
        with Progress("describe", total, "measurements") as progress:
            for name, data in source.parts.items():
                with connect(memory_mb, threads, Path(folder) / "spill") as connection:
                    parts[name] = measure(connection, data)
                    if located is not None:
                        parts[name].summary["places"] = by_place(connection, data, located)
                progress.advance(data.rows)
        ingested = _ingested(places) if source.kind == MEASUREMENTS_KIND else None
        return Description(" ".join(places), source.kind, parts, source.troubles, ingested)


def _ingested(places: Sequence[str]) -> Account | None:
    """Return the summed counts of the ingests of all these folders; None if one has no readable report."""
    total = Account()
    for place in places:
        try:
            summary = read_summary(Path(place))
            if summary is None:
                return None
            total += report_from_json(summary, IngestOptions()).total
        except (OSError, KeyError, TypeError, ValueError, AttributeError, UsageError):
            return None  # not an error: the measurements themselves were read
    return total
