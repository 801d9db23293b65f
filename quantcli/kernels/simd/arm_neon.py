"""Arm NEON with the dot-product extension: sdot on four quarters."""

from __future__ import annotations

from llvmlite import ir

from quantcli.kernels.simd import emit
from quantcli.kernels.simd.vectors import I32, VOID

TILE_TOKENS = 4  # a value takes four of 32 registers
FLOAT_LANES = 16
SIGNED_OFFSET = 0
PAIR_LIMIT = 0  # a dot adds to 32 bits at once

fma = emit.fused_multiply_add
f16_to_f32 = emit.native_f16_to_f32
f32_to_f16 = emit.native_f32_to_f16

_I32X4 = ir.VectorType(I32, 4)


def dot_signed(b, acc, codes, x):
    """Add the 4-way dots of i8 codes and i8 x, each (64), to i32 (16)."""
    quarters = [
        emit.call(
            b,
            "llvm.aarch64.neon.sdot.v4i32.v16i8",
            _I32X4,
            emit.part(b, acc, i, 4),
            emit.part(b, codes, i, 16),
            emit.part(b, x, i, 16),
        )
        for i in range(4)
    ]
    return emit.join(b, quarters)


dot_unsigned = dot_signed  # unsigned codes are below 64, so they are the same bytes


def look_up(b, table, codes):
    """Return, for i8 codes below 16 (64), the bytes of a table."""
    return emit.look_up_parts(b, "llvm.aarch64.neon.tbl1.v16i8", 16, table, codes)


def pause(b):
    """Tell the core that it spins: isb stalls about as long as x86's pause; yield is a no-op."""
    emit.call(b, "llvm.aarch64.isb", VOID, I32(15))
