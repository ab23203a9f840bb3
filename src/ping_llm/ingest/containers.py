"""gzip, bzip2, xz, zstd and zip, recognised by their first bytes and read in bounded memory.

Every decompressor is asked for at most `CHUNK_BYTES` at a time, so that a few kilobytes that unpack to
gigabytes cost time and nothing else. Concatenated streams (as pbzip2 and bgzip write) are one stream.
"""

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

from ping_llm.ingest.options import BLOCK_BYTES
from ping_llm.ingest.streams import Broken, Chunks
from ping_llm.ingest.zips import ZIP_MAGIC, members

CHUNK_BYTES = BLOCK_BYTES

#: A container in a container in a container is still read; deeper is a trick.
MAX_NESTING = 4

#: zstd does not bound the output of a call, and four bytes may stand for 128 KiB: 1 KiB is 32 MiB at worst.
_ZSTD_SLICE = 1 << 10

_MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    ZIP_MAGIC: "zip",
}
_LONGEST_MAGIC = max(map(len, _MAGIC))


def container(start: bytes) -> str | None:
    """The name of the container that begins with these bytes."""
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            return name
    # zstd may begin with a skippable frame.
    if len(start) >= 4 and start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F:
        return "zstd"
    return None


def contents(chunks: Chunks, nesting: int = 0) -> Iterator[Chunks]:
    """The streams inside a stream: itself, what it unpacks to, or each member of an archive in turn."""
    kind = container(chunks.peek(_LONGEST_MAGIC))
    if kind is None:
        yield chunks
    elif nesting == MAX_NESTING:
        chunks.trouble.add(f"{chunks.name}: more than {MAX_NESTING} containers inside each other; not read")
        chunks.broken = True
    elif kind == "zip":
        for name, data in members(chunks):
            inner = Chunks(data, f"{chunks.name}/{name}", chunks.trouble)
            yield from contents(inner, nesting + 1)
            for _ in inner:  # the next member begins where this one ends
                pass
    else:
        yield from contents(Chunks(_unpack(chunks, kind), chunks.name, chunks.trouble), nesting + 1)


def _unpack(chunks: Chunks, kind: str) -> Iterator[bytes]:
    """Decompress all streams of one kind that follow each other."""
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
    """gzip and xz files may be padded with zeros."""
    for chunk in chunks:
        rest = chunk.lstrip(b"\0")
        if rest:
            chunks.unread(rest)
            return


class _Unpacker:
    """One compressed stream, with the same face for four libraries."""

    def __init__(self, kind: str):
        self._kind = kind
        self._engine: Any
        if kind == "gzip":
            self._engine = zlib.decompressobj(31)
        elif kind == "bzip2":
            self._engine = bz2.BZ2Decompressor()
        elif kind == "xz":
            # 128 MB is more than xz -9 asks for; a header that asks for gigabytes is refused.
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
                yield engine.decompress(data, CHUNK_BYTES)
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
