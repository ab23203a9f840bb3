"""Object stores: inputs at s3:// or gs:// are downloaded before a command runs, outputs uploaded after it.

All parts of the package read local files only, so remote arguments of a command are replaced by local paths
before it starts. Downloads are kept in the user's cache folder (`ping-llm/stores/s3/BUCKET/KEY`) and repeated
when the size or time of the object differs. They are atomic, and continue after a broken connection. An
output is also written in the cache folder, and uploaded when the command has succeeded, manifest.json last.
Credentials, regions and endpoints come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
STORAGE_EMULATOR_HOST, …).
"""

import errno
import fnmatch
import glob
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import cache_folder, whole_file

#: Consecutive failures without a byte gained after which a transfer is given up; first pause, in seconds.
TRIES, PAUSE_S = 5, 0.5
_BLOCK = 8 << 20

#: Seconds that Google's client may retry a request before that counts as one of these failures.
_GS_RETRIES_S = 10.0

#: Remote place, with two slashes or with one, as pathlib merges them.
_REMOTE = re.compile(r"(s3|gs):/{1,2}([^/].*)")

#: Options that name outputs. Only outputs that are written once can be uploaded afterwards (`--out`).
_OUT = "--out"
_LOCAL_OUT = ("--run", "--write-train", "--answers", "--html", "--temp")

#: Options that exclude a remote --out: they continue existing output, or share it with other machines.
_SHARED = ("--step", "--append", "--task", "--tasks", "--overwrite", "--master", "--spark-master")
#: Engine that does so: without --spark-master, Spark's own settings may name a cluster, whose executors write
#: below --out and do not see the cache folder of this machine.
_SHARED_ENGINE = ("--engine", "spark")

#: Commands whose first argument is an output.
_WRITERS = ("simulate", "demo")

#: Training keys that name inputs.
_KEYS = ("network_train_files", "network_eval_files", "network_teacher")

#: File that marks a folder as complete, so it is uploaded last.
_LAST = "manifest.json"


def is_remote(word: str | Path) -> bool:
    return _REMOTE.fullmatch(str(word)) is not None


def localised(words: Sequence[str]) -> tuple[list[str], Callable[[], None]]:
    """Replace the remote places among a command's arguments by local paths.

    Returns:
      The arguments, and a function that uploads the outputs, to call when the command has succeeded.

    Raises:
      UsageError: a place cannot be read or written this way; the text says what to do instead.
      PingError: a store cannot be reached.
    """
    replaced, uploads = [], []
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        place = value if equals else word
        named = option if equals else words[index - 1] if index else ""
        if not is_remote(place) or (equals and not option.startswith("-") and option not in _KEYS):
            replaced.append(word)  # keys of MaxText are passed on unchanged
            continue
        if named in _LOCAL_OUT or words[0] in _WRITERS:
            raise UsageError(
                f"{place}: ping-llm {words[0]} writes this to a local disk; give a local folder, and copy it "
                "to the store afterwards"
            )
        if named == _OUT:
            if (shared := _shared(words)) is not None:
                raise UsageError(f"{_OUT} {place} and {shared} exclude each other: write to a local folder")
            local = _staged(place)
            uploads.append((local, place))
        else:
            local = fetch(place)
        replaced.append(f"{option}={local}" if equals else str(local))

    def finish() -> None:
        for local, place in uploads:
            upload(local, place)

    return replaced, finish


def _shared(words: Sequence[str]) -> str | None:
    """The first option that excludes a remote --out."""
    for index, word in enumerate(words):
        if word.partition("=")[0] in _SHARED or word == "=".join(_SHARED_ENGINE):
            return word
        if tuple(words[index : index + 2]) == _SHARED_ENGINE:
            return " ".join(_SHARED_ENGINE)
    return None


def fetch(place: str | Path) -> Path:
    """Download an object, all objects below a prefix, or those that match a pattern; return the local path.

    For a prefix the path is the folder of the copies, for a pattern the same pattern below that folder.
    """
    store, path = _open(place)
    folder, pattern = _split(path)
    found = _listed(store, folder, place)
    if pattern:
        found = [info for info in found if _matches(info.path, f"{folder}/{pattern}")]
    if not found:
        raise UsageError(f"{_text(place)} has no objects")
    root = _root(place)
    copies = {root / _safe(info.path): info for info in found}
    for to, info in copies.items():
        _copy(store, info, to, _text(place))
    here = root / _safe(folder)
    for old in here.rglob("*") if here.is_dir() else ():
        if old.is_file() and old not in copies:  # removed from the store, or does not match the pattern
            old.unlink()
    return Path(f"{glob.escape(str(here))}/{pattern}") if pattern else here


def upload(local: Path, place: str | Path) -> None:
    """Upload a file, or the files of a folder except hidden ones."""
    store, path = _open(place)
    named = _named(local)
    for part in sorted(named, key=lambda part: (PurePosixPath(part).name == _LAST, part)):
        _put(store, named[part], f"{path}/{part}" if part else path)
    print(
        f"{len(named):,} files are at {_text(place)}; the copies in {local} may be removed", file=sys.stderr
    )


def _named(local: Path) -> dict[str, Path]:
    """The files to upload, by their name relative to the place."""
    if local.is_file():
        return {"": local}
    files = {file.relative_to(local): file for file in local.rglob("*") if file.is_file()}
    return {part.as_posix(): file for part, file in files.items() if not _hidden(part)}


