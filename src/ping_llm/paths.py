"""Path handling: a path that exists is taken literally, whatever its characters; others are patterns."""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ping_llm.errors import PingError

#: Control characters except newlines and tabs, surrogates that stand for bytes that are not UTF-8, and marks
#: that change the writing direction.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def matching_files(pattern: str) -> list[Path]:
    """Files that match a pattern; the longest leading part of the pattern that exists is taken literally.

    So `d[1]/*.parquet` reads the folder d[1] if it exists, never d1.
    """
    literal = Path()
    parts = Path(pattern).parts
    for count, part in enumerate(parts):
        if not (literal / part).exists():
            rest = Path(*parts[count:])
            found = glob.glob(str(Path(glob.escape(str(literal))) / rest), recursive=True)  # noqa: PTH207
            return [path for path in map(Path, found) if path.is_file()]
        literal /= part
    return [literal] if literal.is_file() else []


def sql_path(path: Path) -> str:
    """A file name quoted for DuckDB's SQL and escaped: DuckDB takes names as patterns, and expands ~."""
    return "'" + duckdb_path(path).replace("'", "''") + "'"


def duckdb_path(path: Path) -> str:
    """A file name escaped for use as a DuckDB parameter.

    Raises:
      PingError: the name is not UTF-8.
    """
    name = str(path.absolute())
    if utf8_name(name) != name:
        raise PingError(f"{utf8_name(name)} has a name that is not UTF-8; rename it")
    return glob.escape(name)


def literal(path: Path) -> Path:
    """The same file, named for PyArrow, which expands a leading ~ to the home folder."""
    return path.absolute() if str(path).startswith("~") else path


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, including those in linked folders; each folder is visited once.

    Paths that cannot be examined (a link to nothing or to itself, a folder without permission) are included,
    so that opening them gives an error message; sockets, pipes and devices are not.
    """
    yield from _files_below(folder, set())


def _files_below(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    try:
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder
        return
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for entry in entries:
        path = folder / entry.name
        try:
            is_folder, is_file = entry.is_dir(), entry.is_file()
        except OSError:
            is_folder, is_file = False, True
        if is_folder:
            yield from _files_below(path, seen)
        elif is_file or (entry.is_symlink() and not path.exists()):
            yield path


def holds_measurements(folder: Path, file: Path) -> bool:
    """Whether a file in a folder written by this package holds measurements, by its name."""
    below = file.relative_to(folder).parts
    hidden = any(part.startswith((".", "_")) for part in below)
    rejected = "rejects" in (folder.name, *below[:-1])
    return file.suffix == ".parquet" and not hidden and not rejected


def utf8_name(name: str) -> str:
    """A file name as valid UTF-8 text: bytes that are not UTF-8 become \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """Text that is safe to print on a terminal: control codes, which names may contain, become \\xNN."""
    return _UNPRINTABLE.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # Python's surrogate for a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
