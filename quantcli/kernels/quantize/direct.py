"""Rounding to nearest, as llama.cpp's encoders do it for formats whose blocks need no search.

One block at a time, straight to the file's bytes: the weights of a block lie next to each other,
and so do their codes.
"""

from __future__ import annotations

import math

from numba.core import types
from numpy import float32 as f32
from numpy import float64 as f64

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.quantize.lanes import F16_MAX, LINE
from quantcli.kernels.simd import (
    absolute,
    define,
    emit,
    hmax,
    load_f32,
    load_f32x16,
    maximum,
    minimum,
    splat,
    store_f16,
    store_f16x16,
    store_u8,
)
from quantcli.kernels.simd.vectors import F32X16, I8X16, I16, I16X16, I32X16, f32x16

_WEIGHTS = 32


def _truncated(b, x, largest):
    """Cut f32 lanes to whole i32 in [0, largest]."""
    bounded = emit.minimum(b, emit.maximum(b, x, emit.constant(F32X16, 0.0)), largest)
    return b.fptosi(bounded, I32X16)


def _store_nibbles(b, address, low, high):
    low, high = (_truncated(b, v, emit.constant(F32X16, 15.0)) for v in (low, high))
    both = b.or_(low, b.shl(high, emit.constant(I32X16, 4)))
    emit.store(b, b.trunc(both, I8X16), address)


def _store_fives(b, address, high_bits, low, high):
    low, high = (_truncated(b, v, emit.constant(F32X16, 31.0)) for v in (low, high))
    sixteen = emit.constant(I32X16, 16)
    for offset, codes in ((0, low), (2, high)):
        above = b.icmp_signed(">=", codes, sixteen)
        emit.store(b, b.bitcast(above, I16), high_bits, offset)
    fifteen = emit.constant(I32X16, 15)
    both = b.or_(b.and_(low, fifteen), b.shl(b.and_(high, fifteen), emit.constant(I32X16, 4)))
    emit.store(b, b.trunc(both, I8X16), address)


def _half_away(b, x):
    """Round |x| < 2**31 to i32, halves away from zero: the rest after the cut is exact."""
    whole = b.fptosi(x, I32X16)
    rest = b.fsub(x, b.sitofp(whole, F32X16))
    return b.add(whole, b.fptosi(b.fadd(rest, rest), I32X16))


def _store_i8(b, address, x):
    whole = _half_away(b, emit.minimum(b, emit.maximum(b, x, _c(-127.0)), _c(127.0)))
    emit.store(b, b.trunc(whole, I8X16), address)


def _c(value):
    return emit.constant(F32X16, value)


def _bf16(b, address, x):
    """Round to bfloat16, half to even; a NaN stays one and becomes quiet."""
    bits = b.bitcast(x, I32X16)
    top = b.lshr(bits, emit.constant(I32X16, 16))
    odd = b.and_(top, emit.constant(I32X16, 1))
    rounded = b.lshr(
        b.add(bits, b.add(odd, emit.constant(I32X16, 0x7FFF))), emit.constant(I32X16, 16)
    )
    is_nan = b.fcmp_unordered("!=", x, x)
    chosen = b.select(is_nan, b.or_(top, emit.constant(I32X16, 0x40)), rounded)
    emit.store(b, b.trunc(chosen, I16X16), address)


def _ternary(b, address, offset, inverse):
    """Load 16 weights and return i32 codes 0, 1, 2 of -1, 0, 1; a half goes away from zero."""
    y = b.fmul(emit.load(b, F32X16, address, offset), inverse)
    up, down = b.fcmp_ordered(">=", y, _c(0.5)), b.fcmp_ordered("<=", y, _c(-0.5))
    code = b.add(emit.constant(I32X16, 1), b.zext(up, I32X16))
    return b.sub(code, b.zext(down, I32X16))


def _store_pairs_of_bits(b, address, src, inverse):
    """Store 16 bytes of four codes each; the codes of a byte lie 32 weights apart."""
    packed = _ternary(b, src, 0, inverse)
    for k in range(1, 4):
        code = b.shl(_ternary(b, src, 128 * k, inverse), emit.constant(I32X16, 2 * k))
        packed = b.or_(packed, code)
    emit.store(b, b.trunc(packed, I8X16), address)


def _store_trits(apart):
    """Return an emitter that stores 16 bytes of five codes each, `apart` bytes from each other.

    The byte is 256 / 243 of the codes as one number in base 3, rounded up: multiplying it by 3
    then carries out the first code.
    """

    def emitter(b, address, src, inverse):
        number = emit.constant(I32X16, 0)
        for k in range(5):
            code = _ternary(b, src, apart * k, inverse)
            number = b.add(b.mul(number, emit.constant(I32X16, 3)), code)
        number = b.add(b.mul(number, emit.constant(I32X16, 256)), emit.constant(I32X16, 242))
        emit.store(b, b.trunc(b.udiv(number, emit.constant(I32X16, 243)), I8X16), address)

    return emitter


