"""Accounting of all results, per file and in total, and the output folder with its summary (`ingest.json`).

results = measurements + duplicates + not pings + not used + rejects. A traceroute counts as its hops.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ping_llm.errors import PingError, UsageError
from ping_llm.locks import LOCK_FILE
from ping_llm.measurements.schema import KINDS, NotUsed, Reject
from ping_llm.paths import sql_path

if TYPE_CHECKING:
    import duckdb

#: What can happen to a reply in a traceroute, in the order of the codes in traceroutes.py.
FATES = (
    "used", "other_address", "private", "err", "edst", "no_address", "late", "dup", "error", "lost",
    "rejected", "bad_rtt", "bad_address", "too_fast",
)  # fmt: skip


@dataclass
class Account:
    """Counts of results; `packets` is the number of rows written, which differs only with `--rtt each`.

    Attributes:
      kinds: Measurements by kind.
      traceroutes: Results that were split into hops and count as these.
      not_used: Hops that are not used, by reason.
      replies: Replies of hops, by what happened to them (FATES).
    """

    results: int = 0
    measurements: int = 0
    duplicates: int = 0
    not_pings: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    packets: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    traceroutes: int = 0
    not_used: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "Account") -> "Account":
        self.results += other.results
        self.measurements += other.measurements
        self.duplicates += other.duplicates
        self.not_pings += other.not_pings
        self.rejects.update(other.rejects)
        self.packets += other.packets
        self.kinds.update(other.kinds)
        self.traceroutes += other.traceroutes
        self.not_used.update(other.not_used)
        self.replies.update(other.replies)
        return self

    @property
    def rejected(self) -> int:
        return sum(self.rejects.values())

    def check(self, name: str) -> None:
        """Raise PingError unless every result is accounted for exactly once."""
        not_used = self.not_used.total()
        accounted = self.measurements + self.duplicates + self.not_pings + not_used + self.rejected
        if self.results != accounted:
            raise PingError(
                f"{name}: {self.results:,} results came in but {accounted:,} are accounted for "
                f"({self.measurements:,} measurements, {self.duplicates:,} duplicates, "
                f"{self.not_pings:,} not pings, {not_used:,} hops not used, {self.rejected:,} rejects). "
                "That is a bug: please report it"
            )

    def as_json(self, with_packets: bool, with_hops: bool = False) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "results": self.results,
            "measurements": self.measurements,
            "duplicates": self.duplicates,
            "not_pings": self.not_pings,
            # In the order of `Reject`, so that equal counts give equal bytes.
            "rejects": {reason.value: self.rejects[reason] for reason in Reject if self.rejects[reason]},
        }
        if with_packets:
            counts["packets"] = self.packets
        if with_hops:
            counts["traceroutes"] = self.traceroutes
            counts["kinds"] = {kind: self.kinds[kind] for kind in KINDS}
            counts["not_used"] = {
                reason.value: self.not_used[reason] for reason in NotUsed if self.not_used[reason]
            }
            counts["replies"] = {fate: self.replies[fate] for fate in FATES if self.replies[fate]}
        return counts


#: Patterns of the output of each tool; none of them states the source address.
_TOOLS = {
    "ping": re.compile(r"^PING |bytes from .*(icmp_seq|ttl)=|^Reply from |min/avg/max"),
    "fping": re.compile(
        r"xmt/rcv/%loss|: \[\d+\], \d+ bytes|^\S+ : [\d.-]+( [\d.-]+)*$|is (alive|unreachable)$"
    ),
    "mtr": re.compile(r"Loss%|^HOST: |^Mtr_Version"),
}
_LOOK_AT = 50

_READS = (
    "ingest reads RIPE Atlas results (JSON), and Parquet or CSV tables with a header such as "
    "time,src,dst,rtt, and with --src the English output of ping, fping and mtr; docs/ingest.md has the "
    "formats"
)


def nothing_usable(total: Account, out: Path) -> str | None:
    """If there is no measurement at all, a sentence with the likely reason; else None."""
    if total.measurements:
        return None
    if not total.results:
        return f"the inputs have no results; {_READS}"
    if total.not_pings == total.results:
        return f"none of the {total.results:,} results is a ping"
    why = ", ".join(f"{count:,} {reason}" for reason, count in total.rejects.most_common(3))
    sentence = f"none of the {total.results:,} results is a measurement ({why}; see {out / 'rejects'})"
    tool = _tool(out)
    if tool:
        sentence += (
            f": this looks like the output of {tool}, which can be read if --src ADDRESS gives its source"
        )
    if not tool and (total.rejects["unparsable"] or total.rejects["not_an_object"]):
        sentence += f"; {_READS}"
    return sentence


def _tool(out: Path) -> str | None:
    """The name of the tool that printed the rejected records, if it is recognised."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(out / "rejects" / "rejects.parquet") as file:
        batch = next(file.iter_batches(_LOOK_AT, columns=["raw"]), None)
    texts = [] if batch is None else batch["raw"].to_pylist()
    return next((tool for tool, known in _TOOLS.items() if any(map(known.search, texts))), None)


SUMMARY_FILE = "ingest.json"
WORK_FOLDER = ".ingest"
REJECTS_FOLDER, REJECTS_FILE = "rejects", "rejects.parquet"
DAY_FILE = "part-0.parquet"

