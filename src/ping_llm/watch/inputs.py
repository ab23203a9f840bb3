"""Inputs of results: files and folders that may grow, and streams that are written to files first.

Data from a pipe or a URL go to files in the state folder (`Inbox`) and are read from there, so that a killed
watch continues where it was. Data from a pipe are moved by splice(2): the kernel moves them from the pipe to
the file in one step, and a kill cannot happen in between.
"""

import os
import stat
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ping_llm.errors import PingError, UsageError
from ping_llm.paths import files_below

#: Number of bytes read at a time; a longer line is not a result.
READ_BYTES = 1 << 18
#: Number of bytes kept of a line that is too long.
RAW_BYTES = 8 << 10

#: Name of the inbox as an input; size at which one of its files is closed; unread bytes at which it is full.
_INBOX = "inbox"
_SEGMENT_BYTES, _MOST_WAITING = 64 << 20, 512 << 20

#: Seconds without a byte after which a URL is opened again, and longest pause between two attempts, s.
_URL_TIMEOUT, _MOST_PAUSE = 90.0, 60.0


@dataclass
class Position:
    """Byte and line from which a file is read next, and whether a long line is being skipped."""

    offset: int = 0
    line: int = 1
    skipping: bool = False
    inode: int = 0


@dataclass
class Chunk:
    """Whole lines of a file, and the beginnings of too long lines with their numbers."""

    name: str
    line: int
    data: bytes
    too_long: list[tuple[int, bytes]] = field(default_factory=list)


