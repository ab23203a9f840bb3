"""What is at a path: measurements, the splits of a sharding, or raw input that only ingest understands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from ping_llm.errors import PingError
from ping_llm.files import whole_file
from ping_llm.ingest import read_measurements
from ping_llm.ingest.inputs import find_files
from ping_llm.progress import Progress
from ping_llm.schema import MEASUREMENTS
from ping_llm.shards.measurements import ParquetInput, open_input
from ping_llm.shards.run import REPORT_FILE

MEASUREMENTS_KIND, SPLITS_KIND, RAW_KIND = "measurements", "splits", "raw input"


@dataclass(frozen=True)
class Source:
    """Named tables of measurements: the splits, or one called `all`."""

    kind: str
    parts: dict[str, ParquetInput]


def open_source(places: Sequence[str], temporary: Path) -> Source:
    """Find out what is there. Raw input is read once, into Parquet below `temporary`."""
    folder = Path(places[0])
    if len(places) == 1 and (folder / REPORT_FILE).exists():
        names = [name for name in ("train", "val", "test") if (folder / name).is_dir()]
        return Source(SPLITS_KIND, {name: open_input([str(folder / name)]) for name in names})
    find_files(places)  # says what does not exist
    try:
        return Source(MEASUREMENTS_KIND, {"all": open_input(places)})
    except PingError:
        return Source(RAW_KIND, {"all": _read_raw(places, temporary)})


def _read_raw(places: Sequence[str], temporary: Path) -> ParquetInput:
    path = temporary / "raw.parquet"
    rows = 0
    with (
        Progress("read", unit="measurements") as progress,
        whole_file(path) as aside,
        pq.ParquetWriter(aside, MEASUREMENTS, compression="zstd") as writer,
    ):
        for batch in read_measurements(places):
            writer.write_batch(batch)
            progress.advance(len(batch))
            rows += len(batch)
    if not rows:
        raise PingError(f"{' '.join(places)} has no measurement; `ping-llm ingest` says why.")
    return open_input([str(path)])
