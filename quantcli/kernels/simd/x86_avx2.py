"""AVX2 without VNNI: the 4-way int8 dot by vpmaddubsw and vpmaddwd."""

from __future__ import annotations

from llvmlite import ir

from quantcli.kernels.simd import emit
from quantcli.kernels.simd.vectors import I8, I16, I32

TILE_TOKENS = 4  # a value takes two of 16 registers
FLOAT_LANES = 8  # rows of a float tile whose sums are kept in registers
SIGNED_OFFSET = 0
PAIR_LIMIT = 32767  # up to which sums of products may be kept in 16 bits, see `pairs`

fma = emit.fused_multiply_add
f16_to_f32 = emit.native_f16_to_f32
f32_to_f16 = emit.native_f32_to_f16
pause = emit.pause_x86

_I8X32 = ir.VectorType(I8, 32)
_I16X16 = ir.VectorType(I16, 16)
_I32X8 = ir.VectorType(I32, 8)


def _madd(b, acc, unsigned, signed):
    """Add 4-way dots of 32 bytes to i32 (8). Pairs must fit i16: |u * s| summed below 32768."""
    pairs = emit.call(b, "llvm.x86.avx2.pmadd.ub.sw", _I16X16, unsigned, signed)
    ones = emit.constant(_I16X16, 1)
    return b.add(acc, emit.call(b, "llvm.x86.avx2.pmadd.wd", _I32X8, pairs, ones))


def dot_unsigned(b, acc, codes, x):
    """Add the 4-way dots of codes below 64 and i8 x, each (64), to i32 (16)."""
    halves = [
        _madd(b, emit.part(b, acc, h, 8), emit.part(b, codes, h, 32), emit.part(b, x, h, 32))
        for h in (0, 1)
    ]
    return emit.join(b, halves)


def pairs(b, codes, x):
    """Return dots of pairs of codes below 64 and i8 x, each (64), as i16 (32)."""
    name = "llvm.x86.avx2.pmadd.ub.sw"
    halves = [
        emit.call(b, name, _I16X16, emit.part(b, codes, h, 32), emit.part(b, x, h, 32))
        for h in (0, 1)
    ]
    return emit.join(b, halves)


def add_pairs(b, acc, sums):
    """Add sums of pairs next to each other, i16 (32), to i32 (16)."""
    ones = emit.constant(_I16X16, 1)
    name = "llvm.x86.avx2.pmadd.wd"
    halves = [emit.call(b, name, _I32X8, emit.part(b, sums, h, 16), ones) for h in (0, 1)]
    return b.add(acc, emit.join(b, halves))


def dot_signed(b, acc, codes, x):
    """Add the 4-way dots of i8 codes and i8 x within +-127 to i32 (16).

    |code| * (x with the code's sign): 128 * 127 * 2 = 32512 still fits the i16 pairs, while
    plain unsigned codes up to 255 would saturate them.
    """
    halves = []
    for h in (0, 1):
        c, v = emit.part(b, codes, h, 32), emit.part(b, x, h, 32)
        zero = emit.constant(_I8X32, 0)
        magnitude = b.select(b.icmp_signed("<", c, zero), b.sub(zero, c), c)
        turned = emit.call(b, "llvm.x86.avx2.psign.b", _I8X32, v, c)
        halves.append(_madd(b, emit.part(b, acc, h, 8), magnitude, turned))
    return emit.join(b, halves)


def look_up(b, table, codes):
    """Return, for i8 codes below 16 (64), the bytes of a table."""
    return emit.look_up_parts(b, "llvm.x86.avx2.pshuf.b", 32, table, codes)
