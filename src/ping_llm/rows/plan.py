"""Options of a build, the layout of splits and parts, and the plan.

The plan is fixed before the build starts and stored with it, so that a continued build does the same.

A build has two steps. *Scan*: each slice of the input becomes a spill file. *Encode*: each part becomes a
shard. Slices and parts are independent of each other, so any number of threads, tasks or hosts can share
them; for each finished one there is a file.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json
from ping_llm.locks import LOCK_FILE
from ping_llm.rows import codec
from ping_llm.rows.inputs import MeasurementFile, Range, cut, find_files, source_fingerprint
from ping_llm.rows.manifest import MANIFEST_FILE, shard_name

ENGINES = ("duckdb", "reference", "spark")
GROUPINGS = ("src_addr", "probe_id")
_SPLIT_NAMES = {1: ("train",), 2: ("train", "val"), 3: ("train", "val", "test")}
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class RowOptions:
    """Options that determine the output: the same input and RowOptions give the same bytes."""

    max_row_mib: int = 8
    group_by: str = "src_addr"
    split: str | None = None  # such as "probe:0.9,0.1"

    def __post_init__(self) -> None:
        if self.group_by not in GROUPINGS:
            raise UsageError(f"--group-by must be {' or '.join(GROUPINGS)}, not {self.group_by!r}")
        if not 1 <= self.max_row_mib <= 1024:
            raise UsageError(f"--max-row-mib must be from 1 to 1024, not {self.max_row_mib}")
        self.fractions()

    @property
    def by_probe(self) -> bool:
        return self.group_by == "probe_id"

    @property
    def max_measurements(self) -> int:
        """Largest number of measurements per row."""
        return codec.max_measurements(self.max_row_mib << 20)

    def fractions(self) -> list[tuple[str, float]]:
        """(subfolder, fraction) of each split; without splits, one entry with an empty name."""
        if self.split is None:
            return [("", 1.0)]
        kind, _, numbers = self.split.partition(":")
        try:
            values = [float(number) for number in numbers.split(",")]
        except ValueError:
            values = []
        if kind != "probe" or not values or min(values) <= 0 or abs(sum(values) - 1) > 1e-9:
            raise UsageError(
                f"--split {self.split!r} must be probe: and fractions that add up to 1, such as probe:0.9,0.1"
            )
        names = _SPLIT_NAMES.get(len(values)) or tuple(f"split-{i}" for i in range(len(values)))
        return list(zip(names, values, strict=True))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RunOptions:
    """Options of the run, which do not change the output."""

    engine: str = "duckdb"
    workers: int = 0  # 0: one per core
    memory_limit: str = "4GB"
    temp: Path | None = None  # None: below the output folder
    spark_master: str | None = None  # None: the one set by spark-submit or the environment

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"--engine must be one of {', '.join(ENGINES)}, not {self.engine!r}")
        if self.workers < 0:
            raise UsageError(f"--workers must be at least 0, not {self.workers}")
        if self.memory_bytes < 256 * 10**6:
            raise UsageError(f"--memory-limit {self.memory_limit} must be at least 256MB")

    @property
    def threads(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory_limit)


def parse_bytes(text: str) -> int:
    """Convert a text such as '4GB' or '512 MiB' to bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", text.upper())
    if not match:
        raise UsageError(f"{text!r} is not an amount of memory; write it like 4GB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])


#: Largest number of measurements per part: they sort within 400 MB and make a shard of about 300 MB.
PART_MEASUREMENTS = 1 << 22
#: Measurements per part, and largest number of parts, for small inputs, which are divided for the workers.
SMALL_PART_MEASUREMENTS = 1 << 18
SMALL_PARTS = 16


def parts_for(measurements: int) -> int:
    """The number of parts, which depends only on the size of the input, not on workers or memory."""
    small = min(SMALL_PARTS, -(-measurements // SMALL_PART_MEASUREMENTS))
    return max(1, small, -(-measurements // PART_MEASUREMENTS))


@dataclass(frozen=True)
class Split:
    """A subfolder for the keys whose hash has its upper 32 bits in [begin, end)."""

    name: str
    begin: int
    end: int
    parts: int
    first_part: int

    def contains(self, part: int) -> bool:
        return self.first_part <= part < self.first_part + self.parts


def layout(options: RowOptions, measurements: int) -> list[Split]:
    """The splits with their parts. Parts are numbered consecutively over all splits."""
    splits: list[Split] = []
    cumulative, begin, first_part = 0.0, 0, 0
    fractions = options.fractions()
    for place, (name, fraction) in enumerate(fractions):
        cumulative += fraction
        end = 1 << 32 if place == len(fractions) - 1 else round(cumulative * (1 << 32))
        parts = parts_for(int(measurements * fraction))
        splits.append(Split(name, begin, end, parts, first_part))
        begin, first_part = end, first_part + parts
    return splits


def layout_table(splits: list[Split], buckets: int = 1) -> np.ndarray:
    """The layout for `part_of`: uint64 [splits, 4] with begin, end, number of parts and first part.

    Every part is divided into `buckets` of consecutive hashes, which count as parts.
    """
    return np.array([[s.begin, s.end, s.parts * buckets, s.first_part * buckets] for s in splits], np.uint64)


WORK_FOLDER = ".build"
_PLAN_FILE = "plan.json"

# Bytes per measurement while scanning, which holds a slice twice (as read, and sorted into parts): 2 × 72
# bytes, and a batch of text.
_SCAN_BYTES = 160
_MIN_SLICE, _MAX_SLICE = 1 << 17, 1 << 22

# Measurements per bucket, and largest number of buckets. 16 k measurements are 1.2 MB: sorting and encoding
# takes half the time per measurement of 300 k. With more than 8 k buckets in total, the pieces of a spill
# file would be too short to read efficiently.
_BUCKET_MEASUREMENTS = 1 << 14
_MAX_BUCKETS = 1 << 13


@dataclass(frozen=True)
class Plan:
    """The plan of a build: output, options and input."""

    out: Path
    spill_folder: Path
    options: RowOptions
    source: dict[str, Any]  # fingerprint, files, rows, bytes
    slices: list[list[Range]]

    @property
    def rows(self) -> int:
        return self.source["rows"]

    @property
    def splits(self) -> list[Split]:
        return layout(self.options, self.rows)

    @property
    def parts(self) -> int:
        return sum(split.parts for split in self.splits)

    @property
    def buckets(self) -> int:
        """Number of buckets (ranges of hashes) per part, so that the data sorted at once fits in a cache."""
        wanted = self.rows // self.parts // _BUCKET_MEASUREMENTS
        return max(1, min(wanted, _MAX_BUCKETS // self.parts))

    @property
    def work(self) -> Path:
        return self.out / WORK_FOLDER

    def slice_rows(self, number: int) -> int:
        return sum(piece.end - piece.begin for piece in self.slices[number])

    def shard_path(self, part: int) -> Path:
        split = next(split for split in self.splits if split.contains(part))
        return self.out / split.name / shard_name(part - split.first_part, split.parts)

    def spill_path(self, number: int) -> Path:
        return self.spill_folder / f"slice-{number:05d}.spill"

    def marker_path(self, part: int) -> Path:
        return self.work / f"part-{part:05d}.json"

    def index_path(self, part: int) -> Path:
        return self.work / f"part-{part:05d}.index"


def slice_rows(rows: int, run: RunOptions) -> int:
    """Number of rows per slice: as large as memory allows, but with enough slices for all workers."""
    by_memory = run.memory_bytes // run.threads // _SCAN_BYTES
    return max(_MIN_SLICE, min(by_memory, _MAX_SLICE, -(-rows // (4 * run.threads))))


def make_plan(inputs: Sequence[str | Path], out: Path, options: RowOptions, run: RunOptions) -> Plan:
    """Make the plan for the input, or load the plan of an unfinished build with the same input and options.

    Raises:
      UsageError: the folder belongs to another input or other options.
    """
    files = find_files(inputs)
    source = _describe(files)
    check_free(out, source, options)
    work = out / WORK_FOLDER
    if (work / _PLAN_FILE).exists():
        plan = load_plan(out)
        _refuse_other(out, {"source": plan.source, "options": plan.options.as_dict()}, source, options)
        return plan
    work.mkdir(parents=True, exist_ok=True)
    if finished_manifest(out, options) is None:
        for path in _manifests(out):  # they list files that are missing or damaged
            path.unlink()
    spill_folder = work
    if run.temp is not None:
        # The name includes the output, because two builds of one input may share a temporary folder.
        spill_folder = run.temp.resolve() / f"ping-llm-rows-{source['fingerprint'][:12]}-{_short(out)}"
        spill_folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(out, spill_folder, options, source, cut(files, slice_rows(source["rows"], run)))
    write_json(
        work / _PLAN_FILE,
        {
            "spill_folder": str(spill_folder),
            "options": options.as_dict(),
            "source": source,
            "slices": [[[str(r.file), r.begin, r.end] for r in ranges] for ranges in plan.slices],
        },
    )
    return plan


def load_plan(out: Path) -> Plan:
    """The plan of an unfinished build."""
    path = out / WORK_FOLDER / _PLAN_FILE
    try:
        saved = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise PingError(f"{out} has no build under way; start with the step `plan`") from None
    return Plan(
        out,
        Path(saved["spill_folder"]),
        RowOptions(**saved["options"]),
        saved["source"],
        [[Range(Path(file), begin, end) for file, begin, end in ranges] for ranges in saved["slices"]],
    )


def finished_manifest(out: Path, options: RowOptions) -> dict[str, Any] | None:
    """The manifest of a finished build, that of its first split if it has splits; else None.

    A build is finished if every file of every manifest exists with the right size.
    """
    folders = [out / name for name, _ in options.fractions()]
    manifests = [_read(folder / MANIFEST_FILE) for folder in folders]
    whole = all(
        manifest is not None and _is_whole(folder, manifest)
        for folder, manifest in zip(folders, manifests, strict=True)
    )
    return manifests[0] if whole else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _is_whole(folder: Path, manifest: dict[str, Any]) -> bool:
    try:
        return all(
            (folder / entry["file"]).stat().st_size == entry["bytes"]
            for entry in (*manifest["shards"], manifest["index"])
        )
    except (OSError, KeyError, TypeError):
        return False


def finished_before(inputs: Sequence[str | Path], out: Path, options: RowOptions) -> dict[str, Any] | None:
    """The manifest if this build is finished and its temporary files are removed; nothing is written.

    Raises:
      UsageError: the folder belongs to another input or other options.
    """
    if (out / WORK_FOLDER).exists():
        return None
    manifest = finished_manifest(out, options)
    if manifest is not None:
        check_free(out, _describe(find_files(inputs)), options)
    return manifest


def check_free(out: Path, source: dict[str, Any], options: RowOptions) -> None:
    """Raise UsageError if the output folder was made from other input or options, or holds other files."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"{out} is not a folder; name another with --out")
    own = {WORK_FOLDER, LOCK_FILE}
    for path in _manifests(out):
        manifest = _read(path)
        if manifest is None:
            raise UsageError(f"{path} cannot be read; remove {out} or name another folder with --out")
        _refuse_other(out, manifest, source, options)
        own |= {MANIFEST_FILE, *_files_of(manifest)} if path.parent == out else set()
        own |= {name for name, _ in options.fractions()}
    if (out / WORK_FOLDER / _PLAN_FILE).exists():
        return
    strangers = [entry.name for entry in os.scandir(out) if entry.name not in own]
    if strangers and finished_manifest(out, options) is None:
        raise UsageError(f"{out} holds other files ({min(strangers)}, …); name an empty folder with --out")


def _manifests(out: Path) -> list[Path]:
    return [path for path in (out / MANIFEST_FILE, *out.glob(f"*/{MANIFEST_FILE}")) if path.exists()]


def _files_of(manifest: dict[str, Any]) -> set[str]:
    try:
        return {entry["file"] for entry in (*manifest["shards"], manifest["index"])}
    except (KeyError, TypeError):
        return set()


def _describe(files: Sequence[MeasurementFile]) -> dict[str, Any]:
    return {
        "fingerprint": source_fingerprint(files),
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
    }


def _refuse_other(out: Path, found: dict[str, Any], source: dict[str, Any], options: RowOptions) -> None:
    if found.get("options") != asdict(options):
        raise UsageError(
            f"{out} was built with other options ({found.get('options')}); remove it or name another --out"
        )
    if found.get("source", {}).get("fingerprint") != source["fingerprint"]:
        raise UsageError(f"{out} was built from other input; remove it or name another folder with --out")


def _short(out: Path) -> str:
    import hashlib

    return hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:8]
