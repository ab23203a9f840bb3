"""What a path names: a path that exists is that path, whatever characters it has; others are patterns."""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ping_llm.errors import PingError

#: Control characters but for newlines and tabs, what stands for bytes that are not UTF-8, and marks that
#: change the direction of writing.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def matching_files(pattern: str) -> list[Path]:
    """Files that a pattern matches; the longest leading part of it that exists is taken literally.

    So `d[1]/*.parquet` reads the folder d[1] if there is one, never d1.
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
    """A file's name in SQL for DuckDB, which takes every name for a pattern, and ~ for the home folder."""
    return "'" + duckdb_path(path).replace("'", "''") + "'"


def duckdb_path(path: Path) -> str:
    """A file's name for DuckDB as a parameter.

    Raises:
      PingError: the name is not UTF-8.
    """
    name = str(path.absolute())
    if utf8_name(name) != name:
        raise PingError(f"{utf8_name(name)} has a name that is not UTF-8; rename it")
    return glob.escape(name)


def literal(path: Path) -> Path:
    """The same file for PyArrow, which takes a leading ~ for the home folder."""
    return path.absolute() if str(path).startswith("~") else path


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below a folder, those in linked folders included, each folder once.

    What cannot be looked at (a link to nothing or to itself, a folder without permission) is among them, so
    that whoever opens it says why; sockets, pipes and devices are not.
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
    """Whether a file of a folder that we wrote holds measurements, by its name."""
    below = file.relative_to(folder).parts
    hidden = any(part.startswith((".", "_")) for part in below)
    rejected = "rejects" in (folder.name, *below[:-1])
    return file.suffix == ".parquet" and not hidden and not rejected


def utf8_name(name: str) -> str:
    """A file's name as text that can be written anywhere: bytes that are not UTF-8 become \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """Text for a terminal: names may hold its control codes, which become \\xNN."""
    return _UNPRINTABLE.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python holds it in a name
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
