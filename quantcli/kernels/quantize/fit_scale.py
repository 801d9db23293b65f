"""Search for scales without minima: value = d * s * level, s whole, or 1 where there is none.

First each group's best scale for itself: many trial scales, each followed by the least-squares
scale of its codes. Then, for formats with sub-scales, the d whose multiples come closest; then
every group tries the multiples next to its own with codes rounded anew.
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
    load_tile,
    reciprocal,
    select_equal,
    storable,
)
from quantcli.kernels.quantize.levels import (
    E2M1_LEVELS,
    IQ4_LEVELS,
    WHOLE_LEVELS,
    nearest_level,
    whole_level,
)
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

N_REFITS = 2


@inline
def moments(x, v, n, inverse, low, high, levels):
    """Return sum v x l and sum v l l over n weights, l being the levels at scale 1 / inverse."""
    sum_xl, sum_ll = splat(f32(0.0)), splat(f32(0.0))
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        q = nearest_level(levels, xi * inverse, low, high)
        vq = load_f32x16(v + LINE * i) * q
        sum_xl, sum_ll = sum_xl + vq * xi, sum_ll + vq * q
    return sum_xl, sum_ll


@inline
def loss(x, v, n, scale, low, high, levels):
    """Return sum v (x - scale * l)**2 over n weights."""
    inverse, total = reciprocal(scale), splat(f32(0.0))
    for i in range(n):
        xi = load_f32x16(x + LINE * i)
        error = xi - scale * nearest_level(levels, xi * inverse, low, high)
        total = total + load_f32x16(v + LINE * i) * (error * error)
    return total


@inline
def best_scale(x, v, n, a, low, high, levels):
    """Return the scale that explains a group best, and sum v l l there.

    A trial is the level that the extreme weight would get if levels went on for ever.
    """
    inverse_top = reciprocal(extreme(x, n))
    zero = splat(f32(0.0))
    best, scale, curvature = splat(f32(-1.0)), zero, zero
    for t in range(a.n_trials + a.n_fine):
        if t < a.n_trials:
            inverse = splat_f32_at(a.trials + 4 * t) * inverse_top
        else:
            inverse = splat_f32_at(a.fine + 4 * (t - a.n_trials)) * reciprocal(scale)
        sum_xl, sum_ll = moments(x, v, n, inverse, low, high, levels)
        fitted = sum_xl * reciprocal(sum_ll)
        explained = fitted * sum_xl
        scale = select_less(best, explained, fitted, scale)
        curvature = select_less(best, explained, sum_ll, curvature)
        best = maximum(explained, best)
    return scale, curvature


@inline
def _single(x, v, a, unit, low, high, levels):
    """Return the best storable d of blocks without sub-scales."""
    scale, _ = best_scale(x, v, a.width, a, low, high, levels)
    d = storable(scale, unit)
    best = loss(x, v, a.width, d, low, high, levels)
    for _ in range(N_REFITS):
        sum_xl, sum_ll = moments(x, v, a.width, reciprocal(d), low, high, levels)
        other = storable(sum_xl * reciprocal(sum_ll), unit)
        its_loss = loss(x, v, a.width, other, low, high, levels)
        d = select_less(its_loss, best, other, d)
        best = minimum(its_loss, best)
    return d


@inline
def _settle(x, v, a, d, scales, s, low, high, levels):
    """Choose each group's s for a given d, store it at s, and return the whole loss."""
    total = splat(f32(0.0))
    inverse = reciprocal(d)
    s_low, s_high = splat(a.s_low), splat(a.s_high)
    for g in range(a.width // a.group):
        at = LINE * g * a.group
        middle = whole_level(load_f32x16(scales + LINE * g) * inverse, s_low, s_high)
        best, chosen = splat(HUGE), middle
        for step in range(-1, 2):
            tried = whole_level(middle + splat(f32(step)), s_low, s_high)
            its_loss = loss(x + at, v + at, a.group, d * tried, low, high, levels)
            chosen = select_less(its_loss, best, tried, chosen)
            best = minimum(its_loss, best)
        store_f32x16(s + LINE * g, chosen)
        total = total + best
    return total


@inline
def keep(its_loss, best, source, kept, n_groups):
    """Copy lines from source to kept in the lanes where its_loss < best."""
    for g in range(n_groups):
        new, old = load_f32x16(source + LINE * g), load_f32x16(kept + LINE * g)
        store_f32x16(kept + LINE * g, select_less(its_loss, best, new, old))


@inline
def _refitted(x, v, a, d, s, low, high, levels):
    """Return the least-squares d for the codes that d and s give."""
    sum_xl, sum_ll = splat(f32(0.0)), splat(f32(0.0))
    for g in range(a.width // a.group):
        at = LINE * g * a.group
        sub = load_f32x16(s + LINE * g)
        part_xl, part_ll = moments(x + at, v + at, a.group, reciprocal(d * sub), low, high, levels)
        sum_xl, sum_ll = sum_xl + part_xl * sub, sum_ll + part_ll * (sub * sub)
    return sum_xl * reciprocal(sum_ll)


@inline
def candidates(scales, curvatures, n_groups, a, unit):
    """Return the three best storable d, judged by how far each scale is from its multiples."""
    top, zero = extreme(scales, n_groups), splat(f32(0.0))
    s_low, s_high = splat(a.s_low), splat(a.s_high)
    d0, d1, d2 = zero, zero, zero
    c0, c1, c2 = splat(HUGE), splat(HUGE), splat(HUGE)
    for t in range(a.n_d_trials):
        tried = storable(top * reciprocal(splat_f32_at(a.d_trials + 4 * t)), unit)
        inverse, cost = reciprocal(tried), zero
        for g in range(n_groups):
            scale = load_f32x16(scales + LINE * g)
            rest = scale - tried * whole_level(scale * inverse, s_low, s_high)
            cost = cost + load_f32x16(curvatures + LINE * g) * (rest * rest)
        d2 = select_less(cost, c1, d1, select_less(cost, c2, tried, d2))
        c2 = select_less(cost, c1, c1, minimum(cost, c2))
        d1 = select_less(cost, c0, d0, select_less(cost, c1, tried, d1))
        c1 = select_less(cost, c0, c0, minimum(cost, c1))
        d0, c0 = select_less(cost, c0, tried, d0), minimum(cost, c0)
    return d0, d1, d2


@inline
def _shared(x, v, a, unit, low, high, levels):
    """Return the best storable d of blocks with sub-scales; these lie at a.scratch, a line each."""
    n_groups = a.width // a.group
    kept, scales = a.scratch, a.scratch + LINE * LANES
    curvatures, s = a.scratch + LINE * 2 * LANES, a.scratch + LINE * 3 * LANES
    for g in range(n_groups):
        at = LINE * g * a.group
        scale, curvature = best_scale(x + at, v + at, a.group, a, low, high, levels)
        store_f32x16(scales + LINE * g, scale)
        store_f32x16(curvatures + LINE * g, curvature)
        store_f32x16(kept + LINE * g, splat(f32(0.0)))
    first, second, third = candidates(scales, curvatures, n_groups, a, unit)
    d, best = splat(f32(0.0)), splat(HUGE)
    for turn in range(3 + N_REFITS):
        tried = first
        if turn == 1:
            tried = second
        elif turn == 2:
            tried = third
        elif turn > 2:
            tried = storable(_refitted(x, v, a, d, kept, low, high, levels), unit)
        its_loss = _settle(x, v, a, tried, scales, s, low, high, levels)
        keep(its_loss, best, s, kept, n_groups)
        d = select_less(its_loss, best, tried, d)
        best = minimum(its_loss, best)
    return d


@inline
def _fit_single(args, levels):
    a = view(args, ARGS)
    low, high = splat(a.low), splat(a.high)
    for first in range(0, a.n_blocks, LANES):
        unit = load_tile(a, first)
        d = _single(a.x, a.v, a, unit, low, high, levels)
        store_f32x16(a.d + 4 * first, d * unit)


@inline
def _fit_shared(args, levels):
    a = view(args, ARGS)
    low, high, n_groups = splat(a.low), splat(a.high), a.width // a.group
    for first in range(0, a.n_blocks, LANES):
        unit = load_tile(a, first)
        d = _shared(a.x, a.v, a, unit, low, high, levels)
        store_f32x16(a.d + 4 * first, d * unit)
        out = LINE * (first // LANES * n_groups)
        for g in range(n_groups):
            store_f32x16(a.s + out + LINE * g, load_f32x16(a.scratch + LINE * g))


@njit
def fit_whole(args):
    """Fit d of formats whose levels are whole numbers in a row."""
    _fit_single(args, WHOLE_LEVELS)


@njit
def fit_whole_shared(args):
    """Fit d and sub-scales of formats whose levels are whole numbers in a row."""
    _fit_shared(args, WHOLE_LEVELS)


@njit
def fit_iq4(args):
    """Fit d of iq4_nl."""
    _fit_single(args, IQ4_LEVELS)


@njit
def fit_iq4_shared(args):
    """Fit d and sub-scales of iq4_xs."""
    _fit_shared(args, IQ4_LEVELS)


@njit
def fit_e2m1(args):
    """Fit mxfp4: d is a power of two, and the largest weight has the topmost level or the next.

    Powers further down clip the block's largest weights, which pays where these count for little.
    """
    a = view(args, ARGS)
    zero = splat(f32(0.0))
    for first in range(0, a.n_blocks, LANES):
        unit = load_tile(a, first)
        top = extreme(a.x, a.width)
        d, best = zero, splat(HUGE)
        for k in range(a.n_trials):
            # Blocks are scaled so that the largest magnitude lies in [1, 2).
            tried = select_equal(top, zero, zero, splat_f32_at(a.trials + 4 * k))
            its_loss = loss(a.x, a.v, a.width, tried, zero, zero, E2M1_LEVELS)
            d = select_less(its_loss, best, tried, d)
            best = minimum(its_loss, best)
        store_f32x16(a.d + 4 * first, d * unit)
