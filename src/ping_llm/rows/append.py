"""`rows build --append`: replace the rows of a part of the input by the rows of all of it.

Rows are placed by a hash of their source, so new measurements change nearly all shards, and the number of
shards depends on the size of the input. So everything is built again in a separate folder, while the old rows
stay unchanged, and then the new rows replace them. A journal commits the replacement: any run that finds it
continues. So an interrupted run leaves either the old rows or the new ones.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.files import sync_directory, write_json
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.measurements.ids import hashed
from ping_llm.rows.build import build
from ping_llm.rows.manifest import INDEX_FILE, MANIFEST_FILE, RowIndex, load_manifest, open_index
from ping_llm.rows.plan import RowOptions, RunOptions, finished_manifest

APPEND_FOLDER, _ROWS, _JOURNAL = ".append", "rows", "ready.json"


def append(inputs: Sequence[str | Path], out: Path, options: RowOptions, run: RunOptions) -> dict[str, Any]:
    """Replace the rows of a part of the input by the rows of all of it.

    Args:
      inputs: The previous input with new measurements, such as a table extended by `ingest --append`.

    Returns:
      The manifest; that of the first split, if there are several.

    Raises:
      UsageError: the rows have other options, or measurements that are not in the input.
    """
    complete(out)
    old = finished_manifest(out, options)
    if old is None:
        return build(inputs, out, options, run)
    if old["options"] != options.as_dict():
        raise UsageError(
            f"{out} was built with other options ({old['options']}): append with the same, "
            "or name another --out"
        )
    with only_writer(out, "rows build"):
        aside = out / APPEND_FOLDER / _ROWS
        manifest = build(inputs, aside, options, run)
        if manifest["fingerprint"] == old["fingerprint"]:
            shutil.rmtree(out / APPEND_FOLDER)
            return old
        folders = [name for name, _ in options.fractions()]
        if not _holds(_indices(aside, folders), _indices(out, folders)):
            shutil.rmtree(out / APPEND_FOLDER)
            raise UsageError(
                f"{out} has measurements that are not in the input: name everything that it was built from, "
                "and the new files; or name another --out"
            )
        write_json(out / APPEND_FOLDER / _JOURNAL, {"folders": folders})
        _move(out)
    return load_manifest(out / folders[0])


def complete(out: Path) -> None:
    """Finish a run that has written its journal."""
    if (out / APPEND_FOLDER / _JOURNAL).exists():
        with only_writer(out, "rows build"):
            _move(out)


def _indices(place: Path, folders: Sequence[str]) -> list[RowIndex]:
    return [open_index(place / name / INDEX_FILE) for name in folders]


def _holds(new: Sequence[RowIndex], old: Sequence[RowIndex]) -> bool:
    """Whether every source has at least as many measurements as before, and at least the same time range."""
    totals = []
    for indices in (old, new):
        src, measured, begins, ends = (
            np.concatenate([np.asarray(getattr(index, name)) for index in indices])
            for name in ("src", "counts", "first_time", "last_time")
        )
        sources, inverse = np.unique(hashed(src), return_inverse=True)
        counts = np.bincount(inverse, weights=measured)
        first, last = np.full(len(sources), 2**62), np.full(len(sources), -(2**62))
        np.minimum.at(first, inverse, begins)
        np.maximum.at(last, inverse, ends)
        totals.append((sources, counts, first, last))
    (sources, counts, first, last), (has, new_counts, new_first, new_last) = totals
    place = np.minimum(np.searchsorted(has, sources), max(len(has) - 1, 0))
    if not len(has):
        return not len(sources)
    return bool(
        (has[place] == sources).all()
        and (new_counts[place] >= counts).all()
        and (new_first[place] <= first).all()
        and (new_last[place] >= last).all()
    )


def _put(path: Path, place: Path) -> None:
    path.replace(place)


def _move(out: Path) -> None:
    """Move the new files to their places, each manifest last; then remove leftover old files."""
    work = out / APPEND_FOLDER
    folders = json.loads((work / _JOURNAL).read_text())["folders"]
    for name in folders:
        new, place = work / _ROWS / name, out / name
        files = [path for path in sorted(new.iterdir()) if path.is_file() and path.name != LOCK_FILE]
        for path in sorted(files, key=lambda path: path.name == MANIFEST_FILE):
            _put(path, place / path.name)
        sync_directory(place)
        manifest = load_manifest(place)
        own = {entry["file"] for entry in (*manifest["shards"], manifest["index"])}
        for path in place.glob("rows-*-of-*.arrayrecord"):
            if path.is_file() and path.name not in own:
                path.unlink()
    shutil.rmtree(work)
