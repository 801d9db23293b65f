"""Search for scales and minima: value = d * s * code - dmin * m, s and m whole, or 1.

First each group's best scale and minimum for itself: many trial ranges, each followed by the
least-squares line through its codes. Then d and dmin: those whose multiples come closest, judged
by the curvature of each group's loss; then every group tries the multiples next to its own with
codes rounded anew, and d and dmin are fitted again to all codes at once.
"""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.quantize.fit_scale import keep
from quantcli.kernels.quantize.lanes import (
    ARGS,
    HUGE,
    LANES,
    LINE,
    load_tile,
    negate,
    reciprocal,
    select_equal,
    storable,
)
from quantcli.kernels.quantize.levels import whole_level
from quantcli.kernels.simd import (
    load_f32x16,
    maximum,
    minimum,
    select_less,
    splat,
    splat_f32_at,
    store_f32x16,
    view,
)

N_REFITS = 3
SAME = f32(1e-5)  # codes are taken as all the same if they spread less than this of their square


@inline
def sums(x, v, n, inverse, minimum_, high):
    """Return sum v, v x, v l, v l l, v x l over n weights; l are codes of x + minimum."""
    zero = splat(f32(0.0))
    s_v, s_x, s_l, s_ll, s_xl = zero, zero, zero, zero, zero
    for i in range(n):
        xi, vi = load_f32x16(x + LINE * i), load_f32x16(v + LINE * i)
        q = whole_level((xi + minimum_) * inverse, zero, high)
        vq = vi * q
        s_v, s_x, s_l = s_v + vi, s_x + vi * xi, s_l + vq
        s_ll, s_xl = s_ll + vq * q, s_xl + vq * xi
    return s_v, s_x, s_l, s_ll, s_xl


@inline
def loss(x, v, n, scale, minimum_, high):
    """Return sum v (x - (scale * l - minimum))**2 over n weights."""
    inverse, total, zero = reciprocal(scale), splat(f32(0.0)), splat(f32(0.0))
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q = whole_level((xi + minimum_) * inverse, zero, high)
        error = xi - (scale * q - minimum_)
        total = total + load_f32x16(v + LINE * i) * (error * error)
    return total


@inline
def line(found, is_free):
    """Return the least-squares scale and minimum; without is_free the minimum is at least 0."""
    s_v, s_x, s_l, s_ll, s_xl = found
    zero = splat(f32(0.0))
    spread, floor = s_v * s_ll - s_l * s_l, splat(SAME) * (s_v * s_ll)
    inverse = reciprocal(spread)
    scale = (s_v * s_xl - s_x * s_l) * inverse
    low = (s_l * s_xl - s_ll * s_x) * inverse
    if is_free:
        mean = s_x * reciprocal(s_v)
        return select_less(spread, floor, zero, scale), select_less(
            spread, floor, negate(mean), low
        )
    low = select_less(spread, floor, negate(splat(f32(1.0))), low)
    return select_less(low, zero, s_xl * reciprocal(s_ll), scale), maximum(low, zero)


@inline
def best_line(x, v, n, a, high, is_free):
    """Return the scale and minimum that suit a group best.

    A trial is a pair: how many code steps the range is cut at its bottom and at its top. Then come
    trials around the best so far: factors of its inverse scale.
    """
    zero = splat(f32(0.0))
    bottom, top = splat(HUGE), negate(splat(HUGE))
    s_v, s_x = zero, zero
    for i in range(n):
        xi, vi = load_f32x16(x + LINE * i), load_f32x16(v + LINE * i)
        bottom, top = minimum(xi, bottom), maximum(xi, top)
        s_v, s_x = s_v + vi, s_x + vi * xi
    # To begin with, all weights at their mean: the best there is where they are all the same.
    scale, low = zero, negate(s_x) * reciprocal(s_v)
    if not is_free:
        bottom, low = minimum(bottom, zero), maximum(low, zero)
    best = loss(x, v, n, scale, low, high)
    step = (top - bottom) * reciprocal(high)
    for t in range(a.n_trials + a.n_fine):
        if t < a.n_trials:
            cut, cut_top = splat_f32_at(a.trials + 8 * t), splat_f32_at(a.trials + 8 * t + 4)
            offset = negate(bottom + cut * step)
            inverse = high * reciprocal(top - cut_top * step + offset)
        else:
            inverse = splat_f32_at(a.fine + 4 * (t - a.n_trials)) * reciprocal(scale)
            offset = low
        its_scale, its_low = line(sums(x, v, n, inverse, offset, high), is_free)
        its_loss = loss(x, v, n, its_scale, its_low, high)
        scale = select_less(its_loss, best, its_scale, scale)
        low = select_less(its_loss, best, its_low, low)
        best = minimum(its_loss, best)
    return scale, low


