"""LLVM IR that is the same for every instruction set: memory, lanes, arithmetic without FMA.

Every function takes the IR builder first and returns an IR value. Addresses are i64.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from quantcli.kernels.simd.vectors import (
    F16X16,
    F32X16,
    I8,
    I8X16,
    I16X16,
    I32,
    I32X16,
    I64,
    VOID,
)


def call(b, name, result, *args):
    """Call an LLVM intrinsic or external function by name."""
    signature = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, signature, name), args)


def constant(kind, value):
    """Return a constant; a vector type gets `value` in every lane."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


def at(b, address, offset):
    """Return address + offset, where offset is a Python int or an i64."""
    if isinstance(offset, int):
        if offset == 0:
            return address
        offset = I64(offset)
    return b.add(address, offset)


def load(b, kind, address, offset=0, align=1):
    """Load a value of a type."""
    return b.load(b.inttoptr(at(b, address, offset), kind.as_pointer()), align=align)


def store(b, value, address, offset=0, align=1):
    """Store a value."""
    b.store(value, b.inttoptr(at(b, address, offset), value.type.as_pointer()), align=align)


def splat(b, scalar, n=16):
    """Return a vector with a scalar in each of n lanes."""
    kind = ir.VectorType(scalar.type, n)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
    return b.shuffle_vector(
        first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, n), [0] * n)
    )


def splat_load(b, kind, address, offset=0):
    """Load one element and return it in all 16 lanes."""
    return splat(b, load(b, kind, address, offset))


def part(b, vector, index, n):
    """Return lanes [index * n, index * n + n)."""
    lanes = list(range(index * n, index * n + n))
    return b.shuffle_vector(
        vector,
        ir.Constant(vector.type, ir.Undefined),
        ir.Constant(ir.VectorType(I32, n), lanes),
    )


def join(b, parts):
    """Concatenate vectors of one type; their number is a power of two."""
    while len(parts) > 1:
        n = 2 * parts[0].type.count
        lanes = ir.Constant(ir.VectorType(I32, n), list(range(n)))
        parts = [b.shuffle_vector(parts[i], parts[i + 1], lanes) for i in range(0, len(parts), 2)]
    return parts[0]


def shuffle(b, x, y, lanes):
    """Choose lanes from the concatenation of x and y."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def look_up_parts(b, name, n, table, codes):
    """Look codes up, n at a time, by an instruction that takes a table and n indices."""
    kind = ir.VectorType(I8, n)
    entries = ir.Constant(kind, [value & 255 for value in table] * (n // 16))
    parts = [
        call(b, name, kind, entries, part(b, codes, i, n)) for i in range(codes.type.count // n)
    ]
    return join(b, parts)


def maximum(b, x, y):
    """Return the larger of each lane; y where x is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def minimum(b, x, y):
    """Return the smaller of each lane; y where x is NaN."""
    return b.select(b.fcmp_ordered("<", x, y), x, y)


def absolute(b, x):
    """Clear the sign bit."""
    bits = b.bitcast(x, I32X16)
    return b.bitcast(b.and_(bits, constant(I32X16, 0x7FFFFFFF)), F32X16)


def tree(b, vector, combine):
    """Reduce a vector to a scalar by halves: 16, 8, 4, 2, 1. The order is part of the result."""
    n = vector.type.count
    while n > 1:
        n //= 2
        vector = combine(part(b, vector, 0, n), part(b, vector, 1, n))
    return b.extract_element(vector, I32(0))


def round_to_i32(b, x):
    """Round f32 lanes, |x| < 2**22, half to even: adding 1.5 * 2**23 leaves the integer in the
    low bits, and needs no rounding instruction."""
    magic = 12582912.0
    shifted = b.fadd(x, constant(F32X16, magic))
    return b.sub(b.bitcast(shifted, I32X16), constant(I32X16, 0x4B400000))


def u8_to_f32(b, codes):
    """Convert u8 (16) to f32 (16)."""
    return b.sitofp(b.zext(codes, I32X16), F32X16)


def i8_to_f32(b, codes):
    """Convert i8 (16) to f32 (16)."""
    return b.sitofp(b.sext(codes, I32X16), F32X16)


def bf16_to_f32(b, bits):
    """Convert bfloat16 bits, i16 (16), to f32 (16)."""
    return b.bitcast(b.shl(b.zext(bits, I32X16), constant(I32X16, 16)), F32X16)


def native_f16_to_f32(b, bits):
    """Convert half-precision bits, i16 (16), by the CPU's own instruction."""
    return b.fpext(b.bitcast(bits, F16X16), F32X16)


def native_f32_to_f16(b, x):
    """Convert f32 (16) to half-precision bits, i16 (16), rounding half to even."""
    return b.bitcast(b.fptrunc(x, F16X16), I16X16)


def fused_multiply_add(b, x, y, z):
    """Return x * y + z, rounded once; f32 vectors of one length."""
    return call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)


def narrow_to_i8(b, x):
    """Truncate i32 (16) to i8 (16)."""
    return b.trunc(x, I8X16)


def pause_x86(b):
    """Tell an x86 core that it spins."""
    call(b, "llvm.x86.sse2.pause", VOID)
