"""Sixteen blocks at a time: lane b of every vector belongs to block b of a tile.

A tile holds weight i of all its blocks at `tile + LINE * i`, so that sums over a block are the
same plain loops, in the same order, as for one block alone.
"""

from __future__ import annotations

import numpy as np
from numba.core import types
from numpy import float32 as f32

from quantcli.kernels.jit import inline
from quantcli.kernels.simd import (
    absolute,
    define,
    emit,
    load_f32,
    load_f32x16,
    load_u8,
    machine,
    maximum,
    minimum,
    select_less,
    splat,
    sqrt,
    store_f32,
    store_f32x16,
    store_u8,
)
from quantcli.kernels.simd.vectors import F32X16, I32X16, f32x16

LANES = 16
LINE = 64  # bytes of a vector
HUGE = f32(3.0e38)  # a loss that anything beats
F16_MAX = f32(65504.0)


def _round_even(b, x):
    magic = emit.constant(F32X16, 12582912.0)
    return b.fsub(b.fadd(x, magic), magic)


def _nearest_whole(b, x, low, high):
    bits = b.bitcast(b.fadd(x, emit.constant(F32X16, 12582912.0)), I32X16)
    whole = b.and_(bits, emit.constant(I32X16, 0x007FFFFF))
    y = b.sitofp(b.sub(whole, emit.constant(I32X16, 0x00400000)), F32X16)
    return emit.minimum(b, emit.maximum(b, y, low), high)


def _store_u8(b, address, x):
    emit.store(b, emit.narrow_to_i8(b, b.fptosi(x, I32X16)), address)


# Round |x| < 2**22 to whole numbers, half to even: 1.5 * 2**23 has no bits below one.
round_even = define(f32x16, (f32x16,), _round_even)
# The nearest half-precision number; infinite above 65504.
as_f16 = define(f32x16, (f32x16,), lambda b, x: machine.f16_to_f32(b, machine.f32_to_f16(b, x)))
# Round |x| < 2**22 and clamp as llama.cpp's integers do: beyond 2**22 the low bits are anything.
nearest_whole = define(f32x16, (f32x16, f32x16, f32x16), _nearest_whole)
# Whole numbers 0 .. 255, as 16 bytes.
store_u8x16 = define(types.void, (types.int64, f32x16), _store_u8)
# The largest power of two that is not above x > 0.
power_of_two = define(
    f32x16,
    (f32x16,),
    lambda b, x: b.bitcast(b.and_(b.bitcast(x, I32X16), emit.constant(I32X16, 0x7F800000)), F32X16),
)
negate = define(f32x16, (f32x16,), lambda b, x: b.fneg(x))
select_equal = define(
    f32x16,
    (f32x16, f32x16, f32x16, f32x16),
    lambda b, x, y, same, other: b.select(b.fcmp_ordered("==", x, y), same, other),
)


@inline
def clamp(x, low, high):
    """Return x within [low, high], and low where it is NaN."""
    return minimum(maximum(x, low), high)


@inline
def reciprocal(x):
    """Return 1 / x, and 0 where x is 0 or 1 / x overflows."""
    zero, largest = splat(f32(0.0)), splat(HUGE)
    inverse = splat(f32(1.0)) / x
    return select_less(absolute(inverse), largest, inverse, zero)


@inline
def clamp_f16(d):
    """Return d within what an f16 can hold."""
    return clamp(d, negate(splat(F16_MAX)), splat(F16_MAX))


@inline
def storable(d, unit):
    """Return what an f16 holds of d * unit, divided by unit again."""
    return stored_half(d * unit) * reciprocal(unit)


@inline
def stored_half(d):
    """Return d as an f16 holds it, never infinite."""
    return as_f16(clamp_f16(d))


@inline
def extreme(x, n):
    """Return the weight of largest magnitude, the first of equals."""
    top, largest = splat(f32(0.0)), splat(f32(0.0))
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        top = select_less(largest, absolute(xi), xi, top)
        largest = maximum(absolute(xi), largest)
    return top


