"""Plain LLVM IR for any CPU: no FMA, no half-precision instructions, no dot product."""

from __future__ import annotations

from llvmlite import ir

from quantcli.kernels.simd import emit
from quantcli.kernels.simd.vectors import F32X16, I16X16, I16X32, I32X16

TILE_TOKENS = 2
FLOAT_LANES = 16
SIGNED_OFFSET = 0
PAIR_LIMIT = 0  # a dot adds to 32 bits at once


def fma(b, x, y, z):
    """Return x * y + z, rounded twice: without the instruction, a fused one is a library call."""
    return b.fadd(b.fmul(x, y), z)


def dot_signed(b, acc, codes, x):
    """Add the 4-way dots of i8 codes and i8 x within +-127 to i32 (16).

    Products of even and of odd bytes fit i16, and so does their sum: 2 * 128 * 127 < 2**15.
    """
    codes, x = b.bitcast(codes, I16X32), b.bitcast(x, I16X32)
    eight = emit.constant(I16X32, 8)
    even = b.mul(b.ashr(b.shl(codes, eight), eight), b.ashr(b.shl(x, eight), eight))
    odd = b.mul(b.ashr(codes, eight), b.ashr(x, eight))
    pairs = b.bitcast(b.add(even, odd), I32X16)
    sixteen = emit.constant(I32X16, 16)
    low = b.ashr(b.shl(pairs, sixteen), sixteen)
    return b.add(acc, b.add(low, b.ashr(pairs, sixteen)))


dot_unsigned = dot_signed  # unsigned codes are below 64, so they are the same bytes


def look_up(b, table, codes):
    """Return, for i8 codes below 16 (64), the table's bytes: halves of it chosen bit by bit."""
    values = [emit.constant(codes.type, entry & 255) for entry in table]
    for bit in range(4):
        mask = b.and_(codes, emit.constant(codes.type, 1 << bit))
        is_set = b.icmp_unsigned("!=", mask, emit.constant(codes.type, 0))
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [b.select(is_set, high, low) for low, high in pairs]
    return values[0]


def f16_to_f32(b, bits):
    """Convert half-precision bits, i16 (16), to f32 (16) with integer operations.

    Moving the 15 low bits to f32's exponent and fraction leaves the value times 2**-112, exact
    for subnormals too; infinities and NaNs get their exponent set by hand.
    """
    wide = b.zext(bits, I32X16)
    magnitude = b.shl(b.and_(wide, emit.constant(I32X16, 0x7FFF)), emit.constant(I32X16, 13))
    scaled = b.fmul(b.bitcast(magnitude, F32X16), emit.constant(F32X16, 2.0**112))
    special = b.icmp_unsigned(">=", magnitude, emit.constant(I32X16, 0x7C00 << 13))
    infinite = b.or_(magnitude, emit.constant(I32X16, 0x7F800000))
    value = b.select(special, infinite, b.bitcast(scaled, I32X16))
    sign = b.shl(b.and_(wide, emit.constant(I32X16, 0x8000)), emit.constant(I32X16, 16))
    return b.bitcast(b.or_(value, sign), F32X16)


def f32_to_f16(b, x):
    """Convert f32 (16) to half-precision bits, i16 (16), rounding half to even."""
    raw = b.bitcast(x, I32X16)

    def k(value):
        return emit.constant(I32X16, value)

    sign = b.and_(b.lshr(raw, k(16)), k(0x8000))
    magnitude = b.and_(raw, k(0x7FFFFFFF))
    # Normal halves: rebias the exponent by 112, round half to even on the 13 bits cut off.
    odd = b.and_(b.lshr(magnitude, k(13)), k(1))
    rebiased = b.sub(b.add(magnitude, b.add(odd, k(0xFFF))), k(112 << 23))
    normal = b.lshr(rebiased, k(13))
    # Subnormal halves: adding 0.5 makes the float adder shift and round them into its low bits.
    shifted = b.fadd(b.bitcast(magnitude, F32X16), emit.constant(F32X16, 0.5))
    subnormal = b.sub(b.bitcast(shifted, I32X16), k(0x3F000000))
    value = b.select(b.icmp_unsigned("<", magnitude, k(113 << 23)), subnormal, normal)
    value = b.select(b.icmp_unsigned(">=", magnitude, k(0x477FF000)), k(0x7C00), value)
    value = b.select(b.icmp_unsigned(">", magnitude, k(0x7F800000)), k(0x7E00), value)
    return b.trunc(b.or_(value, sign), I16X16)


def pause(b):
    """Keep the compiler from folding a spin loop; there is no portable pause."""
    b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)