class Files:
    """Whole lines of files, in the order of the file names, each file from its position.

    A file that became shorter or was replaced is read from its beginning (counted in `restarted`).
    """

    def __init__(self, find: Callable[[], Sequence[Path]], follow: bool = False):
        self._find, self.follow = find, follow
        self.positions: dict[str, Position] = {}
        self.restarted = 0
        self._packed: tuple[str, IO[bytes]] | None = None
        self._next = 0

    def read(self) -> Chunk | None:
        """Return more lines; None if there are none now."""
        files = list(self._find())
        for step in range(len(files)):
            # Files that grow take turns, so that a busy one does not delay the others.
            path = files[(self._next + step) % len(files)] if self.follow else files[step]
            chunk = self._read(path)
            if chunk is not None:
                self._next = (self._next + step + 1) % len(files)
                return chunk
        return None

    @property
    def ended(self) -> bool:
        """Whether no more lines will arrive."""
        return not self.follow

    def _read(self, path: Path) -> Chunk | None:
        try:
            about = path.stat()
        except FileNotFoundError:
            return None
        place = self.positions.setdefault(str(path), Position(inode=about.st_ino))
        packed = path.suffix == ".gz"
        if place.inode != about.st_ino or (not packed and about.st_size < place.offset):
            self.restarted += 1
            place = self.positions[str(path)] = Position(inode=about.st_ino)
        if not packed and about.st_size == place.offset:
            return None
        data = self._unpacked(path, place.offset) if packed else _bytes(path, place.offset)
        return self._cut(str(path), place, data, self.ended)

    def _unpacked(self, path: Path, offset: int) -> bytes:
        import gzip

        if self._packed is None or self._packed[0] != str(path):
            self._packed = str(path), cast(IO[bytes], gzip.open(path))  # noqa: SIM115
        file = self._packed[1]
        try:
            file.seek(offset)
            return file.read(READ_BYTES)
        except (OSError, EOFError) as error:
            raise PingError(f"{path} cannot be unpacked after {offset:,} bytes: {error}") from error

    def _cut(self, name: str, place: Position, data: bytes, ended: bool) -> Chunk | None:
        """Return the whole lines at the beginning of `data`; move the position behind them."""
        if not data:
            return None
        first, too_long = place.line, []
        start = 0
        if place.skipping:
            start = data.find(b"\n") + 1
            if not start:
                place.offset += len(data)
                return Chunk(name, first, b"")
            place.skipping = False
            place.line += 1
            first += 1
        end = data.rfind(b"\n") + 1
        if end <= start:
            end = start
            if len(data) - start >= READ_BYTES // 2 and len(data) == READ_BYTES:
                too_long.append((place.line, data[start : start + RAW_BYTES]))
                place.skipping, end = True, len(data)
                place.offset += end
                return Chunk(name, first, b"", too_long)
            if len(data) < READ_BYTES and ended:
                end = len(data)  # the last line of a file that will not grow
            elif end == 0:
                return None
        lines = data[start:end]
        place.offset += end
        place.line += lines.count(b"\n") + (0 if lines.endswith(b"\n") or not lines else 1)
        return Chunk(name, first, lines)

    def save(self) -> dict[str, Any]:
        return {name: asdict(place) for name, place in self.positions.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        self.positions = {name: Position(**place) for name, place in saved.items()}

    def start(self) -> None:
        """Begin to read; a saved position must be restored before."""

    def committed(self) -> None:
        """Note that the saved state includes everything that was read."""

    def close(self) -> None:
        if self._packed is not None:
            self._packed[1].close()


def _bytes(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(READ_BYTES)


def files_of(path: Path, follow: bool) -> Files:
    """Return the input of a file, or of the files below a folder."""
    if path.is_dir():
        return Files(lambda: [each for each in files_below(path) if not each.name.startswith(".")], follow)
    if not path.exists() and not follow:
        raise UsageError(f"{path} does not exist")
    return Files(lambda: [path], follow)


class Inbox(Files):
    """A stream, written to files in a folder as it arrives, and read from there.

    A file is named by the number of bytes of the stream before it. All files form one text: a line may begin
    in one file and end in the next.
    """

    def __init__(self, folder: Path, feed: Callable[["Inbox"], None]):
        super().__init__(lambda: sorted(folder.glob("inbox-*.jsonl")), follow=True)
        self._folder, self._feed = folder, feed
        self.trouble: str | None = None
        self.reconnects = 0
        self._place = self.positions.setdefault(_INBOX, Position())
        self._stop = threading.Event()
        self._done = threading.Event()
        self._writing: tuple[Path, int] | None = None  # path and descriptor

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    def start(self) -> None:
        """Begin to receive in a thread; a saved position must be restored before."""
        self._folder.mkdir(parents=True, exist_ok=True)

        def run() -> None:
            try:
                self._feed(self)
            except OSError as error:
                self.trouble = f"the stream ended: {error}"
            finally:
                self._done.set()

        threading.Thread(target=run, name="watch-inbox", daemon=True).start()

    def restore(self, saved: dict[str, Any]) -> None:
        super().restore(saved)
        self._place = self.positions.setdefault(_INBOX, Position())

    def read(self) -> Chunk | None:
        ended = self.ended  # checked before reading, so that no data are missed
        data = b""
        for path, start, size in self._segments():
            at = self._place.offset + len(data)
            if start <= at < start + size and len(data) < READ_BYTES:
                with path.open("rb") as file:
                    file.seek(at - start)
                    data += file.read(READ_BYTES - len(data))
        return self._cut(_INBOX, self._place, data, ended)

    def _segments(self) -> list[tuple[Path, int, int]]:
        """Return path, first byte and size of each file, in order."""
        out = []
        for path in self._find():
            try:
                out.append((path, _first_byte(path), path.stat().st_size))
            except FileNotFoundError:
                continue
        return out

    def room(self) -> int | None:
        """Return the descriptor of the file to write to, or None to stop; wait while too much is unread."""
        while not self._stop.is_set():
            segments = self._segments()
            if sum(size for _, _, size in segments) < _MOST_WAITING:
                end = max((start + size for _, start, size in segments), default=self._place.offset)
                if self._writing is not None and end - _first_byte(self._writing[0]) >= _SEGMENT_BYTES:
                    os.close(self._writing[1])
                    self._writing = None
                if self._writing is None:
                    path = self._folder / f"inbox-{end:015d}.jsonl"
                    self._writing = path, os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                return self._writing[1]
            self._stop.wait(0.1)
        return None

    def committed(self) -> None:
        """Remove files that were read to their end, except the one that is being written."""
        for path, start, size in self._segments():
            writing = self._writing is not None and self._writing[0] == path and not self.ended
            if not writing and start + size <= self._place.offset:
                path.unlink()

    def close(self) -> None:
        self._stop.set()

    def pause(self, seconds: float) -> bool:
        """Wait; return whether to stop."""
        return self._stop.wait(seconds)


def _first_byte(path: Path) -> int:
    return int(path.stem.removeprefix("inbox-"))


def from_pipe(descriptor: int) -> Callable[[Inbox], None]:
    """Return a feed that receives a pipe, a terminal or a socket until its end."""

    def feed(inbox: Inbox) -> None:
        piped = stat.S_ISFIFO(os.fstat(descriptor).st_mode) and hasattr(os, "splice")
        while (out := inbox.room()) is not None:
            if piped:
                count = os.splice(descriptor, out, 1 << 20)
            else:
                data = os.read(descriptor, 1 << 16)
                count = len(data)
                _write(out, data)
            if not count:
                return

    return feed


def from_url(url: str) -> Callable[[Inbox], None]:
    """Return a feed that receives JSON lines of an HTTP stream, and connects again when it ends."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url must begin with http:// or https://, not {url}")

    def feed(inbox: Inbox) -> None:
        pause = 1.0
        while inbox.room() is not None:
            try:
                with urllib.request.urlopen(url, timeout=_URL_TIMEOUT) as stream:
                    inbox.trouble = None
                    while (out := inbox.room()) is not None:
                        data = stream.read1(1 << 16)
                        if not data:
                            break
                        pause = 1.0
                        _write(out, data)
                # A line cut off by the end must not merge with the first line of the next connection.
                if (out := inbox.room()) is not None:
                    _write(out, b"\n")
            except OSError as error:
                inbox.trouble = f"{url}: {error}"
            inbox.reconnects += 1
            if inbox.pause(pause):
                return
            pause = min(2 * pause, _MOST_PAUSE)

    return feed


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
