"""The container of a shard: ArrayRecord with `group_size:1,uncompressed`, written and read by kernels.

ArrayRecord's own library handles one record per call and holds the GIL: 9 µs to write a row, 11 to 15 µs to
read one, more than all other work on a row. The kernels here take 1 to 2 µs and run in any number of threads.
They write the same bytes as the library (which is the reference in the tests, and writes the shards of the
reference engine), so every tool that reads ArrayRecord can read these shards.

A file is a sequence of Riegeli chunks (google/riegeli, doc/riegeli_records_file_format.md): a signature, one
chunk per record, a footer with the position of each, padding to the next block, and a postscript in a
separate block with the position of the footer. Blocks have 64 KiB and begin with a header of 24 bytes, which
may interrupt a chunk anywhere. The length of a record follows from its number of measurements, and so do all
positions.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy import uint64

from ping_llm.compiled import kernel

_KEY = (0x2F696C6567656952, 0x0A7364726F636572, 0x2F696C6567656952, 0x0A7364726F636572)
_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_ZIPPER = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)  # permutation of 16 bytes
_LOW = uint64(0xFFFFFFFF)


def _initial_state() -> np.ndarray:
    """The initial state of HighwayHash: v0, v1, mul0 and mul1, four words each."""
    swapped = [(key >> 32) | (key & 0xFFFFFFFF) << 32 for key in _KEY]
    v0 = [mul ^ key for mul, key in zip(_MUL0, _KEY, strict=True)]
    v1 = [mul ^ key for mul, key in zip(_MUL1, swapped, strict=True)]
    return np.array([*v0, *v1, *_MUL0, *_MUL1], np.uint64)


_INITIAL = _initial_state()


@intrinsic
def _absorb(context, state, data, begin, packets):
    """Update the state with `packets` packets of 32 bytes of data, starting at `begin`."""

    def generate(target, builder, signature, arguments):
        word, four = ir.IntType(64), ir.VectorType(ir.IntType(64), 4)
        states = _pointer(target, builder, signature, arguments, 0, four)
        places = [builder.gep(states, [word(i)]) for i in range(4)]
        v0, v1, m0, m1 = (cgutils.alloca_once(builder, four) for _ in range(4))
        for place, held in zip(places, (v0, v1, m0, m1), strict=True):
            builder.store(builder.load(place, align=8), held)
        first = _pointer(target, builder, signature, arguments, 1, ir.IntType(8))
        first = builder.bitcast(builder.gep(first, [arguments[2]]), four.as_pointer())
        with cgutils.for_range(builder, arguments[3]) as loop:
            packet = builder.load(builder.gep(first, [loop.index]), align=1)
            _update(builder, v0, v1, m0, m1, packet)
        for place, held in zip(places, (v0, v1, m0, m1), strict=True):
            builder.store(builder.load(held), place, align=8)
        return target.get_dummy_value()

    return types.void(state, data, types.int64, types.int64), generate


def _pointer(target, builder, signature, arguments, number, kind):
    array = target.make_array(signature.args[number])(target, builder, arguments[number])
    return builder.bitcast(array.data, kind.as_pointer())


def _update(builder, v0, v1, m0, m1, packet):
    four = packet.type
    half = ir.Constant(four, [32] * 4)
    low = ir.Constant(four, [0xFFFFFFFF] * 4)

    def product(one, other):  # product of the lower half of `one` and the upper half of `other`
        return builder.mul(builder.and_(one, low), builder.lshr(other, half))

    a0, a1, b0, b1 = builder.load(v0), builder.load(v1), builder.load(m0), builder.load(m1)
    a1 = builder.add(a1, builder.add(b0, packet))
    b0 = builder.xor(b0, product(a1, a0))
    a0 = builder.add(a0, b1)
    b1 = builder.xor(b1, product(a0, a1))
    a0 = builder.add(a0, _zipped(builder, a1))
    a1 = builder.add(a1, _zipped(builder, a0))
    for value, held in ((a0, v0), (a1, v1), (b0, m0), (b1, m1)):
        builder.store(value, held)


def _zipped(builder, vector):
    """Permute the 16 bytes of each pair of words."""
    bytes_kind = ir.VectorType(ir.IntType(8), 32)
    order = [*_ZIPPER, *(16 + place for place in _ZIPPER)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 32), order)
    split = builder.bitcast(vector, bytes_kind)
    return builder.bitcast(builder.shuffle_vector(split, split, mask), vector.type)


@kernel
def highway_hash(data, begin, size):
    """The HighwayHash of data[begin : begin + size], uint8."""
    state = np.empty(20, np.uint64)  # 16 words of state and a packet of four words
    for word in range(16):
        state[word] = _INITIAL[word]
    packet = state[16:].view(np.uint8)
    _absorb(state, data, begin, size // 32)  # type: ignore[call-arg]  # its signature includes the context
    if size % 32:
        _last(state, packet, data, begin + size - size % 32, size % 32)
    for _ in range(4):
        for word in range(4):
            value = state[word ^ 2]
            state[16 + word] = value >> uint64(32) | value << uint64(32)
        _absorb(state, packet, 0, 1)
    return state[0] + state[4] + state[8] + state[12]


@kernel
def _last(state, packet, data, begin, size):
    """Update the state with the last 1 to 31 bytes."""
    for i in range(32):
        packet[i] = 0
    whole, rest = size & ~3, size & 3
    for i in range(whole):
        packet[i] = data[begin + i]
    if size & 16:
        for i in range(4):
            packet[28 + i] = data[begin + whole + i + rest - 4]
    elif rest:
        packet[16] = data[begin + whole]
        packet[17] = data[begin + whole + (rest >> 1)]
        packet[18] = data[begin + whole + rest - 1]
    for word in range(4):
        state[word] += (uint64(size) << uint64(32)) + uint64(size)
        state[4 + word] = _rotated(state[4 + word], size)
    _absorb(state, packet, 0, 1)  # type: ignore[call-arg]


@kernel
def _rotated(value, count):
    """Rotate both halves of a word left by 1 to 31 bits."""
    low, high = value & _LOW, value >> uint64(32)
    left, right = uint64(count), uint64(32 - count)
    low = ((low << left) & _LOW) | (low >> right)
    high = ((high << left) & _LOW) | (high >> right)
    return low | high << uint64(32)


BLOCK = 1 << 16
BLOCK_HEADER = 24
CHUNK_HEADER = 40
SIGNATURE_END = BLOCK_HEADER + CHUNK_HEADER
_USABLE = BLOCK - BLOCK_HEADER

_SIGNATURE_KIND, _RECORDS_KIND, _PADDING_KIND = ord("s"), ord("r"), ord("p")
_MAGIC = 0x71930E704FDAE05E  # magic number of ArrayRecord
_VERSION = 1
_OPTIONS = b"group_size:1,transpose:false,pad_to_block_boundary:false,uncompressed,max_parallelism:1"

#: Offset at which `read_chunk` stores a record: after the header and at most 16 more bytes, word-aligned.
RECORD_AT = CHUNK_HEADER + 16

OK, TOO_SHORT, BAD_CHUNK, BAD_HASH = range(4)

#: The C function pread, called without the GIL; it is resolved at link time, so kernels can be cached.
_pread = types.ExternalFunction("pread", types.ssize_t(types.int32, types.voidptr, types.size_t, types.int64))


@intrinsic
def _copy(context, source, begin, out, at, count):
    """Copy bytes source[begin : begin + count] to out[at : at + count] by memcpy; slices take 0.5 µs more."""

    def generate(target, builder, signature, arguments):
        source, begin, out, at, count = arguments
        source = target.make_array(signature.args[0])(target, builder, source).data
        out = target.make_array(signature.args[2])(target, builder, out).data
        cgutils.raw_memcpy(builder, builder.gep(out, [at]), builder.gep(source, [begin]), count, 1)
        return target.get_dummy_value()

    return types.void(source, types.int64, out, types.int64, types.int64), generate


@kernel
def chunk_end(begin, size):
    """The position where a chunk with `size` bytes of data ends, including block headers in between."""
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
    """Bytes of data in a chunk with one record of `record` bytes."""
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
      chunk: Scratch memory with the data at [CHUNK_HEADER : CHUNK_HEADER + size]; its header is filled in.

    Returns:
      The position at which the chunk ends.
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
        _copy(chunk, done, out, position - base, count)  # type: ignore[call-arg]
        position += count
        done += count
    return end


@kernel
def frame(records, ends, base, begin, out, chunk, begins):
    """Write one chunk per record; record i is records[ends[i] : ends[i + 1]].

    Args:
      base, begin: Positions of out[0] and of the first chunk.
      chunk: Scratch memory.
      begins: Filled with the positions of the chunks.

    Returns:
      The position at which the last chunk ends.
    """
    for record in range(len(ends) - 1):
        begins[record] = begin
        size = ends[record + 1] - ends[record]
        chunk[CHUNK_HEADER] = 0  # not compressed
        chunk[CHUNK_HEADER + 1] = varint_size(size)
        at = _put_varint(chunk, CHUNK_HEADER + 2, size)
        _copy(records, ends[record], chunk, at, size)  # type: ignore[call-arg]
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
      raw, chunk: Scratch memory of chunk_end - begin and RECORD_AT + record bytes.

    Returns:
      OK or a fault. Everything that holds data is checked; block headers are skipped.
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
        _copy(raw, position - begin, chunk, done, count)  # type: ignore[call-arg]
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
    """The bytes after the records of a file: footer, padding, postscript, padding.

    Args:
      begin: Position at which the last record's chunk ends.
      begins: Positions at which the chunks begin.
      sizes: Bytes of each record.
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
    """Consecutive chunks, from a position on."""

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
        """Pad to the end of the block; if a chunk header does not fit, to the end of the next block."""
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
    """The lengths and the bytes of the footer's entries, one entry per record."""
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