def _e2m1(b, y):
    """Return i32 codes of floats of four bits, doubled: sign, then magnitude; halfway goes down."""
    magnitude, size = emit.constant(I32X16, 0), emit.absolute(b, y)
    for middle in (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0):
        magnitude = b.add(magnitude, b.zext(b.fcmp_ordered(">", size, _c(middle)), I32X16))
    is_zero = b.icmp_signed("==", magnitude, emit.constant(I32X16, 0))
    is_positive = b.fcmp_unordered(">=", y, _c(0.0))
    sign = b.select(b.or_(is_zero, is_positive), emit.constant(I32X16, 0), emit.constant(I32X16, 8))
    return b.or_(magnitude, sign)


def _store_e2m1(b, address, low, high):
    both = b.or_(_e2m1(b, low), b.shl(_e2m1(b, high), emit.constant(I32X16, 4)))
    emit.store(b, b.trunc(both, I8X16), address)


_I64 = types.int64
hmin = define(
    types.float32,
    (f32x16,),
    lambda b, x: emit.tree(b, x, lambda p, q: emit.minimum(b, p, q)),
)
store_nibbles = define(types.void, (_I64, f32x16, f32x16), _store_nibbles)
store_fives = define(types.void, (_I64, _I64, f32x16, f32x16), _store_fives)
store_half_away_i8 = define(types.void, (_I64, f32x16), _store_i8)
store_pairs_of_bits = define(types.void, (_I64, _I64, f32x16), _store_pairs_of_bits)
store_trits_32 = define(types.void, (_I64, _I64, f32x16), _store_trits(128))
store_trits_16 = define(types.void, (_I64, _I64, f32x16), _store_trits(64))
store_e2m1 = define(types.void, (_I64, f32x16, f32x16), _store_e2m1)
store_bf16x16 = define(types.void, (_I64, f32x16), _bf16)


@inline
def _extreme(low, high, src, n):
    """Return the weight of largest magnitude, the first of equals."""
    top = hmax(maximum(low, high))
    bottom = hmin(minimum(low, high))
    if top == bottom:
        return top + f32(0.0)  # -0 to 0
    if top != -bottom:
        return top if top > -bottom else bottom
    for i in range(n):
        x = load_f32(src + 4 * i)
        if abs(x) == top:
            return x
    return top


@inline
def _bounded(d):
    return min(max(d, -F16_MAX), F16_MAX)


@inline
def _inverse(d):
    """Return 1 / d, and 0 where d is 0 or 1 / d overflows."""
    if d == f32(0.0):
        return f32(0.0)
    inverse = f32(1.0) / d
    return inverse if abs(inverse) <= f32(3.4e38) else f32(0.0)


@inline
def _symmetric(src, half):
    """Return d and the two vectors d * codes come from: x / d + half + 0.5."""
    low, high = load_f32x16(src), load_f32x16(src + LINE)
    d = _bounded(_extreme(low, high, src, _WEIGHTS) / -half)
    inverse, middle = splat(_inverse(d)), splat(half + f32(0.5))
    return d, low * inverse + middle, high * inverse + middle


@inline
def _first_zero(src):
    """Return the first zero of a block, 0 or -0."""
    i = 0
    while load_f32(src + 4 * i) != f32(0.0):
        i += 1
    return load_f32(src + 4 * i)


@inline
def _affine(src, largest):
    """Return d, the minimum and (x - minimum) / d + 0.5 of both vectors."""
    low, high = load_f32x16(src), load_f32x16(src + LINE)
    bottom = hmin(minimum(low, high))
    if bottom == f32(0.0):
        bottom = _first_zero(src)
    bottom = _bounded(bottom)
    d = _bounded((hmax(maximum(low, high)) - bottom) / largest)
    inverse, start, half = splat(_inverse(d)), splat(bottom), splat(f32(0.5))
    return d, bottom, (low - start) * inverse + half, (high - start) * inverse + half


@njit
def q4_0(src, n_blocks, dst):
    """Encode n_blocks blocks."""
    for i in range(n_blocks):
        at = dst + 18 * i
        d, low, high = _symmetric(src + 4 * _WEIGHTS * i, f32(8.0))
        store_f16(at, d)
        store_nibbles(at + 2, low, high)


