"""The k-quants as llama.cpp's encoders choose them where nothing is known about the inputs.

Same bytes: every sum has its order of additions, every quotient its division. What a weight's
squared error counts there is |x|, x**2 or |x| + rms(x), by format.
"""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.quantize.lanes import (
    ARGS,
    HUGE,
    LANES,
    LINE,
    extreme,
    gather,
    nearest_whole,
    negate,
    scatter_codes,
    select_equal,
    store_u8x16,
    stored_half,
)
from quantcli.kernels.simd import (
    absolute,
    load_f32x16,
    maximum,
    minimum,
    select_less,
    splat,
    sqrt,
    store_f32x16,
    view,
)

EPSILON = f32(1e-15)  # groups whose weights are all smaller are taken as zeros


# ---- scales and minima: q2_k, q4_k, q5_k


@inline
def _range_weights(x, v, n, is_mad):
    """Store what each weight's error counts: |x|, or |x| + rms."""
    base = splat(f32(0.0))
    if not is_mad:
        for i in range(n):
            xi = load_f32x16(x + LINE * i)
            base = base + xi * xi
        base = sqrt(base / splat(f32(n)))
    for i in range(n):
        store_f32x16(v + LINE * i, base + absolute(load_f32x16(x + LINE * i)))


@inline
def _range_loss(x, v, n, codes_at, low, high, scale, bottom, is_mad):
    """Return sum v |e| or v e**2 of scale * l + bottom, l being codes at inverse scale codes_at."""
    total, zero = splat(f32(0.0)), splat(f32(0.0))
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q = nearest_whole(codes_at * (xi - low), zero, high)
        error = scale * q + bottom - xi
        error = absolute(error) if is_mad else error * error
        total = total + load_f32x16(v + LINE * i) * error
    return total


@inline
def _range_moments(x, v, n, codes_at, low, high):
    """Return sum v l, v l l and v l x."""
    zero = splat(f32(0.0))
    s_l, s_ll, s_lx = zero, zero, zero
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q = nearest_whole(codes_at * (xi - low), zero, high)
        vq = load_f32x16(v + LINE * i) * q
        s_l, s_ll, s_lx = s_l + vq, s_ll + vq * q, s_lx + vq * xi
    return s_l, s_ll, s_lx


@inline
def _range(x, v, n, largest, start, step, n_steps, is_mad):
    """Return scale, minimum, and the inverse scale and offset that made the best codes."""
    zero, high = splat(f32(0.0)), splat(largest)
    first = load_f32x16(x)
    low, top = first, first
    s_v = load_f32x16(v)
    s_x = s_v * first
    for i in range(1, n):
        xi, vi = load_f32x16(x + LINE * i), load_f32x16(v + LINE * i)
        low, top = minimum(xi, low), maximum(xi, top)
        s_v, s_x = s_v + vi, s_x + vi * xi
    lowest = minimum(low, zero)
    bottom = lowest
    codes_at, codes_low = high / (top - bottom), bottom
    scale = splat(f32(1.0)) / codes_at
    best = _range_loss(x, v, n, codes_at, bottom, high, scale, bottom, is_mad)
    for k in range(n_steps + 1):
        # From the best bottom so far, which is also where its codes are counted from.
        inverse = splat(start + step * f32(k) + largest) / (top - bottom)
        s_l, s_ll, s_lx = _range_moments(x, v, n, inverse, bottom, high)
        det = s_v * s_ll - s_l * s_l
        its_scale = (s_v * s_lx - s_x * s_l) / det
        its_bottom = (s_ll * s_x - s_l * s_lx) / det
        its_scale = select_less(zero, its_bottom, s_lx / s_ll, its_scale)
        its_bottom = select_less(zero, its_bottom, zero, its_bottom)
        its_loss = _range_loss(x, v, n, inverse, bottom, high, its_scale, its_bottom, is_mad)
        its_loss = select_less(zero, det, its_loss, splat(HUGE))
        codes_at = select_less(its_loss, best, inverse, codes_at)
        codes_low = select_less(its_loss, best, bottom, codes_low)
        scale = select_less(its_loss, best, its_scale, scale)
        bottom = select_less(its_loss, best, its_bottom, bottom)
        best = minimum(its_loss, best)
    scale = select_equal(top, lowest, zero, scale)
    bottom = select_equal(top, lowest, lowest, bottom)
    codes_at = select_equal(top, lowest, zero, codes_at)
    return scale, negate(bottom), codes_at, codes_low


