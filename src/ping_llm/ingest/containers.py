"""Readers of gzip, bzip2, xz, zstd, zip and tar, recognised by their first bytes, in bounded memory.

Decompressors give at most `CHUNK_BYTES` at a time, so that a few kilobytes that unpack to gigabytes cost time
but not memory. Concatenated streams (as pbzip2 and bgzip write them) are read as one stream.
"""

import bz2
import lzma
import queue
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import Any

import zstandard

from ping_llm.ingest import archives
from ping_llm.ingest.archives import BLOCK, ZIP_MAGIC, is_tar
from ping_llm.ingest.options import BLOCK_BYTES
from ping_llm.ingest.records import Broken, Chunks

CHUNK_BYTES = BLOCK_BYTES

#: Number of chunks that are unpacked in advance.
_AHEAD = 4

#: Largest number of containers inside each other; deeper nesting is taken for an attack.
MAX_NESTING = 4

#: Bytes of zstd data per call. zstd does not bound the output of a call, and four bytes may stand for 128
#: KiB: 1 KiB unpacks to 32 MiB at worst.
_ZSTD_SLICE = 1 << 10

#: Bytes of damaged gzip data unpacked at a time; the loss is less than what these bytes unpack to.
_SALVAGE_SLICE = 4

_MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    ZIP_MAGIC: "zip",
}
_LONGEST_MAGIC = max(map(len, _MAGIC))

#: First bytes of common formats that ingest does not read, refused by name and not rejected line by line.
_REFUSED = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it first",
    b"Rar!\x1a\x07": "a RAR archive; unpack it first",
    b"\x04\x22\x4d\x18": "lz4 data; unpack it first",
    b"\x1f\x9d": "data of `compress` (.Z); unpack it first",
    b"LZIP": "lzip data; unpack it first",
    b"\xff\x06\x00\x00sNaPpY": "snappy data; unpack it first",
    b"ARROW1\0\0": "an Arrow or Feather file; write it as Parquet",
    b"Obj\x01": "an Avro file; write it as Parquet or CSV",
    b"SQLite format 3\0": "an SQLite database; write its table as CSV",
    b"\xd4\xc3\xb2\xa1": "a packet capture",
    b"\xa1\xb2\xc3\xd4": "a packet capture",
    b"\x0a\x0d\x0d\x0a": "a packet capture",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"%PDF": "a PDF file",
    b"\xff\xfe": "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8",
    b"<": "HTML or XML",
}

#: Text between the name of a refused file and what it is.
NOT_READ = " is not read: it is "

_ARCHIVES = {"zip": archives.zip_members, "tar": archives.tar_members}


def container(start: bytes) -> str | None:
    """The name of the container that begins with these bytes."""
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            return name
    # zstd may begin with a skippable frame.
    if len(start) >= 4 and start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F:
        return "zstd"
    return None


def contents(chunks: Chunks, nesting: int = 0) -> Generator[Chunks]:
    """The streams inside a stream: itself, its unpacked content, or each member of an archive in turn."""
    start = chunks.peek(BLOCK)
    kind = container(start) or ("tar" if is_tar(start) else None)
    refused = _refused(start)
    if kind is None and refused is not None:
        chunks.trouble.add(f"{chunks.name}{NOT_READ}{refused}")
    elif kind is None:
        yield chunks
    elif nesting == MAX_NESTING:
        chunks.trouble.add(f"{chunks.name}: more than {MAX_NESTING} containers inside each other; not read")
        chunks.broken = True
    elif kind in _ARCHIVES:
        for name, data in _ARCHIVES[kind](chunks):
            inner = Chunks(data, f"{chunks.name}/{name}", chunks.trouble)
            yield from contents(inner, nesting + 1)
            for _ in inner:  # the next member begins where this one ends
                pass
    else:
        data = unpack(chunks, kind)
        if nesting:
            yield from contents(Chunks(data, chunks.name, chunks.trouble), nesting + 1)
            return
        with closing(ahead(data)) as read_ahead:
            yield from contents(Chunks(read_ahead, chunks.name, chunks.trouble), nesting + 1)


def _refused(start: bytes) -> str | None:
    return next((what for magic, what in _REFUSED.items() if start.startswith(magic)), None)


def is_refused(start: bytes) -> bool:
    """Whether data with these first bytes is another container, or a format that is not read."""
    return container(start) is not None or is_tar(start) or _refused(start) is not None


