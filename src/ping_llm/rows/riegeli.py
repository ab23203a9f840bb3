"""The container of a shard: ArrayRecord with `group_size:1,uncompressed`, written and read by kernels.

ArrayRecord's own library moves one record a call, under the GIL: 9 µs to write a row and 11 to 15 µs to read
one, more than all other work on it. The kernels here take 1 to 2 µs, in as many threads as there are. What
they write is what the library writes, byte for byte (it is the oracle of the tests, and writes the shards of
the reference engine), so every tool that reads ArrayRecord reads these shards.

A file is a sequence of Riegeli chunks (google/riegeli, doc/riegeli_records_file_format.md): a signature, one
chunk a record, a footer with the place of each, padding to the next block, and a postscript in a block of its
own that says where the footer is. Blocks have 64 KiB and begin with a header of 24 bytes, which may interrupt
a chunk anywhere. The length of a record follows from its number of measurements, and so does every place.
"""

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy import uint64

from ping_llm.compiled import kernel
from ping_llm.rows.highway import highway_hash

BLOCK = 1 << 16
BLOCK_HEADER = 24
CHUNK_HEADER = 40
SIGNATURE_END = BLOCK_HEADER + CHUNK_HEADER
_USABLE = BLOCK - BLOCK_HEADER

_SIGNATURE_KIND, _RECORDS_KIND, _PADDING_KIND = ord("s"), ord("r"), ord("p")
_MAGIC = 0x71930E704FDAE05E  # of ArrayRecord
_VERSION = 1
_OPTIONS = b"group_size:1,transpose:false,pad_to_block_boundary:false,uncompressed,max_parallelism:1"

#: Where `read_chunk` leaves a record: after the header and at most 16 bytes more, at a whole word.
RECORD_AT = CHUNK_HEADER + 16

OK, TOO_SHORT, BAD_CHUNK, BAD_HASH = range(4)

#: Called without the GIL from kernels; resolved when they are linked, so they can be cached.
_pread = types.ExternalFunction("pread", types.ssize_t(types.int32, types.voidptr, types.size_t, types.int64))


@intrinsic
def _copy(context, source, begin, out, at, count):
    """out[at : at + count] = source[begin : begin + count] of bytes, as a memcpy: slices take 0.5 µs more."""

    def generate(target, builder, signature, arguments):
        source, begin, out, at, count = arguments
        source = target.make_array(signature.args[0])(target, builder, source).data
        out = target.make_array(signature.args[2])(target, builder, out).data
        cgutils.raw_memcpy(builder, builder.gep(out, [at]), builder.gep(source, [begin]), count, 1)
        return target.get_dummy_value()

    return types.void(source, types.int64, out, types.int64, types.int64), generate


@kernel
def chunk_end(begin, size):
    """Where a chunk with `size` bytes of data ends, the headers of blocks in between included."""
    length = CHUNK_HEADER + size
    blocks = (length + (begin + _USABLE - 1) % BLOCK) // _USABLE
    return begin + length + blocks * BLOCK_HEADER


@kernel
def varint_size(value):
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@kernel
def data_size(record):
    """Bytes of the data of a chunk whose one record has `record` bytes."""
    return 2 + varint_size(record) + record


@kernel
def _put_varint(out, at, value):
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@kernel
def _put_word(out, at, value):
    out[at : at + 8].view(np.uint64)[0] = uint64(value)


@kernel
def _word(data, at):
    return data[at : at + 8].view(np.uint64)[0]


@kernel
def put_chunk(out, base, begin, chunk, size, kind, records, decoded):
    """Write a chunk into a buffer that holds the file from position `base` on.

    Args:
      chunk: scratch, with the data at [CHUNK_HEADER : CHUNK_HEADER + size]; its header is filled in.

    Returns:
      the position at which the chunk ends.
    """
    _put_word(chunk, 8, size)
    _put_word(chunk, 16, highway_hash(chunk, CHUNK_HEADER, size))
    _put_word(chunk, 24, kind | records << 8)
    _put_word(chunk, 32, decoded)
    _put_word(chunk, 0, highway_hash(chunk, 8, CHUNK_HEADER - 8))
    end = chunk_end(begin, size)
    position, done = begin, 0
    while position < end:
        if position % BLOCK == 0:
            at = position - base
            _put_word(out, at + 8, position - begin)
            _put_word(out, at + 16, end - position)
            _put_word(out, at, highway_hash(out, at + 8, BLOCK_HEADER - 8))
            position += BLOCK_HEADER
        count = min(BLOCK - position % BLOCK, end - position)
        _copy(chunk, done, out, position - base, count)
        position += count
        done += count
    return end


@kernel
def frame(records, ends, base, begin, out, chunk, begins):
    """Write one chunk a record; record i is records[ends[i] : ends[i + 1]].

    Args:
      base, begin: positions of out[0] and of the first chunk. chunk: scratch.
      begins: filled with the positions of the chunks.

    Returns:
      the position at which the last chunk ends.
    """
    for record in range(len(ends) - 1):
        begins[record] = begin
        size = ends[record + 1] - ends[record]
        chunk[CHUNK_HEADER] = 0  # not compressed
        chunk[CHUNK_HEADER + 1] = varint_size(size)
        at = _put_varint(chunk, CHUNK_HEADER + 2, size)
        _copy(records, ends[record], chunk, at, size)
        begin = put_chunk(out, base, begin, chunk, at + size - CHUNK_HEADER, _RECORDS_KIND, 1, size)
    return begin