@inline
def _center(x, v, n):
    """Take the weighted mean off x and return it: least-squares sums would lose digits to it."""
    total, s_x = splat(f32(0.0)), splat(f32(0.0))
    for i in range(n):
        vi = load_f32x16(v + LINE * i)
        total, s_x = total + vi, s_x + vi * load_f32x16(x + LINE * i)
    mean = s_x * reciprocal(total)
    for i in range(n):
        store_f32x16(x + LINE * i, load_f32x16(x + LINE * i) - mean)
    return mean


@inline
def _single(x, v, a, unit, high):
    """Return the best storable d and dmin of blocks without sub-scales; dmin may be negative."""
    mean = _center(x, v, a.width)
    scale, low = best_line(x, v, a.width, a, high, True)
    low = low - mean
    for i in range(a.width):
        store_f32x16(x + LINE * i, load_f32x16(x + LINE * i) + mean)
    d, dmin = storable(scale, unit), storable(low, unit)
    best = loss(x, v, a.width, d, dmin, high)
    for _ in range(N_REFITS):
        scale, low = line(sums(x, v, a.width, reciprocal(d), dmin, high), True)
        its_d, its_dmin = storable(scale, unit), storable(low, unit)
        its_loss = loss(x, v, a.width, its_d, its_dmin, high)
        d = select_less(its_loss, best, its_d, d)
        dmin = select_less(its_loss, best, its_dmin, dmin)
        best = minimum(its_loss, best)
    return d, dmin