def ahead(chunks: Iterator[bytes]) -> Generator[bytes]:
    """The same chunks, read in a thread that is up to `_AHEAD` chunks ahead of the caller.

    Reading, hashing and unpacking release the GIL, so on two cores they run while records are parsed.
    """
    handed: queue.Queue[tuple[bytes | None, BaseException | None]] = queue.Queue(_AHEAD)
    ended = threading.Event()

    def read() -> None:
        problem: BaseException | None = None
        try:
            for chunk in chunks:
                handed.put((chunk, None))
                if ended.is_set():
                    return
        except BaseException as error:
            problem = error
        handed.put((None, problem))

    reader = threading.Thread(target=read, name="unpack", daemon=True)
    reader.start()
    try:
        while True:
            chunk, problem = handed.get()
            if problem is not None:
                raise problem
            if chunk is None:
                return
            yield chunk
    finally:
        ended.set()
        while reader.is_alive():  # it may wait for room in the queue
            with suppress(queue.Empty):
                handed.get(timeout=0.01)
        reader.join()


def unpack(chunks: Chunks, kind: str) -> Iterator[bytes]:
    """Decompress all consecutive streams of one kind."""
    while True:
        unpacker = _Unpacker(kind)
        for chunk in chunks:
            try:
                yield from unpacker.feed(chunk)
            except (zlib.error, OSError, lzma.LZMAError, EOFError, zstandard.ZstdError, ValueError) as error:
                raise Broken(
                    f"corrupt {kind} data at byte {chunks.offset:,} of the container ({error})"
                ) from None
            if unpacker.ended:
                chunks.unread(unpacker.unused)
                break
        if not unpacker.ended:
            raise Broken(f"{kind} data ends early, at byte {chunks.offset:,} of the container")
        _skip_padding(chunks)
        following = chunks.peek(_LONGEST_MAGIC)
        if not following:
            return
        if container(following) != kind:
            raise Broken(
                f"bytes after the {kind} data, at byte {chunks.offset:,} of the container, are not {kind}"
            )


def _skip_padding(chunks: Chunks) -> None:
    """Skip zeros: gzip and xz files may be padded with them."""
    for chunk in chunks:
        rest = chunk.lstrip(b"\0")
        if rest:
            chunks.unread(rest)
            return


def _salvage(engine: Any, data: bytes) -> Iterator[bytes]:
    """Unpack gzip data up to the error in them, which may only be a wrong checksum at their end.

    A call that raises loses all its output. So the decompressor, 50 kB, is copied before each call, and the
    data are unpacked again from the copy.
    """
    for start in range(0, len(data), _SALVAGE_SLICE):
        piece = data[start : start + _SALVAGE_SLICE]
        while piece:
            try:
                yield engine.decompress(piece, CHUNK_BYTES)
            except zlib.error:
                return
            piece = engine.unconsumed_tail


class _Unpacker:
    """Decompressor of one stream, with the same interface for four libraries."""

    def __init__(self, kind: str):
        self._kind = kind
        self._engine: Any
        if kind == "gzip":
            self._engine = zlib.decompressobj(31)
        elif kind == "bzip2":
            self._engine = bz2.BZ2Decompressor()
        elif kind == "xz":
            # 128 MB is more than xz -9 needs; a header that requires gigabytes is refused.
            self._engine = lzma.LZMADecompressor(memlimit=128 << 20)
        else:
            self._engine = zstandard.ZstdDecompressor().decompressobj()
        self._rest = b""

    @property
    def ended(self) -> bool:
        return self._engine.eof

    @property
    def unused(self) -> bytes:
        return self._engine.unused_data + self._rest

    def feed(self, data: bytes) -> Iterator[bytes]:
        engine = self._engine
        if self._kind == "gzip":
            while data and not engine.eof:
                before = engine.copy()
                try:
                    piece = engine.decompress(data, CHUNK_BYTES)
                except zlib.error:
                    yield from _salvage(before, data)
                    raise
                yield piece
                data = engine.unconsumed_tail
        elif self._kind == "zstd":
            self._rest = data
            while self._rest and not engine.eof:
                piece, self._rest = self._rest[:_ZSTD_SLICE], self._rest[_ZSTD_SLICE:]
                yield engine.decompress(piece)
        else:
            yield engine.decompress(data, CHUNK_BYTES)
            while not engine.needs_input and not engine.eof:
                yield engine.decompress(b"", CHUNK_BYTES)
