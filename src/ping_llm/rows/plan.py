"""The plan of a build, fixed before it starts and kept beside it, so that whoever continues does the same.

A build has two steps. *Scan*: each slice of the input becomes a spill file. *Encode*: each part becomes a
shard. Slices and parts are independent of each other, so any number of threads, tasks or hosts can share
them, and each leaves a file that says it is done.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json
from ping_llm.rows.inputs import InputFile, Range, cut, find_files, source_fingerprint
from ping_llm.rows.keys import Split, layout
from ping_llm.rows.manifest import MANIFEST_FILE, shard_name
from ping_llm.rows.options import RowOptions, RunOptions

WORK_FOLDER = ".build"
_PLAN_FILE = "plan.json"

# Scanning holds a slice twice (as it came, and sorted into parts): 2 × 72 bytes, and a batch of text.
_SCAN_BYTES = 160
_MIN_SLICE, _MAX_SLICE = 1 << 17, 1 << 22

# 16 k measurements are 1.2 MB: sorting and encoding them takes half the time of 300 k. More than 8 k buckets
# in all would make the stretches of a spill file too short to read.
_BUCKET_MEASUREMENTS = 1 << 14
_MAX_BUCKETS = 1 << 13


@dataclass(frozen=True)
class Plan:
    """What is built from what."""

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
        """Into how many stretches of hashes a part is cut: what is sorted at once then fits a cache."""
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
    """Slices as large as memory allows, but enough of them for the workers to share."""
    by_memory = run.memory_bytes // run.threads // _SCAN_BYTES
    return max(_MIN_SLICE, min(by_memory, _MAX_SLICE, -(-rows // (4 * run.threads))))


def make_plan(inputs: Sequence[str | Path], out: Path, options: RowOptions, run: RunOptions) -> Plan:
    """Look at the input and decide; or find the plan of an unfinished build of the same.

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
    spill_folder = work
    if run.temp is not None:
        # Named after the output too: two builds of one input may share a temporary folder.
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
    """The manifest of a finished build: that of its first split, if it has splits."""
    folders = [out / name for name, _ in options.fractions()]
    if not all((folder / MANIFEST_FILE).exists() for folder in folders):
        return None
    return json.loads((folders[0] / MANIFEST_FILE).read_bytes())


def check_free(out: Path, source: dict[str, Any], options: RowOptions) -> None:
    """Refuse an output folder that was made from other input or options, or holds something else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"{out} is not a folder; name another with --out")
    for path in (out / MANIFEST_FILE, *out.glob(f"*/{MANIFEST_FILE}")):
        if path.exists():
            _refuse_other(out, json.loads(path.read_bytes()), source, options)
    if (out / WORK_FOLDER / _PLAN_FILE).exists():
        return
    strangers = [entry.name for entry in os.scandir(out) if entry.name != WORK_FOLDER]
    if strangers and finished_manifest(out, options) is None:
        raise UsageError(f"{out} holds other files ({min(strangers)}, …); name an empty folder with --out")


def _describe(files: Sequence[InputFile]) -> dict[str, Any]:
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
