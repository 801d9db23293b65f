"""The uneven 4-bit levels as llama.cpp's encoder chooses them where nothing is known.

Same bytes as there: sums in order, each weight's squared error counting its square.
"""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.quantize.lanes import (
    ARGS,
    HUGE,
    LANES,
    LINE,
    clamp_f16,
    extreme,
    gather,
    nearest_whole,
    negate,
    scatter_codes,
    select_equal,
    store_u8x16,
)
from quantcli.kernels.quantize.levels import IQ4_LEVELS, iq4_code, nearest_level
from quantcli.kernels.simd import (
    absolute,
    load_f32x16,
    select_less,
    splat,
    store_f32x16,
    view,
)

EPSILON = f32(1e-15)
LOWEST = f32(-127.0)  # the level that the largest magnitude gets


@inline
def _moments(x, n, inverse):
    """Return sum x**3 l and x**2 l l of levels l."""
    zero = splat(f32(0.0))
    s_lx, s_ll = zero, zero
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q = nearest_level(IQ4_LEVELS, inverse * xi, zero, zero)
        vq = xi * xi * q
        s_lx, s_ll = s_lx + vq * xi, s_ll + vq * q
    return s_lx, s_ll


@inline
def _scale(x, n):
    """Return the best of 16 scales of a group."""
    zero, top = splat(f32(0.0)), extreme(x, n)
    inverse = splat(f32(1.0)) / (negate(top) / splat(LOWEST))
    s_lx, s_ll = _moments(x, n, inverse)
    d = select_less(zero, s_ll, s_lx / s_ll, zero)
    best = d * s_lx
    for k in range(-7, 8):
        s_lx, s_ll = _moments(x, n, splat(f32(k) + LOWEST) / top)
        bar = select_less(zero, s_ll, best * s_ll, splat(HUGE))
        d = select_less(bar, s_lx * s_lx, s_lx / s_ll, d)
        best = select_less(bar, s_lx * s_lx, d * s_lx, best)
    return select_less(absolute(top), splat(EPSILON), zero, d)


@inline
def _inverse(d):
    zero = splat(f32(0.0))
    return select_equal(d, zero, zero, splat(f32(1.0)) / d)


@njit
def plain_iq4(args):
    """Encode iq4_nl, or iq4_xs where there are several groups to a block."""
    a = view(args, ARGS)
    n_groups = a.width // a.group
    for first in range(0, a.n_blocks, LANES):
        gather(a.src, first, a.n_blocks, a.width, a.n_blocks, a.x)
        for g in range(n_groups):
            store_f32x16(a.scratch + LINE * g, _scale(a.x + LINE * g * a.group, a.group))
        d = load_f32x16(a.scratch)
        if n_groups > 1:
            d = negate(extreme(a.scratch, n_groups)) / splat(f32(32.0))
        d = clamp_f16(d)
        store_f32x16(a.d + 4 * first, d)
        for g in range(n_groups):
            scale = d
            if n_groups > 1:
                s = _inverse(d) * load_f32x16(a.scratch + LINE * g)
                s = nearest_whole(s, splat(a.s_low), splat(a.s_high))
                store_f32x16(a.s + LINE * (first // LANES * n_groups + g), s)
                scale = d * s
            inverse = _inverse(scale)
            for i in range(g * a.group, (g + 1) * a.group):
                code = iq4_code(inverse * load_f32x16(a.x + LINE * i))
                store_u8x16(a.code_tile + LANES * i, code)
        scatter_codes(a, first)
