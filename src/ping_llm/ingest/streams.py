"""Bytes in chunks, with a look ahead, and with an account of what is wrong with them.

A stream never raises for what is in its file. It yields what is whole, and what stopped it is in `Trouble`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

#: Bytes read from a file at a time.
READ_BYTES = 256 << 10


class Broken(Exception):
    """Raised inside a decompressor: the data cannot be read beyond this point. The text says why."""


@dataclass
class Trouble:
    """What is wrong with one input file, in sentences; empty when nothing is."""

    path: str
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)


class RawFile:
    """An open file that counts and hashes what passes: its chunks are the bottom of every stream."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._hash = hashlib.sha256()
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._file.read(READ_BYTES):
            self.offset += len(chunk)
            self._hash.update(chunk)
            yield chunk

    def drain(self) -> None:
        """Read what nobody wanted, so that the hash is the whole file's."""
        for _ in self:
            pass

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class Chunks:
    """An iterator of non-empty byte chunks that can be looked into before it is consumed."""

    def __init__(self, source: Iterator[bytes], name: str, trouble: Trouble, is_file: bool = False):
        self._source, self.name, self.trouble, self.is_file = source, name, trouble, is_file
        self._ahead: list[bytes] = []
        self._ended = False
        #: True when the bytes stop before their end.
        self.broken = False
        #: Bytes handed out.
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            chunk = self._ahead.pop(0) if self._ahead else self._next()
            if not chunk:
                return
            self.offset += len(chunk)
            yield chunk

    def _next(self) -> bytes:
        while not self._ended:
            try:
                chunk = next(self._source, None)
            except Broken as problem:
                self._stop(str(problem))
            except OSError as error:
                self._stop(f"cannot be read further: {error.strerror or error}")
            else:
                if chunk:
                    return chunk
                # A decompressor may take in bytes and give none out yet: that is not the end.
                self._ended = chunk is None
        return b""

    def _stop(self, why: str) -> None:
        self._ended = self.broken = True
        text = self.offset + sum(map(len, self._ahead))
        self.trouble.add(
            f"{self.name}: {why}, after {text:,} bytes of content; what was whole before it is kept"
        )

    def peek(self, count: int) -> bytes:
        """Up to count bytes from here, not consumed; fewer only at the end."""
        while sum(map(len, self._ahead)) < count:
            chunk = self._next()
            if not chunk:
                break
            self._ahead.append(chunk)
        return b"".join(self._ahead)[:count]

    def unread(self, data: bytes) -> None:
        """Put back bytes that were handed out last."""
        if data:
            self._ahead.insert(0, data)
            self.offset -= len(data)

    def read(self, count: int) -> bytes:
        """Exactly count bytes, fewer only at the end."""
        parts = []
        missing = count
        for chunk in self:
            parts.append(chunk[:missing])
            if len(chunk) > missing:
                self.unread(chunk[missing:])
            missing -= len(parts[-1])
            if not missing:
                break
        return b"".join(parts)