_DAY = re.compile(r"date=\d{4}-\d\d-\d\d")
#: File names in the folders, including temporary files left by a killed run (see files.whole_file).
_DAYS = re.compile(rf"{re.escape(DAY_FILE)}|\.{re.escape(DAY_FILE)}\.\d+\.part")
_REJECTS = re.compile(rf"{re.escape(REJECTS_FILE)}|\.{re.escape(REJECTS_FILE)}\.\d+\.part")
_WORK = re.compile(r"[0-9a-f]{24}(-\d{5})?(\.aside)?|spill|tmp\w+|append(\.json)?|\.append\.json\.\d+\.part")


def read_summary(out: Path) -> dict[str, Any] | None:
    """Read ingest.json; None if it does not exist."""
    path = out / SUMMARY_FILE
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text())
        {entry["file"]: entry["sha256"] for entry in summary["files"]}
        summary["options"], summary["total"]["measurements"], summary["total"]["rejects"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} cannot be read: choose another --out, or add --overwrite") from None
    return summary


def is_whole(out: Path, summary: dict[str, Any]) -> bool:
    """Whether all files of the summary exist, each as long as its Parquet footer requires."""
    import duckdb

    total = summary["total"]
    with duckdb.connect() as connection:
        rows = [_rows(path, connection) for path in day_files(out)]
        rejects = _rows(out / REJECTS_FOLDER / REJECTS_FILE, connection)
    return (
        None not in rows
        and sum(count for count in rows if count) == total.get("packets", total["measurements"])
        and rejects == sum(total["rejects"].values())
    )


def _rows(path: Path, connection: "duckdb.DuckDBPyConnection") -> int | None:
    """Number of rows of a Parquet file, by its footer; None if the file is missing or its length is wrong.

    It uses DuckDB: `RowGroupMetaData.column` of pyarrow aborts the process if the footer is damaged.
    """
    import duckdb

    try:
        size, name = path.stat().st_size, sql_path(path)
        found = connection.execute(
            "SELECT num_rows, footer_size, (SELECT max(least(coalesce(nullif(dictionary_page_offset, 0), "
            f"data_page_offset), data_page_offset) + total_compressed_size) FROM parquet_metadata({name})) "
            f"FROM parquet_file_metadata({name})"
        ).fetchone()
    except (OSError, duckdb.Error, PingError):
        return None
    if found is None:
        return None
    rows, footer, end = found
    return int(rows) if max(4, end or 0) <= size - footer - 8 else None


def day_files(out: Path) -> list[Path]:
    return [folder / DAY_FILE for folder in sorted(out.glob("date=*"))]


def read_rejects(out: Path, reason: str | None = None) -> Iterator[dict[str, Any]]:
    """The rejects of a table in their order: file, record, reason, raw and length.

    Raises:
      UsageError: the folder is not a table written by `ingest`, or there is no such reason.
      PingError: the rejects cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    reasons = [known.value for known in Reject]
    if reason is not None and reason not in reasons:
        raise UsageError(f"there is no reason {reason!r}; choose from: {', '.join(reasons)}")
    path = out / REJECTS_FOLDER / REJECTS_FILE
    if not path.exists():
        raise UsageError(f"{out} has no {REJECTS_FOLDER}/{REJECTS_FILE}: name a folder that ingest wrote")
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(4096):
                yield from (one for one in batch.to_pylist() if reason in (None, one["reason"]))
    except (OSError, pa.ArrowException) as error:
        raise PingError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def refuse_strangers(out: Path) -> None:
    """Raise UsageError if folders of the table hold other files, which would be removed with them."""
    for folder in (*out.glob("date=*"), out / REJECTS_FOLDER, out / WORK_FOLDER):
        own = {REJECTS_FOLDER: _REJECTS, WORK_FOLDER: _WORK}.get(folder.name, _DAYS)
        named = own is not _DAYS or _DAY.fullmatch(folder.name)
        if not named or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise _stranger(folder)
        for entry in folder.iterdir() if folder.exists() else ():
            if not own.fullmatch(entry.name):
                raise _stranger(entry)


def _stranger(path: Path) -> UsageError:
    return UsageError(f"{path} was not written by ingest: move it away, or choose another --out")


def holds_other_things(out: Path) -> bool:
    """Whether the folder holds anything that ingest did not write."""
    own = (LOCK_FILE, WORK_FOLDER, SUMMARY_FILE, REJECTS_FOLDER)
    return any(entry.name not in own and not _DAY.fullmatch(entry.name) for entry in out.iterdir())


def remove_table(out: Path) -> None:
    """Remove the files of a table; the summary first, because it states that the others exist."""
    refuse_strangers(out)
    (out / SUMMARY_FILE).unlink(missing_ok=True)
    for path in _files(out):
        path.unlink()
    for folder in (*out.glob("date=*"), out / REJECTS_FOLDER):
        if folder.exists():
            folder.rmdir()


def _files(out: Path) -> Iterator[Path]:
    for folder in (*out.glob("date=*"), out / REJECTS_FOLDER):
        if folder.exists():
            yield from folder.iterdir()
