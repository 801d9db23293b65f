"""AVX-512 with VNNI: one 512-bit instruction for sixteen 4-way int8 dots."""

from __future__ import annotations

from quantcli.kernels.simd import emit
from quantcli.kernels.simd.vectors import I32X16

TILE_TOKENS = 8  # 8 integer and 8 float accumulators leave room in 32 registers
FLOAT_LANES = 16
SIGNED_OFFSET = 128  # vpdpbusd takes unsigned weights: signed codes are stored plus 128
PAIR_LIMIT = 0  # a dot adds to 32 bits at once

fma = emit.fused_multiply_add
f16_to_f32 = emit.native_f16_to_f32
f32_to_f16 = emit.native_f32_to_f16
pause = emit.pause_x86


def dot_unsigned(b, acc, codes, x):
    """Add the 4-way dots of u8 codes and i8 x, each (64), to i32 (16)."""
    codes, x = b.bitcast(codes, I32X16), b.bitcast(x, I32X16)
    return emit.call(b, "llvm.x86.avx512.vpdpbusd.512", I32X16, acc, codes, x)


dot_signed = dot_unsigned  # the packing added SIGNED_OFFSET; the kernel takes it off again


def look_up(b, table, codes):
    """Return, for i8 codes below 16 (64), the bytes of a table."""
    return emit.look_up_parts(b, "llvm.x86.avx512.pshuf.b.512", 64, table, codes)
