"""Sixteen f64 lanes, for sums over a whole row of logits: too many terms for f32."""

from __future__ import annotations

from math import factorial, log

from numba.core import types

from quantcli.kernels.simd import define, emit
from quantcli.kernels.simd.vectors import F64X16, I64X16, f32x16, f64x16

EXP_MIN = -700.0  # below this exp is taken as 0: nothing subnormal comes out
# n * LN2_HIGH is exact for |n| < 2**11, since its last bits are zero.
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
MAGIC = 6755399441055744.0  # 1.5 * 2**52: adding it rounds, and leaves the integer in the low bits
DEGREE = 11  # of the Taylor series; the next term is below 7e-15 for |r| <= ln(2) / 2


def _constant(value):
    return emit.constant(F64X16, value)


def _multiply_add(b, x, y, z):
    """Return x * y + z, rounded once where the CPU has an instruction for it, else twice."""
    return emit.call(b, "llvm.fmuladd.v16f64", F64X16, x, y, z)


def _exp(b, x):
    """Return e**x for x <= 700 to about 1e-14; exactly 1 at 0, exactly 0 below EXP_MIN, NaN kept.

    x = n ln 2 + r, |r| <= ln(2) / 2, e**x = 2**n e**r.
    """
    least = _constant(EXP_MIN)
    is_small = b.fcmp_ordered("<", x, least)
    bounded = b.select(is_small, least, x)
    shifted = _multiply_add(b, bounded, _constant(1 / log(2)), _constant(MAGIC))
    n = b.fsub(shifted, _constant(MAGIC))
    r = _multiply_add(b, n, _constant(-LN2_HIGH), bounded)
    r = _multiply_add(b, n, _constant(-LN2_LOW), r)
    value = _constant(1 / factorial(DEGREE))
    for k in reversed(range(DEGREE)):
        value = _multiply_add(b, value, r, _constant(1 / factorial(k)))
    bits = b.shl(b.bitcast(shifted, I64X16), emit.constant(I64X16, 52))
    power = b.bitcast(b.add(bits, emit.constant(I64X16, 1023 << 52)), F64X16)
    return b.select(is_small, _constant(0.0), b.fmul(value, power))


def _weighted(b, weight, x):
    """Return weight * x, and 0 where the weight is 0 whatever x is."""
    is_zero = b.fcmp_ordered("==", weight, _constant(0.0))
    return b.select(is_zero, _constant(0.0), b.fmul(weight, x))


dsplat = define(f64x16, (types.float64,), emit.splat)
widen = define(f64x16, (f32x16,), lambda b, x: b.fpext(x, F64X16))
dadd = define(f64x16, (f64x16, f64x16), lambda b, x, y: b.fadd(x, y))
dsub = define(f64x16, (f64x16, f64x16), lambda b, x, y: b.fsub(x, y))
dmul = define(f64x16, (f64x16, f64x16), lambda b, x, y: b.fmul(x, y))
dexp = define(f64x16, (f64x16,), _exp)
weighted = define(f64x16, (f64x16, f64x16), _weighted)
dsum = define(types.float64, (f64x16,), lambda b, x: emit.tree(b, x, b.fadd))
