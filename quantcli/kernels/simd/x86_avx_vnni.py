"""AVX-VNNI: the 4-way int8 dot in 256 bits, for laptops without AVX-512."""

from __future__ import annotations

from llvmlite import ir

from quantcli.kernels.simd import emit
from quantcli.kernels.simd.vectors import I32, I32X16

TILE_TOKENS = 4  # a value takes two of 16 registers
FLOAT_LANES = 8  # rows of a float tile whose sums are kept in registers
SIGNED_OFFSET = 128
PAIR_LIMIT = 0  # a dot adds to 32 bits at once

fma = emit.fused_multiply_add
f16_to_f32 = emit.native_f16_to_f32
f32_to_f16 = emit.native_f32_to_f16
pause = emit.pause_x86

_I32X8 = ir.VectorType(I32, 8)


def dot_unsigned(b, acc, codes, x):
    """Add the 4-way dots of u8 codes and i8 x, each (64), to i32 (16)."""
    codes, x = b.bitcast(codes, I32X16), b.bitcast(x, I32X16)
    halves = [
        emit.call(
            b,
            "llvm.x86.avx512.vpdpbusd.256",
            _I32X8,
            *(emit.part(b, v, half, 8) for v in (acc, codes, x)),
        )
        for half in (0, 1)
    ]
    return emit.join(b, halves)


dot_signed = dot_unsigned


def look_up(b, table, codes):
    """Return, for i8 codes below 16 (64), the bytes of a table."""
    return emit.look_up_parts(b, "llvm.x86.avx2.pshuf.b", 32, table, codes)
