"""Sequential readers of zip and tar archives, member by member.

zipfile and tarfile are not used: a zip has its directory at the end, to which standard input cannot seek, and
a truncated or damaged archive must still give its intact members and an error message. zipfile refuses such
an archive, and tarfile stops at a damaged header without an error. The price: members that were deleted from
a zip without rewriting it are read too, and a stored (uncompressed) member of unknown size is refused.

The tar formats are ustar, pax, GNU and the format of 1979; concatenated archives (`cat a.tar b.tar`) are read
as one.
"""

import bz2
import struct
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

from ping_llm.ingest.records import Broken, Chunks

ZIP_MAGIC = b"PK\x03\x04"
_DIRECTORY_MAGICS = (b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x08")
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
_HEADER = struct.Struct("<4s5H3I2H")
_STORED, _DEFLATE, _BZIP2, _ZSTD = 0, 8, 12, 93
_OUTPUT_BYTES = 1 << 20
_INPUT_SLICE = 1 << 10


def zip_members(chunks: Chunks) -> Iterator[tuple[str, Iterator[bytes]]]:
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
        member = _ZipMember(chunks, name, flags, method, crc, packed_size)
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


class _ZipMember:
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
        """Read the checksum after the data, with or without magic; two sizes of 4 or 8 bytes follow."""
        start = self._chunks.read(4)
        if start == _DESCRIPTOR_MAGIC:
            start = self._chunks.read(4)
        ahead = self._chunks.peek(20)
        known = (ZIP_MAGIC, *_DIRECTORY_MAGICS)
        self._chunks.read(16 if ahead[16:20] in known and ahead[8:12] not in known else 8)
        if len(start) < 4:
            raise Broken(f"the zip archive ends early, at byte {self._chunks.offset:,}")
        return struct.unpack("<I", start)[0]


BLOCK = 512

_MAGIC_PLACE = 257
_ZEROS = bytes(BLOCK)
_PIECE_BYTES = 1 << 20
#: Largest size of a long name or pax header, in bytes; names have 4 KiB at most.
_MAX_EXTENSION = 1 << 20
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)


def is_tar(start: bytes) -> bool:
    """Whether these bytes begin a tar archive: by magic number or, for the oldest format, by checksum."""
    if len(start) < BLOCK or start[:BLOCK] == _ZEROS or 0 not in start[:BLOCK]:
        return False
    return start.startswith(b"ustar", _MAGIC_PLACE) or _header(start[:BLOCK]) is not None


def _header(block: bytes) -> tarfile.TarInfo | None:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except (tarfile.HeaderError, ValueError):
        return None
    return header if header.size >= 0 else None


def tar_members(chunks: Chunks) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield (name, chunks of content) of each file in the archive. Consume one before taking the next."""
    ended = False
    extended: dict[str, str] = {}
    while True:
        start = chunks.offset
        block = chunks.read(BLOCK)
        if block == _ZEROS or (ended and not block.strip(b"\0") and len(block) < BLOCK):
            ended = True
            if len(block) < BLOCK:
                return
            continue
        header = _header(block) if len(block) == BLOCK else None
        if header is None:
            what = "is corrupt" if len(block) == BLOCK else "ends early"
            _stop(chunks, f"{chunks.name}: the tar archive {what} at byte {start:,}")
            return
        ended = False
        try:
            if header.type in (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
                extended |= _extension(chunks, header)
                continue
            name = extended.get("path") or header.name
            size = int(extended.get("size", header.size))
            if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse") for key in extended):
                raise Broken("is a sparse file in a tar archive; pack it again without --sparse")
        except (Broken, ValueError) as problem:
            _stop(chunks, f"{chunks.name}/{header.name}: {problem}")
            return
        extended = {}
        member = _TarMember(chunks, size)
        if header.isreg() and not name.rpartition("/")[2].startswith("._"):
            yield name, member.content()
        elif header.isreg() or header.type not in tarfile.SUPPORTED_TYPES:
            for _ in member.quietly():
                pass
        if member.missing and member.said:
            chunks.broken = True
        elif member.missing or not _skip_padding(chunks, size):
            _stop(chunks, f"{chunks.name}: the tar archive ends early at byte {chunks.offset:,}")
        if chunks.broken:
            return


def _stop(chunks: Chunks, sentence: str) -> None:
    chunks.trouble.add(f"{sentence}; what was whole before it is kept")
    chunks.broken = True


def _skip_padding(chunks: Chunks, size: int) -> bool:
    padding = -size % BLOCK
    return len(chunks.read(padding)) == padding if padding else True


def _extension(chunks: Chunks, header: tarfile.TarInfo) -> dict[str, str]:
    """Read the content of an extension header, which precedes a member's own: a long name, or pax records."""
    if header.size > _MAX_EXTENSION:
        raise Broken(f"has a tar header of {header.size:,} bytes; at most {_MAX_EXTENSION:,} are read")
    data = chunks.read(header.size)
    if len(data) < header.size or not _skip_padding(chunks, header.size):
        raise Broken(f"the tar archive ends early, at byte {chunks.offset:,}")
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "replace")}
    return _pax_records(data) if header.type in _PAX else {}


def _pax_records(data: bytes) -> dict[str, str]:
    """Parse pax records "LENGTH KEY=VALUE\\n", where LENGTH includes itself."""
    records = {}
    while data:
        digits, _, _ = data.partition(b" ")
        if not digits.isdigit() or len(digits) > 7 or not len(digits) < int(digits) <= len(data):
            raise Broken("has a pax header that is corrupt")
        key, _, value = data[len(digits) + 1 : int(digits) - 1].partition(b"=")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        data = data[int(digits) :]
    return records


class _TarMember:
    def __init__(self, chunks: Chunks, size: int):
        self._chunks = chunks
        self.missing = size
        self.said = False

    def content(self) -> Iterator[bytes]:
        yield from self.quietly()
        if self.missing:
            self.said = True
            raise Broken(f"the tar archive ends early, at byte {self._chunks.offset:,}")

    def quietly(self) -> Iterator[bytes]:
        while self.missing:
            piece = self._chunks.read(min(self.missing, _PIECE_BYTES))
            if not piece:
                return
            self.missing -= len(piece)
            yield piece