@inline
def _whole_parts(values, n_groups, largest):
    """Replace each group's value >= 0 by its multiple of their largest / `largest`; return that."""
    zero, top, high = splat(f32(0.0)), splat(f32(0.0)), splat(largest)
    for g in range(n_groups):
        top = maximum(load_f32x16(values + LINE * g), top)
    inverse = select_less(zero, top, high / top, zero)
    for g in range(n_groups):
        part = nearest_whole(inverse * load_f32x16(values + LINE * g), zero, high)
        store_f32x16(values + LINE * g, part)
    return select_less(zero, top, top / high, zero)


@njit
def plain_range(args):
    """Encode formats with minima; a.m_high is the largest sub-scale, a.emphasis says which one."""
    a = view(args, ARGS)
    x, n_groups = a.x, a.width // a.group
    zero, high = splat(f32(0.0)), splat(a.high)
    scales, minima = a.scratch, a.scratch + LINE * LANES
    inverses, lows = a.scratch + LINE * 2 * LANES, a.scratch + LINE * 3 * LANES
    for first in range(0, a.n_blocks, LANES):
        gather(a.src, first, a.n_blocks, a.width, a.n_blocks, x)
        for g in range(n_groups):
            xg = x + LINE * g * a.group
            _range_weights(xg, a.v, a.group, a.is_mad)
            scale, minimum_, codes_at, low = _range(
                xg, a.v, a.group, a.high, a.start, a.step, a.n_trials, a.is_mad
            )
            store_f32x16(scales + LINE * g, scale)
            store_f32x16(minima + LINE * g, minimum_)
            store_f32x16(inverses + LINE * g, codes_at)
            store_f32x16(lows + LINE * g, low)
        d = stored_half(_whole_parts(scales, n_groups, a.s_high))
        dmin = stored_half(_whole_parts(minima, n_groups, a.m_high))
        store_f32x16(a.d + 4 * first, d)
        store_f32x16(a.dmin + 4 * first, dmin)
        for g in range(n_groups):
            s, m = load_f32x16(scales + LINE * g), load_f32x16(minima + LINE * g)
            out = LINE * (first // LANES * n_groups + g)
            store_f32x16(a.s + out, s)
            store_f32x16(a.m + out, m)
            scale, offset = d * s, dmin * m
            codes_at, low = load_f32x16(inverses + LINE * g), load_f32x16(lows + LINE * g)
            for i in range(g * a.group, (g + 1) * a.group):
                xi = load_f32x16(x + LINE * i)
                searched = nearest_whole(codes_at * (xi - low), zero, high)
                q = nearest_whole((xi + offset) / scale, zero, high)
                store_u8x16(a.code_tile + LANES * i, select_equal(scale, zero, searched, q))
        scatter_codes(a, first)


# ---- scales alone: q3_k, q6_k


@inline
def _square_moments(x, n, inverse, low, high):
    """Return sum x**3 l and x**2 l l: each weight's error counts x**2."""
    s_xl, s_ll = splat(f32(0.0)), splat(f32(0.0))
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q = nearest_whole(inverse * xi, low, high)
        v = xi * xi
        s_xl, s_ll = s_xl + v * xi * q, s_ll + v * q * q
    return s_xl, s_ll


@inline
def _trial_scale(x, n, low, high, limit):
    """Return the scale, and the inverse scale that made the best codes, of 19 trials."""
    zero, top = splat(f32(0.0)), extreme(x, n)
    codes_at = splat(-limit) / top
    s_xl, s_ll = _square_moments(x, n, codes_at, low, high)
    scale = select_equal(s_ll, zero, zero, s_xl / s_ll)
    best = scale * s_xl
    for k in range(-9, 10):
        if k != 0:
            inverse = splat(-(limit + f32(0.1) * f32(k))) / top
            s_xl, s_ll = _square_moments(x, n, inverse, low, high)
            gain = select_less(zero, s_ll, best * s_ll, splat(HUGE))
            scale = select_less(gain, s_xl * s_xl, s_xl / s_ll, scale)
            codes_at = select_less(gain, s_xl * s_xl, inverse, codes_at)
            best = select_less(gain, s_xl * s_xl, scale * s_xl, best)
    is_zero = absolute(top)
    scale = select_less(is_zero, splat(EPSILON), zero, scale)
    return scale, select_less(is_zero, splat(EPSILON), zero, codes_at)


@inline
def _descend(x, codes, n, low, high, limit):
    """Store codes and return their scale: five sweeps that each try one code at a time."""
    zero, top = splat(f32(0.0)), extreme(x, n)
    inverse = splat(-limit) / top
    s_xl, s_ll = zero, zero
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q, v = nearest_whole(inverse * xi, low, high), xi * xi
        store_f32x16(codes + LINE * i, q)
        s_xl, s_ll = s_xl + v * xi * q, s_ll + v * q * q
    for _ in range(5):
        for i in range(n):
            xi, q = load_f32x16(x + LINE * i), load_f32x16(codes + LINE * i)
            v = xi * xi
            rest_xl, rest_ll = s_xl - v * xi * q, s_ll - v * q * q
            other = nearest_whole(xi * rest_ll / rest_xl, low, high)
            its_xl, its_ll = rest_xl + v * xi * other, rest_ll + v * other * other
            old = select_less(zero, its_ll, s_xl * s_xl * its_ll, splat(HUGE))
            new = select_less(zero, rest_xl, its_xl * its_xl * s_ll, zero)
            new = select_equal(other, q, zero, new)
            store_f32x16(codes + LINE * i, select_less(old, new, other, q))
            s_xl, s_ll = select_less(old, new, its_xl, s_xl), select_less(old, new, its_ll, s_ll)
    is_zero = absolute(top)
    for i in range(n):
        q = load_f32x16(codes + LINE * i)
        store_f32x16(codes + LINE * i, select_less(is_zero, splat(EPSILON), low, q))
    scale = select_less(zero, s_ll, s_xl / s_ll, zero)
    return select_less(is_zero, splat(EPSILON), zero, scale)


@njit
def plain_scale(args):
    """Encode formats without minima; a.is_mad is 1 for the coordinate descent of q3_k.

    A block whose scales are all below a.start gets d = 0 and the sub-scales a.step.
    """
    a = view(args, ARGS)
    x, n_groups, offset = a.x, a.width // a.group, splat(-a.low)
    zero, low, high = splat(f32(0.0)), splat(a.low), splat(a.high)
    scales, codes = a.scratch, a.v
    for first in range(0, a.n_blocks, LANES):
        gather(a.src, first, a.n_blocks, a.width, a.n_blocks, x)
        for g in range(n_groups):
            at = LINE * g * a.group
            if a.is_mad:
                scale, codes_at = _descend(x + at, codes + at, a.group, low, high, -a.low), zero
            else:
                scale, codes_at = _trial_scale(x + at, a.group, low, high, -a.low)
                for i in range(a.group):
                    q = nearest_whole(codes_at * load_f32x16(x + at + LINE * i), low, high)
                    is_zero = select_equal(codes_at, zero, low, q)
                    store_f32x16(codes + at + LINE * i, is_zero)
            store_f32x16(scales + LINE * g, scale)
        top = extreme(scales, n_groups)
        size, floor = absolute(top), splat(a.start)
        inverse = splat(a.s_low) / top
        d = select_less(size, floor, zero, stored_half(splat(f32(1.0)) / inverse))
        store_f32x16(a.d + 4 * first, d)
        for g in range(n_groups):
            s = inverse * load_f32x16(scales + LINE * g)
            s = nearest_whole(s, splat(a.s_low), splat(a.s_high))
            s = select_less(size, floor, splat(a.step), s)
            store_f32x16(a.s + LINE * (first // LANES * n_groups + g), s)
            scale = d * s
            for i in range(g * a.group, (g + 1) * a.group):
                q = nearest_whole(load_f32x16(x + LINE * i) / scale, low, high)
                q = select_equal(scale, zero, load_f32x16(codes + LINE * i), q)
                q = select_less(size, floor, low, q)
                store_u8x16(a.code_tile + LANES * i, q + offset)
        scatter_codes(a, first)