@inline
def _settle(x, v, a, d, dmin, scales, lows, s, m, high):
    """Choose each group's s and m for given d and dmin, store them, and return the whole loss."""
    total = splat(f32(0.0))
    inverse, inverse_min = reciprocal(d), reciprocal(dmin)
    s_low, s_high = splat(a.s_low), splat(a.s_high)
    m_low, m_high = splat(a.m_low), splat(a.m_high)
    for g in range(a.width // a.group):
        at = LINE * g * a.group
        scale, low = load_f32x16(scales + LINE * g), load_f32x16(lows + LINE * g)
        s_middle = whole_level(scale * inverse, s_low, s_high)
        m_middle = whole_level(low * inverse_min, m_low, m_high)
        best, s_best, m_best = splat(HUGE), s_middle, m_middle
        for step in range(9):
            s_tried = whole_level(s_middle + splat(f32(step // 3 - 1)), s_low, s_high)
            m_tried = whole_level(m_middle + splat(f32(step % 3 - 1)), m_low, m_high)
            its_loss = loss(x + at, v + at, a.group, d * s_tried, dmin * m_tried, high)
            s_best = select_less(its_loss, best, s_tried, s_best)
            m_best = select_less(its_loss, best, m_tried, m_best)
            best = minimum(its_loss, best)
        store_f32x16(s + LINE * g, s_best)
        store_f32x16(m + LINE * g, m_best)
        total = total + best
    return total


@inline
def _multiples(values, weights, n_groups, largest, trials, n_trials, unit):
    """Return the two best storable units for values >= 0, judged by distance to multiples."""
    top, zero = splat(f32(0.0)), splat(f32(0.0))
    for g in range(n_groups):
        top = maximum(load_f32x16(values + LINE * g), top)
    d0, d1, c0, c1 = zero, zero, splat(HUGE), splat(HUGE)
    for t in range(n_trials):
        tried = storable(top * reciprocal(splat_f32_at(trials + 4 * t)), unit)
        inverse, cost = reciprocal(tried), zero
        for g in range(n_groups):
            value = load_f32x16(values + LINE * g)
            rest = value - tried * whole_level(value * inverse, zero, largest)
            cost = cost + load_f32x16(weights + LINE * g) * (rest * rest)
        d1 = select_less(cost, c0, d0, select_less(cost, c1, tried, d1))
        c1 = select_less(cost, c0, c0, minimum(cost, c1))
        d0, c0 = select_less(cost, c0, tried, d0), minimum(cost, c0)
    return d0, d1


@inline
def _refitted(x, v, a, d, dmin, s, m, high):
    """Return the least-squares d and dmin for the codes that they and s and m give."""
    zero = splat(f32(0.0))
    ll, lm, mm, xl, xm = zero, zero, zero, zero, zero
    for g in range(a.width // a.group):
        at = LINE * g * a.group
        sub, low = load_f32x16(s + LINE * g), load_f32x16(m + LINE * g)
        s_v, s_x, s_l, s_ll, s_xl = sums(
            x + at, v + at, a.group, reciprocal(d * sub), dmin * low, high
        )
        ll, mm = ll + s_ll * (sub * sub), mm + s_v * (low * low)
        lm, xl, xm = lm + s_l * (sub * low), xl + s_xl * sub, xm + s_x * low
    inverse = reciprocal(ll * mm - lm * lm)
    both_d, both_dmin = (xl * mm - xm * lm) * inverse, (xl * lm - xm * ll) * inverse
    only_d = xl * reciprocal(ll)
    return select_equal(inverse, zero, only_d, both_d), maximum(both_dmin, zero)


@inline
def _shared(x, v, a, unit, high):
    """Return the best storable d and dmin; s lies at a.scratch and m 16 lines behind it."""
    n_groups = a.width // a.group
    s_kept, m_kept = a.scratch, a.scratch + LINE * LANES
    s, m = a.scratch + LINE * 2 * LANES, a.scratch + LINE * 3 * LANES
    scales, lows = a.scratch + LINE * 4 * LANES, a.scratch + LINE * 5 * LANES
    scale_weights, low_weights = a.scratch + LINE * 6 * LANES, a.scratch + LINE * 7 * LANES
    zero = splat(f32(0.0))
    for g in range(n_groups):
        at = LINE * g * a.group
        scale, low = best_line(x + at, v + at, a.group, a, high, False)
        s_v, _, _, s_ll, _ = sums(x + at, v + at, a.group, reciprocal(scale), low, high)
        store_f32x16(scales + LINE * g, scale)
        store_f32x16(lows + LINE * g, low)
        store_f32x16(scale_weights + LINE * g, s_ll)
        store_f32x16(low_weights + LINE * g, s_v)
        store_f32x16(s_kept + LINE * g, zero)
        store_f32x16(m_kept + LINE * g, zero)
    d_first, d_second = _multiples(
        scales, scale_weights, n_groups, splat(a.s_high), a.d_trials, a.n_d_trials, unit
    )
    m_first, m_second = _multiples(
        lows, low_weights, n_groups, splat(a.m_high), a.d_trials, a.n_d_trials, unit
    )
    d, dmin, best = zero, zero, splat(HUGE)
    for turn in range(4 + N_REFITS):
        its_d, its_dmin = d_first, m_first
        if turn > 3:
            its_d, its_dmin = _refitted(x, v, a, d, dmin, s_kept, m_kept, high)
            its_d, its_dmin = storable(its_d, unit), storable(its_dmin, unit)
        else:
            if turn % 2 == 1:
                its_d = d_second
            if turn // 2 == 1:
                its_dmin = m_second
        its_loss = _settle(x, v, a, its_d, its_dmin, scales, lows, s, m, high)
        keep(its_loss, best, s, s_kept, n_groups)
        keep(its_loss, best, m, m_kept, n_groups)
        d = select_less(its_loss, best, its_d, d)
        dmin = select_less(its_loss, best, its_dmin, dmin)
        best = minimum(its_loss, best)
    return d, dmin


@njit
def fit_minimum(args):
    """Fit d and dmin of formats without sub-scales."""
    a = view(args, ARGS)
    for first in range(0, a.n_blocks, LANES):
        unit = load_tile(a, first)
        d, dmin = _single(a.x, a.v, a, unit, splat(a.high))
        store_f32x16(a.d + 4 * first, d * unit)
        store_f32x16(a.dmin + 4 * first, dmin * unit)


@njit
def fit_minimum_shared(args):
    """Fit d, dmin, sub-scales and sub-minima."""
    a = view(args, ARGS)
    n_groups = a.width // a.group
    for first in range(0, a.n_blocks, LANES):
        unit = load_tile(a, first)
        d, dmin = _shared(a.x, a.v, a, unit, splat(a.high))
        store_f32x16(a.d + 4 * first, d * unit)
        store_f32x16(a.dmin + 4 * first, dmin * unit)
        out = LINE * (first // LANES * n_groups)
        for g in range(n_groups):
            store_f32x16(a.s + out + LINE * g, load_f32x16(a.scratch + LINE * g))
            store_f32x16(a.m + out + LINE * g, load_f32x16(a.scratch + LINE * (LANES + g)))
