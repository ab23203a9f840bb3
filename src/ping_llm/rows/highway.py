"""HighwayHash-64 with the key of Riegeli files, which is what ArrayRecord shards are.

Alakuijala, Cox, Wassenberg: "Fast keyed hash/pseudo-random function using SIMD multiply and permute", 2016.
It is made for vectors of four words, which Numba does not form by itself: plain arithmetic does 1.2 GB/s.
So the loop is written in terms of LLVM, which has vectors for every processor: 11 GB/s.
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
_ZIPPER = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)  # of sixteen bytes
_LOW = uint64(0xFFFFFFFF)


def _initial_state() -> np.ndarray:
    """v0, v1, mul0 and mul1, four words each."""
    swapped = [(key >> 32) | (key & 0xFFFFFFFF) << 32 for key in _KEY]
    v0 = [mul ^ key for mul, key in zip(_MUL0, _KEY, strict=True)]
    v1 = [mul ^ key for mul, key in zip(_MUL1, swapped, strict=True)]
    return np.array([*v0, *v1, *_MUL0, *_MUL1], np.uint64)


_INITIAL = _initial_state()


@intrinsic
def _absorb(context, state, data, begin, packets):
    """Take `packets` times 32 bytes of data, from `begin` on, into the state."""

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

    def product(one, other):  # of the lower half of one and the upper half of the other
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
    """Each pair of words with its sixteen bytes in another order."""
    bytes_kind = ir.VectorType(ir.IntType(8), 32)
    order = [*_ZIPPER, *(16 + place for place in _ZIPPER)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 32), order)
    split = builder.bitcast(vector, bytes_kind)
    return builder.bitcast(builder.shuffle_vector(split, split, mask), vector.type)


@kernel
def highway_hash(data, begin, size):
    """The hash of data[begin : begin + size], uint8."""
    state = np.empty(20, np.uint64)  # and a packet of four words
    for word in range(16):
        state[word] = _INITIAL[word]
    packet = state[16:].view(np.uint8)
    _absorb(state, data, begin, size // 32)
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
    """Take in the last 1 to 31 bytes."""
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
    _absorb(state, packet, 0, 1)


@kernel
def _rotated(value, count):
    """Both halves rotated left by 1 to 31."""
    low, high = value & _LOW, value >> uint64(32)
    left, right = uint64(count), uint64(32 - count)
    low = ((low << left) & _LOW) | (low >> right)
    high = ((high << left) & _LOW) | (high >> right)
    return low | high << uint64(32)