@inline
def gather(src, first, n_blocks, width, period, tile):
    """Lay blocks [first, first + 16) out as a tile; lanes behind the last block are zero.

    period   blocks after which src repeats: n_blocks for weights, a row's for its importance
    """
    for lane in range(LANES):
        to = tile + 4 * lane
        if first + lane < n_blocks:
            at = src + 4 * width * ((first + lane) % period)
            for i in range(width):
                store_f32(to + LINE * i, load_f32(at + 4 * i))
        else:
            for i in range(width):
                store_f32(to + LINE * i, f32(0.0))


@inline
def emphasize(x, v, width):
    """Multiply importance by sqrt(2 * mean square of the block + x**2), as llama.cpp weighs."""
    total = splat(f32(0.0))
    for i in range(width):
        xi = load_f32x16(x + LINE * i)
        total = total + xi * xi
    variance = total * splat(f32(2.0) / f32(width))
    for i in range(width):
        xi = load_f32x16(x + LINE * i)
        store_f32x16(v + LINE * i, load_f32x16(v + LINE * i) * sqrt(variance + xi * xi))


@inline
def rescale(x, width):
    """Divide each block by a power of two so that squares neither over- nor underflow; return it.

    Blocks whose largest magnitude is below 2**-120 become zero.
    """
    top = splat(f32(0.0))
    for i in range(width):
        top = maximum(absolute(load_f32x16(x + LINE * i)), top)
    unit = select_less(top, splat(f32(2.0**-120)), splat(f32(0.0)), power_of_two(top))
    inverse = reciprocal(unit)
    for i in range(width):
        store_f32x16(x + LINE * i, load_f32x16(x + LINE * i) * inverse)
    return unit


# One search: what is searched and where the answers go. Blocks come in tiles of 16 lanes.
ARGS = np.dtype(
    [
        ("src", "i8"),  # f32 (n_blocks, width)
        ("importance", "i8"),  # f32 (period, width), all above 0
        ("n_blocks", "i8"),
        ("period", "i8"),  # blocks of a row
        ("width", "i8"),  # weights of a block
        ("group", "i8"),  # weights that share a scale
        ("emphasis", "i8"),  # 1: larger weights count for more
        ("trials", "i8"),  # f32 (n_trials,)
        ("n_trials", "i8"),
        ("fine", "i8"),  # f32 (n_fine,): trials around the best so far
        ("n_fine", "i8"),
        ("d_trials", "i8"),  # f32 (n_d_trials,)
        ("n_d_trials", "i8"),
        ("is_mad", "i8"),  # plain k-quants: which of the two rules
        ("start", "f4"),  # and its trials
        ("step", "f4"),
        ("low", "f4"),  # least and largest level, sub-scale and sub-minimum
        ("high", "f4"),
        ("s_low", "f4"),
        ("s_high", "f4"),
        ("m_low", "f4"),
        ("m_high", "f4"),
        ("x", "i8"),  # a tile of weights
        ("v", "i8"),  # a tile of what their squared errors count
        ("scratch", "i8"),  # SCRATCH_LINES vectors
        ("d", "i8"),  # f32 (n_tiles, 16)
        ("dmin", "i8"),
        ("s", "i8"),  # f32 (n_tiles, n_groups, 16)
        ("m", "i8"),
        ("code_tile", "i8"),  # u8 (width, 16)
        ("codes", "i8"),  # u8 (n_blocks, width), where the search chooses them
    ],
    align=True,
)
SCRATCH_LINES = 16 * 16


@inline
def load_tile(a, first):
    """Fill the tiles of weights and of their importance; return the power of two taken out."""
    gather(a.src, first, a.n_blocks, a.width, a.n_blocks, a.x)
    gather(a.importance, first, a.n_blocks, a.width, a.period, a.v)
    unit = rescale(a.x, a.width)
    if a.emphasis:
        emphasize(a.x, a.v, a.width)
    return unit


@inline
def scatter_codes(a, first):
    """Write the tile of codes to the rows of its blocks."""
    for lane in range(min(LANES, a.n_blocks - first)):
        to = a.codes + a.width * (first + lane)
        for i in range(a.width):
            store_u8(to + i, load_u8(a.code_tile + LANES * i + lane))