@njit
def q5_0(src, n_blocks, dst):
    """Encode n_blocks blocks."""
    for i in range(n_blocks):
        at = dst + 22 * i
        d, low, high = _symmetric(src + 4 * _WEIGHTS * i, f32(16.0))
        store_f16(at, d)
        store_fives(at + 6, at + 2, low, high)


@njit
def q4_1(src, n_blocks, dst):
    """Encode n_blocks blocks."""
    for i in range(n_blocks):
        at = dst + 20 * i
        d, bottom, low, high = _affine(src + 4 * _WEIGHTS * i, f32(15.0))
        store_f16(at, d)
        store_f16(at + 2, bottom)
        store_nibbles(at + 4, low, high)


@njit
def q5_1(src, n_blocks, dst):
    """Encode n_blocks blocks."""
    for i in range(n_blocks):
        at = dst + 24 * i
        d, bottom, low, high = _affine(src + 4 * _WEIGHTS * i, f32(31.0))
        store_f16(at, d)
        store_f16(at + 2, bottom)
        store_fives(at + 8, at + 4, low, high)


@njit
def q8_0(src, n_blocks, dst):
    """Encode n_blocks blocks."""
    for i in range(n_blocks):
        start, at = src + 4 * _WEIGHTS * i, dst + 34 * i
        low, high = load_f32x16(start), load_f32x16(start + LINE)
        d = _bounded(hmax(maximum(absolute(low), absolute(high))) / f32(127.0))
        inverse = splat(_inverse(d))
        store_f16(at, d)
        store_half_away_i8(at + 2, low * inverse)
        store_half_away_i8(at + 18, high * inverse)


@njit
def mxfp4(src, n_blocks, dst):
    """Encode n_blocks blocks: the largest magnitude lies in [4, 8) of the block's power of two."""
    for i in range(n_blocks):
        start, at = src + 4 * _WEIGHTS * i, dst + 17 * i
        low, high = load_f32x16(start), load_f32x16(start + LINE)
        largest = hmax(maximum(absolute(low), absolute(high)))
        exponent = 0
        if largest > f32(0.0):
            # f32, as there: a logarithm just below a whole number becomes it.
            exponent = max(0, math.floor(f32(math.log2(f64(largest)))) + 125)
        d = splat(f32(math.ldexp(f64(1.0), exponent - 128)))
        store_u8(at, exponent)
        store_e2m1(at + 1, low / d, high / d)


@inline
def _ternary_scale(src):
    """Return the largest magnitude of 256 weights."""
    largest = absolute(load_f32x16(src))
    for i in range(1, 16):
        largest = maximum(absolute(load_f32x16(src + LINE * i)), largest)
    return hmax(largest)


@njit
def tq2_0(src, n_blocks, dst):
    """Encode n_blocks blocks of 256."""
    for i in range(n_blocks):
        start, at = src + 1024 * i, dst + 66 * i
        d = _bounded(_ternary_scale(start))
        inverse = splat(_inverse(d))
        for half in range(2):
            for part in range(2):
                to, source = at + 32 * half + 16 * part, start + 512 * half + 64 * part
                store_pairs_of_bits(to, source, inverse)
        store_f16(at + 64, d)


@njit
def tq1_0(src, n_blocks, dst):
    """Encode n_blocks blocks of 256."""
    for i in range(n_blocks):
        start, at = src + 1024 * i, dst + 54 * i
        d = _bounded(_ternary_scale(start))
        inverse = _inverse(d)
        store_trits_32(at, start, splat(inverse))
        store_trits_32(at + 16, start + 64, splat(inverse))
        store_trits_16(at + 32, start + 640, splat(inverse))
        for k in range(4):
            number = 0
            for n in range(4):
                y = load_f32(start + 960 + 4 * k + 16 * n) * inverse
                number = 3 * number + 1 + (y >= f32(0.5)) - (y <= f32(-0.5))
            store_u8(at + 48 + k, (3 * number * 256 + 242) // 243)
        store_f16(at + 52, d)


@njit
def bf16(src, n, dst):
    """Convert n weights, the last 16 twice where n is no multiple of 16; n is at least 16."""
    for i in range(0, n, 16):
        i = min(i, n - 16)
        store_bf16x16(dst + 2 * i, load_f32x16(src + 4 * i))


@njit
def f16(src, n, dst):
    """Convert n weights, the last 16 twice where n is no multiple of 16; n is at least 16."""
    for i in range(0, n, 16):
        i = min(i, n - 16)
        store_f16x16(dst + 2 * i, load_f32x16(src + 4 * i))


ENCODERS = {
    "f16": f16,
    "bf16": bf16,
    "mxfp4": mxfp4,
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q8_0": q8_0,
    "tq1_0": tq1_0,
    "tq2_0": tq2_0,
}
