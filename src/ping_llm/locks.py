"""A lock that allows one writer per output folder.

The lock is an flock on the file `.lock` in the folder: the operating system releases it when the process
ends, however it ends. The file says which process holds the lock. It is removed when the work is done; a file
that a killed process left is locked again.
"""

import errno
import fcntl
import json
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from ping_llm.errors import PingError, UsageError

LOCK_FILE = ".lock"

#: Per thread: the folders it has locked in whose blocks nested calls may enter the same folder again.
_HERE = threading.local()

#: Bytes read of the lock file; the note of a holder is always shorter.
_NOTE_BYTES = 4096

#: Errors of flock on a file system without locks (some network file systems).
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def only_writer(out: Path, work: str, *, with_parts: bool = False) -> Iterator[None]:
    """Lock the folder `out` while the block runs.

    The folder is created if missing, and removed again if this call created it and it is empty at the end.

    Args:
      work: Name of the work, for the error message of other processes, such as "ingest".
      with_parts: Whether the block may call `only_writer` for the same folder again, in the same thread.

    Raises:
      PingError: another process holds the lock (the text says which), or the folder is not writable.
      UsageError: `out` is not a folder.
    """
    held: set[str] = _HERE.__dict__.setdefault("held", set())
    place = os.path.realpath(out)
    if place in held:
        yield
        return
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    lock = _acquire(out, work)
    if with_parts:
        held.add(place)
    try:
        yield
    finally:
        held.discard(place)
        # Remove the file while the lock is held: a process that has opened it meanwhile sees that it is gone,
        # and opens a new one.
        if _is_current(lock, out / LOCK_FILE):
            with suppress(OSError):
                (out / LOCK_FILE).unlink()
        os.close(lock)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def _acquire(out: Path, work: str) -> int:
    path = out / LOCK_FILE
    while True:
        lock = _open(out, path)
        try:
            if _is_held(lock, out):
                raise PingError(
                    f"{out} is being written by {_holder(lock)}; wait for it, or name another folder"
                )
            if _is_current(lock, path):
                _write_note(lock, path, work)
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _open(out: Path, path: Path) -> int:
    """Open the lock file without following links and without changing its content."""
    while True:
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            break
        except FileNotFoundError:
            if out.is_symlink():
                raise UsageError(f"{out} is a symbolic link to nothing; name another folder") from None
            # The process that created the folder has just removed it: try again.
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{out} is not a folder, or lies below a file; name another folder") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise _not_a_lock(path) from None
            raise PingError(f"cannot write to {out}: {error.strerror}") from None
    status = os.fstat(lock)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(lock)
        raise _not_a_lock(path)
    return lock


def _not_a_lock(path: Path) -> PingError:
    return PingError(f"{path} is a link or no file, so it cannot be a lock; remove it")


def _is_held(lock: int, out: Path) -> bool:
    """Try to take the lock; return True if another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise PingError(f"cannot lock {out}: {error.strerror}") from None
        print(
            f"ping-llm: the file system of {out} has no locks; make sure that nobody else writes to it",
            file=sys.stderr,
        )
    return False


def _is_current(lock: int, path: Path) -> bool:
    """Whether the locked file is still the one in the folder."""
    try:
        return os.path.samestat(os.fstat(lock), path.lstat())
    except OSError:
        return False


def _write_note(lock: int, path: Path, work: str) -> None:
    before = os.pread(lock, _NOTE_BYTES, 0)
    if before and _note(before) is None:
        raise PingError(f"{path} holds something else than a lock; remove it, or name another folder")
    note = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "work": work,
        "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    with suppress(OSError):  # on a full disk the lock works without its note
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(note).encode(), 0)


def _note(data: bytes) -> dict[str, object] | None:
    try:
        note = json.loads(data)
    except ValueError:
        return None
    return note if isinstance(note, dict) and "pid" in note else None


def _holder(lock: int) -> str:
    note = _note(os.pread(lock, _NOTE_BYTES, 0))
    if note is None:
        return "another process"
    return f"process {note['pid']} on {note.get('host')} ({note.get('work')}, since {note.get('since')})"
