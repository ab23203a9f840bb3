"""Object stores: what a command reads at s3:// or gs:// is copied here first; what it writes there, after.

Every room reads local files, so the words of a command are replaced by local places before it begins. Copies
are kept in the user's cache folder (`ping-llm/stores/s3/BUCKET/KEY`) and made again when size or time of the
object differ. A copy appears whole: after a cut connection it is continued. An output is made in the cache
folder too, and uploaded when the command has succeeded, manifest.json last. Credentials, regions and
endpoints are those of the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST, …).
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

#: Failures in a row, without a byte gained, after which a transfer is given up; and the first pause.
TRIES, PAUSE_S = 5, 0.5
_BLOCK = 8 << 20

#: Seconds that Google's client may try a request again before it is one of these failures.
_GS_RETRIES_S = 10.0

#: Two slashes, or one: pathlib joins them.
_REMOTE = re.compile(r"(s3|gs):/{1,2}([^/].*)")

#: Options that name something written. Only what is written once can be copied to a store afterwards.
_OUT = "--out"
_LOCAL_OUT = ("--run", "--write-train", "--answers", "--html", "--temp")

#: Other words that exclude a remote --out: they go on with what is there, or share it with other machines.
_SHARED = ("--step", "--append", "--task", "--tasks", "--overwrite", "--master", "--spark-master")

#: Commands whose first place is written.
_WRITERS = ("simulate", "demo")

#: Keys of a training that name what is read.
_KEYS = ("network_train_files", "network_eval_files", "network_teacher")

#: Says that a folder is complete, so it is uploaded last.
_LAST = "manifest.json"


def is_remote(word: str | Path) -> bool:
    return _REMOTE.fullmatch(str(word)) is not None


def localised(words: Sequence[str]) -> tuple[list[str], Callable[[], None]]:
    """The words of a command with local places for remote ones, and what to call when it has succeeded.

    Raises:
      UsageError: a place cannot be read or written from here, and the way out.
      PingError: a store cannot be reached.
    """
    replaced, uploads = [], []
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        place = value if equals else word
        named = option if equals else words[index - 1] if index else ""
        if not is_remote(place) or (equals and not option.startswith("-") and option not in _KEYS):
            replaced.append(word)  # a key of MaxText is MaxText's business
            continue
        if named in _LOCAL_OUT or words[0] in _WRITERS:
            raise UsageError(
                f"{place}: ping-llm {words[0]} writes this to a local disk; give a local folder, and copy it "
                "to the store afterwards"
            )
        if named == _OUT:
            if shared := [each for each in words if each.partition("=")[0] in _SHARED]:
                raise UsageError(
                    f"{_OUT} {place} and {shared[0]} exclude each other: write to a local folder"
                )
            local = _staged(place)
            uploads.append((local, place))
        else:
            local = fetch(place)
        replaced.append(f"{option}={local}" if equals else str(local))

    def finish() -> None:
        for local, place in uploads:
            upload(local, place)

    return replaced, finish


def fetch(place: str | Path) -> Path:
    """A local copy of an object, of all objects below a prefix, or of those that a pattern matches.

    Of a prefix it is the folder, of a pattern the pattern over the copies.
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
        if old.is_file() and old not in copies:  # removed from the store, or not of the pattern
            old.unlink()
    return Path(f"{glob.escape(str(here))}/{pattern}") if pattern else here


def upload(local: Path, place: str | Path) -> None:
    """Upload a file, or the files of a folder but for hidden ones."""
    store, path = _open(place)
    named = _named(local)
    for part in sorted(named, key=lambda part: (PurePosixPath(part).name == _LAST, part)):
        _put(store, named[part], f"{path}/{part}" if part else path)
    print(
        f"{len(named):,} files are at {_text(place)}; the copies in {local} may be removed", file=sys.stderr
    )


def _named(local: Path) -> dict[str, Path]:
    """The files to upload, by their name below the place."""
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
    """The store of a place as a file system of PyArrow, and the path in it."""
    from pyarrow import fs

    scheme, path = _parts(place)
    if scheme == "gs":
        # Its client tries for a quarter of an hour by itself.
        soon = timedelta(seconds=_GS_RETRIES_S)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if not emulator:
            return fs.GcsFileSystem(retry_time_limit=soon), path
        protocol, _, host = emulator.rpartition("://")
        there = {"endpoint_override": host.rstrip("/"), "scheme": protocol or "http"}
        return fs.GcsFileSystem(anonymous=True, retry_time_limit=soon, **there), path
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    # Of our own tries, each should fail soon.
    options: dict[str, Any] = {"connect_timeout": 10, "request_timeout": 60}
    if endpoint:
        options |= {"endpoint_override": endpoint, "scheme": endpoint.partition("://")[0]}
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=2)
    return fs.S3FileSystem(retry_strategy=retries, **options), path


def _split(path: str) -> tuple[str, str]:
    """A path up to its first part with a wildcard, and the rest."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if glob.has_magic(part):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return path, ""


def _matches(path: str, pattern: str) -> bool:
    """As glob does: `*` stays inside a part, `**/` stands for any number of them."""
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
    """Copy one object, unless the copy is there."""
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
    """A key below the cache: `..` and empty parts must not lead out of it."""
    if any(part in ("..", ".", "") for part in path.split("/")):
        raise PingError(f"{path}: a key with empty parts, . or .. cannot be copied to a folder")
    return Path(path)


def _staged(place: str | Path) -> Path:
    """The local folder or file that will be uploaded.

    Raises:
      UsageError: there is something else at the place; two tables in one folder would be read as one.
    """
    store, path = _open(place)
    local = _root(place).with_name("out") / _parts(place)[0] / _safe(path)
    sizes = {part: file.stat().st_size for part, file in _named(local).items()} if local.exists() else {}
    for info in _listed(store, path, place):
        if sizes.get(info.path.removeprefix(path).lstrip("/")) != info.size:
            raise UsageError(f"{_text(place)} has objects already, such as {info.path}; name another place")
    return local