@kernel
def framed_end(ends, begin):
    """The position at which `frame` will end."""
    for record in range(len(ends) - 1):
        begin = chunk_end(begin, data_size(ends[record + 1] - ends[record]))
    return begin


@kernel
def read_chunk(descriptor, begin, record, raw, chunk):
    """Read the record, of `record` bytes, of the chunk at `begin` into chunk[RECORD_AT:].

    Args:
      raw, chunk: scratch for chunk_end - begin and RECORD_AT + record bytes.

    Returns:
      OK or what is wrong. All that holds data is checked; the headers of blocks are passed over.
    """
    size = data_size(record)
    end = chunk_end(begin, size)
    if _pread(descriptor, raw.ctypes, end - begin, begin) != end - begin:
        return TOO_SHORT
    start = RECORD_AT - (CHUNK_HEADER + size - record)
    position, done = begin, start
    while position < end:
        if position % BLOCK == 0:
            position += BLOCK_HEADER
        count = min(BLOCK - position % BLOCK, end - position)
        _copy(raw, position - begin, chunk, done, count)
        position += count
        done += count
    data = start + CHUNK_HEADER
    if (
        _word(chunk, start + 8) != uint64(size)
        or _word(chunk, start + 24) != uint64(_RECORDS_KIND | 1 << 8)
        or _word(chunk, start + 32) != uint64(record)
        or chunk[data] != 0
    ):
        return BAD_CHUNK
    if _word(chunk, start + 16) != highway_hash(chunk, data, size):
        return BAD_HASH
    return OK


def signature() -> bytes:
    """The first 64 bytes of every file."""
    out = np.zeros(SIGNATURE_END, np.uint8)
    put_chunk(out, 0, 0, np.zeros(CHUNK_HEADER, np.uint8), 0, _SIGNATURE_KIND, 0, 0)
    return out.tobytes()


def ending(begin: int, begins: np.ndarray, sizes: np.ndarray) -> bytes:
    """What follows the records of a file: footer, padding, postscript, padding.

    Args:
      begin: where the last record's chunk ends. begins: where each chunk begins. sizes: bytes of each record.
    """
    lengths, protos = _footers(begins, sizes)
    about = b"\x08" + _varint(_VERSION) + b"\x10" + _varint(len(begins)) + b"\x18" + _varint(len(begins))
    about += b"\x22" + _varint(len(_OPTIONS)) + _OPTIONS
    about = b"\x0a" + _varint(len(about)) + about
    data = _records_data(_varint(len(about)) + lengths, about + protos)
    footer = _Tail(begin)
    footer.add(data, _RECORDS_KIND, 1 + len(begins), len(about) + len(protos))
    footer.pad()
    postscript = b"\x08" + _varint(begin) + b"\x10" + _varint(_MAGIC)
    data = _records_data(_varint(len(postscript)) * 3, postscript * 3)
    footer.add(data, _RECORDS_KIND, 3, 3 * len(postscript))
    footer.pad()
    return b"".join(footer.pieces)


class _Tail:
    """Chunks after one another, from a position on."""

    def __init__(self, position: int):
        self.position = position
        self.pieces: list[bytes] = []

    def add(self, data: bytes, kind: int, records: int, decoded: int) -> None:
        chunk = np.frombuffer(bytes(CHUNK_HEADER) + data, np.uint8).copy()
        end = chunk_end(self.position, len(data))
        out = np.zeros(end - self.position, np.uint8)
        put_chunk(out, self.position, self.position, chunk, len(data), kind, records, decoded)
        self.pieces.append(out.tobytes())
        self.position = end

    def pad(self) -> None:
        """Fill the block; if not even a chunk's header fits, the next one too."""
        room = -self.position % BLOCK
        if room:
            room += _USABLE if room < CHUNK_HEADER else 0
            self.add(bytes(room - CHUNK_HEADER), _PADDING_KIND, 0, 0)


def _records_data(lengths: bytes, values: bytes) -> bytes:
    return b"\0" + _varint(len(lengths)) + lengths + values


def _varint(value: int) -> bytes:
    out = np.zeros(10, np.uint8)
    return out[: _put_varint(out, 0, uint64(value))].tobytes()


def _footers(begins: np.ndarray, sizes: np.ndarray) -> tuple[bytes, bytes]:
    """The footer's entries, one a record: their lengths and themselves."""
    lengths, protos = np.empty(len(begins), np.uint8), np.empty(24 * len(begins), np.uint8)
    end = _put_footers(np.asarray(begins, np.uint64), np.asarray(sizes, np.uint64), lengths, protos)
    return lengths.tobytes(), protos[:end].tobytes()


@kernel
def _put_footers(begins, sizes, lengths, out):
    at = 0
    for record in range(len(begins)):
        start = at
        out[at] = 0x08
        at = _put_varint(out, at + 1, begins[record])
        out[at] = 0x10
        at = _put_varint(out, at + 1, sizes[record])
        out[at] = 0x18
        out[at + 1] = 1
        at += 2
        lengths[record] = at - start
    return at
