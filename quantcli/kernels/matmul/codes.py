"""How codes lie in a panel step, 32 inputs by 16 rows: emitted readers and scalar twins.

A quad is four consecutive inputs of one row; lane r of a quad vector is row r, so byte 4r + i is
input i of the quad. A step has quads 0 .. 7.

    bytes    8 x 64 bytes   quad j at 64 j
    nibbles  4 x 64 bytes   quad j in the low half, quad j + 4 in the high half of vector j
    crumbs   2 x 64 bytes   quads 4v .. 4v + 3 in bit pairs of vector v
    bits     1 x 64 bytes   quad j in bit j
"""

from __future__ import annotations

from quantcli.kernels.jit import inline
from quantcli.kernels.simd import emit, load_u8, machine, store_u8
from quantcli.kernels.simd.vectors import I8X16, I8X64, I16X16, I16X32

BYTES_NBYTES = 512
NIBBLES_NBYTES = 256
CRUMBS_NBYTES = 128
BITS_NBYTES = 64


def _shift(b, vector, left):
    """Shift bytes by shifting 16-bit lanes; the caller masks what crosses over."""
    if left == 0:
        return vector
    wide = b.bitcast(vector, I16X32)
    amount = emit.constant(I16X32, abs(left))
    shifted = b.shl(wide, amount) if left > 0 else b.lshr(wide, amount)
    return b.bitcast(shifted, I8X64)


def _mask(b, vector, mask):
    return b.and_(vector, emit.constant(I8X64, mask))


def nibble_quad(b, address, j):
    """Return quad j of nibbles, u8 below 16."""
    vector = emit.load(b, I8X64, address, 64 * (j % 4))
    return _mask(b, _shift(b, vector, 0 if j < 4 else -4), 15)


def byte_quad(b, address, j):
    """Return quad j of bytes."""
    return emit.load(b, I8X64, address, 64 * j)


def crumb_quad(b, address, j, to_bit=0):
    """Return quad j of bit pairs, moved up to bits to_bit and to_bit + 1."""
    vector = emit.load(b, I8X64, address, 64 * (j // 4))
    return _mask(b, _shift(b, vector, to_bit - 2 * (j % 4)), 3 << to_bit)


def bit_quad(b, address, j, to_bit):
    """Return quad j of single bits, moved up to bit to_bit."""
    vector = emit.load(b, I8X64, address)
    return _mask(b, _shift(b, vector, to_bit - j), 1 << to_bit)


def five_bit_quad(b, nibbles, bits, j):
    """Return quad j of 5-bit codes: nibbles at one address, their high bits at another."""
    return b.or_(nibble_quad(b, nibbles, j), bit_quad(b, bits, j, to_bit=4))


@inline
def put_nibble(base, row, k, code):
    """Set input k of a row; the step must be zero there."""
    quad = k // 4
    at = base + 64 * (quad % 4) + 4 * row + k % 4
    store_u8(at, load_u8(at) | (code << (4 * (quad // 4))))


@inline
def get_nibble(base, row, k):
    """Return input k of a row."""
    quad = k // 4
    byte = load_u8(base + 64 * (quad % 4) + 4 * row + k % 4)
    return (byte >> (4 * (quad // 4))) & 15


@inline
def put_byte(base, row, k, code):
    """Set input k of a row."""
    store_u8(base + 64 * (k // 4) + 4 * row + k % 4, code)


@inline
def get_byte(base, row, k):
    """Return input k of a row."""
    return load_u8(base + 64 * (k // 4) + 4 * row + k % 4)


@inline
def put_crumb(base, row, k, code):
    """Set input k of a row; the step must be zero there."""
    quad = k // 4
    at = base + 64 * (quad // 4) + 4 * row + k % 4
    store_u8(at, load_u8(at) | (code << (2 * (quad % 4))))


@inline
def get_crumb(base, row, k):
    """Return input k of a row."""
    quad = k // 4
    return (load_u8(base + 64 * (quad // 4) + 4 * row + k % 4) >> (2 * (quad % 4))) & 3


@inline
def put_bit(base, row, k, code):
    """Set input k of a row; the step must be zero there."""
    at = base + 4 * row + k % 4
    store_u8(at, load_u8(at) | (code << (k // 4)))


@inline
def get_bit(base, row, k):
    """Return input k of a row."""
    return (load_u8(base + 4 * row + k % 4) >> (k // 4)) & 1


def f16_rows(b, address, offset=0):
    """Return one f16 for each of 16 rows, as f32x16."""
    return machine.f16_to_f32(b, emit.load(b, I16X16, address, offset))


def u8_rows(b, address, offset=0):
    """Return one u8 for each of 16 rows, as f32x16."""
    return emit.u8_to_f32(b, emit.load(b, I8X16, address, offset))


def i8_rows(b, address, offset=0):
    """Return one i8 for each of 16 rows, as f32x16."""
    return emit.i8_to_f32(b, emit.load(b, I8X16, address, offset))
