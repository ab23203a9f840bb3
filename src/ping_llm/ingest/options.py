"""Options of ingest, with all defaults and limits, and the search for input files."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ping_llm.errors import UsageError
from ping_llm.measurements import addresses
from ping_llm.paths import files_below, holds_measurements, matching_files

RTT_CHOICES = ("avg", "min", "max", "each")
SOURCE_CHOICES = ("auto", "from", "src_addr")
TRACEROUTE_CHOICES = ("off", "last", "hops")

#: Bytes of decompressed text per block. 1 MiB is about 2,000 results; with 20,000 the parsed objects do not
#: fit in the cache and parsing takes 1.7 times as long.
BLOCK_BYTES = 1 << 20

#: Bytes per stretch of a compressed and of a plain file; workers share the stretches of a file. 4 MiB of
#: bzip2 take one core 2 s, and finding the first line of a stretch costs a block of 900 kB.
STRETCH_BYTES = 4 << 20
PLAIN_STRETCH_BYTES = 64 << 20

#: Largest record, in bytes. A longer one is not a ping (16 packets make 2 KB) but an error or an attack: it
#: is skipped while reading and never held in memory.
MAX_RECORD_BYTES = 4 << 20

#: Largest nesting depth of JSON: the limit of orjson.
MAX_DEPTH = 1024

#: Largest number of bytes kept of a rejected record. All real results fit completely.
RAW_BYTES = 8 << 10

#: Rows per row group: in the output, in the intermediate parts, and in the rejects.
ROW_GROUP_ROWS = 131_072
PART_GROUP_ROWS = 65_536
REJECT_GROUP_ROWS = 4_096
#: Rows sorted at a time when the parts become the table: about 500 bytes per row at the peak of the sort.
#: A single day may have more; then DuckDB spills to the work folder.
SORT_ROWS = 1_000_000

#: DuckDB's memory for all workers together, in MB, and the largest number of workers that sort at the same
#: time. A worker itself takes 130 MB while sorting, 55 MB while reading.
SORT_MEMORY_MB = 400
SORT_WORKERS = 4

#: Largest default number of workers (one per core). Eight take 0.9 GB; memory should stay below 1 GB.
MOST_WORKERS = 8


@dataclass(frozen=True)
class IngestOptions:
    """Options that determine the output: two runs with equal options and inputs write equal bytes.

    Attributes:
      rtt: `avg`, `min` or `max` over a result's packets that count, or `each`: one measurement per packet.
      source: `auto` (src_addr if public, else from), `from` or `src_addr`.
      traceroutes: `off`: not used; `last`: the destination, if it is the last hop; `hops`: every public hop.
        Off by default: simple methods do not distinguish kinds, and the RTT of a router would mislead them.
      src: Source address of ping, fping and mtr output; None: such output is rejected.
      places: Files with the places of prefixes; replies that are faster than light allows are rejected.
    """

    rtt: str = "avg"
    source: str = "auto"
    traceroutes: str = "off"
    src: str | None = None
    places: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.src is not None and not addresses.pack(pa.array([self.src]))[1].all():
            raise UsageError(f"--src {self.src} is not an IP address")
        if self.rtt not in RTT_CHOICES:
            raise UsageError(f"--rtt {self.rtt} is not one of {', '.join(RTT_CHOICES)}")
        if self.source not in SOURCE_CHOICES:
            raise UsageError(f"--source {self.source} is not one of {', '.join(SOURCE_CHOICES)}")
        if self.traceroutes not in TRACEROUTE_CHOICES:
            raise UsageError(
                f"--traceroutes {self.traceroutes} is not one of {', '.join(TRACEROUTE_CHOICES)}"
            )

        if self.places:
            from ping_llm.ingest.too_fast import known_places

            known_places(self.places)  # a table that cannot be read is refused before anything is written

    @property
    def with_traceroutes(self) -> bool:
        return self.traceroutes != "off"

    def as_json(self) -> dict[str, Any]:
        """The options for JSON; newer ones only if used, so that tables made without them stay the same."""
        chosen = asdict(self)
        if not self.with_traceroutes:
            del chosen["traceroutes"]
        if self.src is None:
            del chosen["src"]
        del chosen["places"]
        if self.places:
            from ping_llm.ingest.too_fast import fingerprints

            chosen["places"] = fingerprints(self.places)
        return chosen


STDIN = "-"


def find_files(inputs: Sequence[str], out: Path | None = None) -> list[str]:
    """Expand files, folders, globs and `-`: each file once, sorted by path.

    They are sorted because the order determines which of two equal results is the duplicate, and this should
    not depend on the order on the command line.
    """
    found: set[str] = set()
    for given in inputs:
        if given == STDIN:
            found.add(STDIN)
            continue
        path = Path(given)
        if path.is_dir():
            files = _files_below(path, out)
            if not files:
                raise UsageError(f"{given} is a folder without files of measurements in it")
            found.update(files)
        elif path.exists():
            found.add(given)
        else:
            matches = [str(match) for match in matching_files(given)]
            if not matches:
                raise UsageError(f"{given} does not exist, and as a pattern it matches no file")
            found.update(matches)
    if not found:
        raise UsageError("no input: name files, folders, patterns, or - for standard input")
    return sorted(found)


#: Files that ingest, simulate and split write beside measurements. In folders with them, only Parquet files
#: hold measurements.
_NOTES = ("ingest.json", "world.json", "shard.json", "split.json")


def _files_below(folder: Path, out: Path | None) -> list[str]:
    """All files below a folder, except hidden ones (.name, _name), our own notes, and files of the output."""
    files = []
    ours: dict[Path, bool] = {}
    for path in files_below(folder):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "_")) for part in parts)
        above = [folder, *(folder.joinpath(*parts[:count]) for count in range(1, len(parts)))]
        for place in above:
            if place not in ours:
                ours[place] = any((place / note).exists() for note in _NOTES)
        hidden |= any(ours[place] and not holds_measurements(place, path) for place in above)
        own = out is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(out))
        if not hidden and not own:
            files.append(str(path))
    return files
