"""zip archives read from the front, member by member, without the directory at their end.

So a truncated archive gives what is whole of it, and standard input works. The price: members that were
deleted from an archive without rewriting it are read too, and a stored (uncompressed) member of unknown size
is refused.
"""

import bz2
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

from ping_llm.ingest.streams import Broken, Chunks

ZIP_MAGIC = b"PK\x03\x04"
_DIRECTORY_MAGICS = (b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x08")
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
_HEADER = struct.Struct("<4s5H3I2H")
_STORED, _DEFLATE, _BZIP2, _ZSTD = 0, 8, 12, 93
_OUTPUT_BYTES = 1 << 20
_INPUT_SLICE = 1 << 10


def members(chunks: Chunks) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield (name, chunks of content) of each file in the archive. Consume one before taking the next."""
    while True:
        start = chunks.offset
        header = chunks.read(_HEADER.size)
        if header[:4] in _DIRECTORY_MAGICS:
            for _ in chunks:
                pass
            return
        if len(header) < _HEADER.size or header[:4] != ZIP_MAGIC:
            what = "ends early" if len(header) < _HEADER.size else "is corrupt"
            chunks.trouble.add(
                f"{chunks.name}: the zip archive {what} at byte {start:,}; what was whole before it is kept"
            )
            chunks.broken = True
            return
        _, _, flags, method, _, _, crc, packed_size, size, name_length, extra_length = _HEADER.unpack(header)
        name = chunks.read(name_length).decode("utf-8" if flags & 0x800 else "cp437", "replace")
        extra = chunks.read(extra_length)
        if packed_size == 0xFFFFFFFF:
            size, packed_size = _zip64_sizes(extra, size, packed_size)
        member = _Member(chunks, name, flags, method, crc, packed_size)
        if name.endswith("/") or name.startswith("__MACOSX/"):
            try:
                for _ in member.content():
                    pass
            except Broken as problem:
                chunks.trouble.add(f"{chunks.name}/{name}: {problem}")
                chunks.broken = True
        else:
            yield name, member.content()
        if chunks.broken or not member.finished:
            return


def _zip64_sizes(extra: bytes, size: int, packed_size: int) -> tuple[int, int]:
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1 and length >= 16 and len(extra) >= 20:
            return struct.unpack_from("<QQ", extra, 4)
        extra = extra[4 + length :]
    return size, packed_size


class _Member:
    def __init__(self, chunks: Chunks, name: str, flags: int, method: int, crc: int, packed_size: int):
        self._chunks, self._name, self._flags, self._method = chunks, name, flags, method
        self._crc, self._packed_size = crc, packed_size
        self._has_descriptor = bool(flags & 8)
        self.finished = False

    def content(self) -> Iterator[bytes]:
        if self._flags & 1:
            raise Broken("is encrypted")
        if self._method == _STORED and self._has_descriptor and not self._packed_size:
            raise Broken("is stored in the zip archive without its size; pack it again")
        unpacked = self._stored() if self._method == _STORED else self._compressed()
        crc = 0
        for piece in unpacked:
            if piece:
                crc = zlib.crc32(piece, crc)
                yield piece
        if self._has_descriptor:
            self._crc = self._read_descriptor()
        self.finished = True
        if crc != self._crc:
            raise Broken(
                f"zip checksum differs (content damaged before byte {self._chunks.offset:,} of the archive)"
            )

    def _stored(self) -> Iterator[bytes]:
        missing = self._packed_size
        while missing:
            piece = self._chunks.read(min(missing, _OUTPUT_BYTES))
            if not piece:
                raise Broken(f"the zip archive ends early, at byte {self._chunks.offset:,}")
            missing -= len(piece)
            yield piece

    def _compressed(self) -> Iterator[bytes]:
        engine: Any
        if self._method == _DEFLATE:
            engine = zlib.decompressobj(-15)
        elif self._method == _BZIP2:
            engine = bz2.BZ2Decompressor()
        elif self._method == _ZSTD:
            engine = zstandard.ZstdDecompressor().decompressobj()
        else:
            raise Broken(f"uses zip compression method {self._method}; deflate, bzip2 and zstd are read")
        for chunk in self._chunks:
            data = chunk
            while data and not engine.eof:
                try:
                    if self._method == _DEFLATE:
                        yield engine.decompress(data, _OUTPUT_BYTES)
                        data = engine.unconsumed_tail
                    elif self._method == _BZIP2:
                        yield engine.decompress(data, _OUTPUT_BYTES)
                        data = b""
                        while not engine.needs_input and not engine.eof:
                            yield engine.decompress(b"", _OUTPUT_BYTES)
                    else:
                        piece, data = data[:_INPUT_SLICE], data[_INPUT_SLICE:]
                        yield engine.decompress(piece)
                except (zlib.error, OSError, zstandard.ZstdError, ValueError) as error:
                    where = f"before byte {self._chunks.offset:,} of the archive"
                    raise Broken(f"corrupt zip data {where} ({error})") from None
            if engine.eof:
                self._chunks.unread(engine.unused_data + (data if self._method == _ZSTD else b""))
                return
        raise Broken(f"the zip archive ends early, at byte {self._chunks.offset:,}")

    def _read_descriptor(self) -> int:
        """The checksum after the data, signed or not; two sizes of 4 or 8 bytes follow it."""
        start = self._chunks.read(4)
        if start == _DESCRIPTOR_MAGIC:
            start = self._chunks.read(4)
        ahead = self._chunks.peek(20)
        known = (ZIP_MAGIC, *_DIRECTORY_MAGICS)
        self._chunks.read(16 if ahead[16:20] in known and ahead[8:12] not in known else 8)
        if len(start) < 4:
            raise Broken(f"the zip archive ends early, at byte {self._chunks.offset:,}")
        return struct.unpack("<I", start)[0]