def _hidden(part: Path) -> bool:
    return any(name.startswith(".") for name in part.parts)


def _text(place: str | Path) -> str:
    scheme, path = _parts(place)
    return f"{scheme}://{path}"


def _parts(place: str | Path) -> tuple[str, str]:
    match = _REMOTE.fullmatch(str(place))
    assert match is not None
    return match[1], match[2].rstrip("/")


def _open(place: str | Path) -> tuple[Any, str]:
    """The store of a place as a PyArrow file system, and the path in it."""
    from pyarrow import fs

    scheme, path = _parts(place)
    if scheme == "gs":
        # By default Google's client retries for a quarter of an hour.
        soon = timedelta(seconds=_GS_RETRIES_S)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if not emulator:
            return fs.GcsFileSystem(retry_time_limit=soon), path
        protocol, _, host = emulator.rpartition("://")
        there = {"endpoint_override": host.rstrip("/"), "scheme": protocol or "http"}
        return fs.GcsFileSystem(anonymous=True, retry_time_limit=soon, **there), path
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    # We retry ourselves, so each try should fail soon.
    options: dict[str, Any] = {"connect_timeout": 10, "request_timeout": 60}
    if endpoint:
        options |= {"endpoint_override": endpoint, "scheme": endpoint.partition("://")[0]}
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=2)
    return fs.S3FileSystem(retry_strategy=retries, **options), path


def _split(path: str) -> tuple[str, str]:
    """Split a path before its first part with a wildcard."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if glob.has_magic(part):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return path, ""


def _matches(path: str, pattern: str) -> bool:
    """Match like glob: `*` matches within one part of a path, `**/` any number of parts."""
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _listed(store: Any, path: str, place: str | Path) -> list[Any]:
    """The objects at a path or below it, sorted."""
    from pyarrow import fs

    def look() -> list[Any]:
        info = store.get_file_info(path)
        if info.type == fs.FileType.File:
            return [info]
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        return [each for each in store.get_file_info(selector) if each.type == fs.FileType.File]

    return sorted(_again(look, f"cannot look at {_text(place)}"), key=lambda each: str(each.path))


def _again(attempt: Any, what: str) -> Any:
    for tries in range(TRIES):
        try:
            return attempt()
        except OSError as error:
            reason = error
            if tries + 1 < TRIES:
                time.sleep(PAUSE_S * 2**tries)
    raise PingError(f"{what}: {_first_line(reason)}") from reason


def _first_line(error: OSError) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _copy(store: Any, info: Any, to: Path, place: str) -> None:
    """Download one object, unless the copy exists with the same size and time."""
    if to.is_file() and (to.stat().st_size, to.stat().st_mtime_ns) == (info.size, info.mtime_ns):
        return
    with whole_file(to) as aside:
        with aside.open("wb") as out:
            failures = 0
            while out.tell() < info.size:
                at = out.tell()
                try:
                    with store.open_input_file(info.path) as source:
                        source.seek(at)
                        while block := source.read(_BLOCK):
                            out.write(block)
                    if out.tell() != info.size:
                        raise OSError(f"it has {out.tell():,} bytes, not {info.size:,}")
                except OSError as error:
                    failures = failures + 1 if out.tell() == at else 0
                    if error.errno == errno.ENOSPC or failures >= TRIES or out.tell() > info.size:
                        raise PingError(f"cannot copy {place}: {_first_line(error)}") from error
                    time.sleep(PAUSE_S * 2**failures)
        os.utime(aside, ns=(info.mtime_ns, info.mtime_ns))


def _put(store: Any, file: Path, path: str) -> None:
    def put() -> None:
        with file.open("rb") as source, store.open_output_stream(path) as out:
            while block := source.read(_BLOCK):
                out.write(block)
        size = store.get_file_info(path).size
        if size != file.stat().st_size:
            raise OSError(f"it has {size:,} bytes there, not {file.stat().st_size:,}")

    _again(put, f"cannot write {path}")


def _root(place: str | Path) -> Path:
    folder = cache_folder("stores")
    if folder is None:
        raise PingError(
            f"{_text(place)} is copied to the cache folder, and none can be written: set XDG_CACHE_HOME to a "
            "folder with space"
        )
    return folder / _parts(place)[0]


def _safe(path: str) -> Path:
    """A key as a path below the cache; `..` and empty parts are refused, as they could lead out of it."""
    if any(part in ("..", ".", "") for part in path.split("/")):
        raise PingError(f"{path}: a key with empty parts, . or .. cannot be copied to a folder")
    return Path(path)


def _staged(place: str | Path) -> Path:
    """The local folder or file that will be uploaded.

    Raises:
      UsageError: the place holds other objects already; two tables in one folder would be read as one.
    """
    store, path = _open(place)
    local = _root(place).with_name("out") / _parts(place)[0] / _safe(path)
    sizes = {part: file.stat().st_size for part, file in _named(local).items()} if local.exists() else {}
    for info in _listed(store, path, place):
        if sizes.get(info.path.removeprefix(path).lstrip("/")) != info.size:
            raise UsageError(f"{_text(place)} has objects already, such as {info.path}; name another place")
    return local
