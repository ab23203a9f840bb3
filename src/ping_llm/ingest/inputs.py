"""What the user pointed at → the list of input files, in one order."""

import glob
from collections.abc import Sequence
from pathlib import Path

from ping_llm.errors import UsageError

STDIN = "-"


def find_files(inputs: Sequence[str], out: Path | None = None) -> list[str]:
    """Expand files, folders, globs and `-`: each file once, sorted by path.

    Sorted, because the order decides which of two equal results is the duplicate, and the order on the
    command line should not.
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
                raise UsageError(f"{given} is a folder without files in it")
            found.update(files)
        elif path.exists():
            found.add(given)
        else:
            matches = [match for match in glob.glob(given, recursive=True) if Path(match).is_file()]  # noqa: PTH207
            if not matches:
                raise UsageError(f"{given} does not exist, and as a pattern it matches no file")
            found.update(matches)
    if not found:
        raise UsageError("no input: name files, folders, patterns, or - for standard input")
    return sorted(found)


def _files_below(folder: Path, out: Path | None) -> list[str]:
    """All files but hidden ones (.name, _name), and but the output's own when it lies inside."""
    files = []
    ingested = (folder / "ingest.json").exists()  # our own output: only its days are measurements
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "_")) for part in parts)
        hidden |= ingested and not parts[0].startswith("date=")
        own = out is not None and path.resolve().is_relative_to(out.resolve())
        if path.is_file() and not hidden and not own:
            files.append(str(path))
    return files
