"""Coordinate descent on codes and scales: each change lowers tr(e H e^T), all else as it is.

With G = e H, changing a code so that the error of column i grows by d changes the output error by
d (2 G_i + d H_ii): the best value is the one nearest to value_i + G_i / H_ii. The same is asked of
a group's scale, and of its minimum, with its codes as they are: a quadratic in one or two numbers,
rounded to what the format can store. Source: QuantEase (Behdin et al. 2023, arXiv 2309.01885) for
codes.

Panels, lines and blocks as in `gptq`.
"""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.quantize.gptq import products
from quantcli.kernels.quantize.lanes import (
    LINE,
    clamp,
    reciprocal,
    round_even,
    store_u8x16,
    stored_half,
)
from quantcli.kernels.quantize.on_grid import level_of, nearest_code
from quantcli.kernels.simd import (
    fma,
    hmax_abs,
    load_f32x16,
    load_i64,
    load_u8x16,
    select_less,
    splat,
    splat_f32_at,
    store_f32x16,
    view,
)

# What may become of a scale: nothing, an f16, or a whole multiple of the block's unit.
FIXED, HALF, MULTIPLE = 0, 1, 2

ARGS = np.dtype(
    [
        ("n_panels", "i8"),
        ("panel_nbytes", "i8"),  # from a panel's lines of all columns to the next panel's
        ("n_all", "i8"),  # columns
        ("n_before", "i8"),  # columns before this block
        ("n_columns", "i8"),  # of this block
        ("weights", "i8"),  # lines of all columns
        ("errors", "i8"),  # lines of all columns; the block's are written
        ("codes", "i8"),  # u8, otherwise as errors; the block's are written
        ("operand", "i8"),  # H of all columns and this block's, see `gptq.operand`
        ("hessian", "i8"),  # f32 (n_columns, n_columns): H of this block
        ("scales", "i8"),  # lines (n_panels, n_groups) of this block; written
        ("minima", "i8"),  # written
        ("units", "i8"),  # lines (n_panels, 2): what scales and minima are multiples of
        ("n_groups", "i8"),
        ("groups", "i8"),  # i64 (n_columns,): the group of each column
        ("members", "i8"),  # i64 (n_groups, n_columns / n_groups): the columns of each group
        ("levels", "i8"),  # f32 (n_levels,)   ascending
        ("n_levels", "i8"),
        ("is_uniform", "i8"),
        ("rounding", "i8"),  # FIXED, HALF or MULTIPLE
        ("has_minima", "i8"),  # minima change apart from scales; else in proportion to them
        ("s_low", "f4"),  # of multiples
        ("s_high", "f4"),
        ("m_low", "f4"),
        ("m_high", "f4"),
        ("n_sweeps", "i8"),  # over the codes of the block
        ("scratch", "i8"),  # see `scratch_nbytes`
    ],
    align=True,
)


def scratch_nbytes(n_columns: int) -> int:
    """Return the bytes of a kernel's scratch memory, alignment included."""
    return (3 * n_columns + 1) * LINE


def reference(weights, codes, hessian, scales, minima, levels, groups):
    """Return codes u8 (n_rows, n_columns) after one sweep over all columns, in f64.

    weights, codes  (n_rows, n_columns)
    hessian         (n_columns, n_columns)
    scales, minima  (n_rows, n_groups)
    groups          (n_columns,)   the group of each column
    """
    grids = np.float64(scales)[:, groups, None] * levels - np.float64(minima)[:, groups, None]
    rows, codes = np.arange(len(weights)), codes.copy()
    values = np.take_along_axis(grids, codes[..., None].astype(int), -1)[..., 0]
    errors = np.float64(weights) - values
    for i in range(weights.shape[1]):
        target = values[:, i] + errors @ np.float64(hessian)[:, i] / np.float64(hessian)[i, i]
        codes[:, i] = np.abs(grids[:, i] - target[:, None]).argmin(axis=1)
        values[:, i] = grids[rows, i, codes[:, i]]
        errors[:, i] = weights[:, i] - values[:, i]
    return codes


@inline
def _move(a, i, change, errors, gradient):
    """Add a change to the errors of column i, and what follows from it to the block's G."""
    at = errors + LINE * i
    store_f32x16(at, load_f32x16(at) + change)
    row = a.hessian + 4 * i * a.n_columns
    for j in range(a.n_columns):
        g = gradient + LINE * j
        store_f32x16(g, fma(change, splat_f32_at(row + 4 * j), load_f32x16(g)))


@inline
def _sweep(a, weights, errors, codes, gradient, scales, minima):
    """Give each column of the block its best code."""
    for i in range(a.n_columns):
        g = LINE * load_i64(a.groups + 8 * i)
        scale, minimum = load_f32x16(scales + g), load_f32x16(minima + g)
        weight, error = load_f32x16(weights + LINE * i), load_f32x16(errors + LINE * i)
        curvature = splat_f32_at(a.hessian + 4 * i * (a.n_columns + 1))
        target = (weight - error) + load_f32x16(gradient + LINE * i) / curvature
        y = (target + minimum) * reciprocal(scale)
        code = nearest_code(y, a.levels, a.n_levels, a.is_uniform)
        change = load_u8x16(codes + 16 * i) - code
        if hmax_abs(change, change) == f32(0.0):
            continue
        value = scale * level_of(code, a.levels, a.n_levels, a.is_uniform) - minimum
        store_u8x16(codes + 16 * i, code)
        _move(a, i, (weight - value) - error, errors, gradient)


@inline
def _levels(a, g, codes, scale, minimum, levels):
    """Write the levels of a group's codes; where minima follow scales, less minimum / scale."""
    size = a.n_columns // a.n_groups
    zero = splat(f32(0.0)) if a.has_minima != 0 else minimum * reciprocal(scale)
    for k in range(size):
        i = load_i64(a.members + 8 * (g * size + k))
        level = level_of(load_u8x16(codes + 16 * i), a.levels, a.n_levels, a.is_uniform)
        store_f32x16(levels + LINE * k, level - zero)


@inline
def _curvatures(a, g, levels):
    """Return l H l, l H 1 and 1 H 1 over a group, l being its levels."""
    size, zero = a.n_columns // a.n_groups, splat(f32(0.0))
    ll, l1, s11 = zero, zero, zero
    for k in range(size):
        row = a.hessian + 4 * load_i64(a.members + 8 * (g * size + k)) * a.n_columns
        along, ones = zero, zero
        for j in range(size):
            h = splat_f32_at(row + 4 * load_i64(a.members + 8 * (g * size + j)))
            along = fma(h, load_f32x16(levels + LINE * j), along)
            ones = ones + h
        level = load_f32x16(levels + LINE * k)
        ll, l1, s11 = fma(level, along, ll), fma(level, ones, l1), s11 + ones
    return ll, l1, s11


@inline
def _slopes(a, g, levels, gradient):
    """Return l G and 1 G over a group."""
    size, zero = a.n_columns // a.n_groups, splat(f32(0.0))
    along, ones = zero, zero
    for k in range(size):
        i = load_i64(a.members + 8 * (g * size + k))
        value = load_f32x16(gradient + LINE * i)
        along, ones = fma(value, load_f32x16(levels + LINE * k), along), ones + value
    return along, ones


@inline
def _storable(a, want, unit, low, high):
    """Return the storable number nearest to one."""
    if a.rounding == MULTIPLE:
        multiple = clamp(want * reciprocal(unit), splat(low), splat(high))
        return unit * round_even(multiple)
    return stored_half(want)


@inline
def _gain(ds, dm, slope_l, slope_1, ll, l1, s11):
    """Return by how much the output error falls if scale and minimum grow by ds and dm."""
    two = splat(f32(2.0))
    linear = two * (ds * slope_l - dm * slope_1)
    return linear - (ds * ds * ll - two * (ds * dm * l1) + dm * dm * s11)


@inline
def _refit_scale(a, g, units, codes, gradient, scales, minima, levels):
    """Return the changes of scale and minimum, which keeps its ratio to the scale, of a group."""
    zero = splat(f32(0.0))
    scale, minimum = load_f32x16(scales + LINE * g), load_f32x16(minima + LINE * g)
    _levels(a, g, codes, scale, minimum, levels)
    ll, l1, s11 = _curvatures(a, g, levels)
    slope_l, slope_1 = _slopes(a, g, levels, gradient)
    want = scale + slope_l * reciprocal(ll)
    new = _storable(a, want, load_f32x16(units), a.s_low, a.s_high)
    gain = _gain(new - scale, zero, slope_l, slope_1, ll, l1, s11)
    new = select_less(zero, gain, new, scale)
    new_minimum = minimum * reciprocal(scale) * new
    store_f32x16(scales + LINE * g, new)
    store_f32x16(minima + LINE * g, select_less(zero, gain, new_minimum, minimum))
    return new - scale, zero


@inline
def _refit_both(a, g, units, codes, gradient, scales, minima, levels):
    """Return the changes of scale and minimum of a group, each rounded up and down."""
    zero = splat(f32(0.0))
    scale, minimum = load_f32x16(scales + LINE * g), load_f32x16(minima + LINE * g)
    _levels(a, g, codes, scale, minimum, levels)
    ll, l1, s11 = _curvatures(a, g, levels)
    slope_l, slope_1 = _slopes(a, g, levels, gradient)
    inverse = reciprocal(ll * s11 - l1 * l1)
    ds = (slope_l * s11 - slope_1 * l1) * inverse
    unit, m_unit = load_f32x16(units), load_f32x16(units + LINE)
    best, best_scale, best_minimum = zero, scale, minimum
    for turn in range(3):
        step = splat(f32(turn - 1) * f32(0.5)) * unit
        new = _storable(a, scale + ds + step, unit, a.s_low, a.s_high)
        moved = new - scale
        dm = (moved * l1 - slope_1) * reciprocal(s11)
        new_minimum = _storable(a, minimum + dm, m_unit, a.m_low, a.m_high)
        gain = _gain(moved, new_minimum - minimum, slope_l, slope_1, ll, l1, s11)
        best_scale = select_less(best, gain, new, best_scale)
        best_minimum = select_less(best, gain, new_minimum, best_minimum)
        best = select_less(best, gain, gain, best)
    store_f32x16(scales + LINE * g, best_scale)
    store_f32x16(minima + LINE * g, best_minimum)
    return best_scale - scale, best_minimum - minimum


@inline
def _refit(a, g, units, errors, codes, gradient, scales, minima, levels):
    """Give a group its best scale and minimum."""
    if a.has_minima != 0:
        ds, dm = _refit_both(a, g, units, codes, gradient, scales, minima, levels)
    else:
        ds, dm = _refit_scale(a, g, units, codes, gradient, scales, minima, levels)
    if hmax_abs(ds, dm) == f32(0.0):
        return
    size = a.n_columns // a.n_groups
    for k in range(size):
        i = load_i64(a.members + 8 * (g * size + k))
        _move(a, i, dm - ds * load_f32x16(levels + LINE * k), errors, gradient)


@njit
def descend(args):
    """Improve the codes, and unless they are fixed the scales, of one block of columns."""
    a = view(args, ARGS)
    first, grid_nbytes = LINE * a.n_before, LINE * a.n_groups
    gradient = a.scratch
    levels = gradient + LINE * a.n_columns
    for p in range(a.n_panels):
        weights = a.weights + p * a.panel_nbytes + first
        errors = a.errors + p * a.panel_nbytes + first
        codes = a.codes + (p * a.panel_nbytes + first) // 4
        scales, minima = a.scales + p * grid_nbytes, a.minima + p * grid_nbytes
        products(errors - first, a.operand, a.n_all, a.n_columns, gradient)
        for _ in range(a.n_sweeps):
            if a.rounding != FIXED:
                for g in range(a.n_groups):
                    units = a.units + 2 * LINE * p
                    _refit(a, g, units, errors, codes, gradient, scales, minima, levels)
            _sweep(a, weights, errors, codes, gradient, scales, minima)


LOSS_ARGS = np.dtype(
    [
        ("n_panels", "i8"),
        ("panel_nbytes", "i8"),
        ("n_all", "i8"),
        ("n_before", "i8"),
        ("n_columns", "i8"),
        ("rows", "i8"),  # lines of all columns
        ("operand", "i8"),  # as above
        ("total", "i8"),  # lines (n_panels,): added to
        ("scratch", "i8"),
    ],
    align=True,
)


@njit
def add_loss(args):
    """Add one block's part of x H x^T, for each row x."""
    a = view(args, LOSS_ARGS)
    for p in range(a.n_panels):
        lines = a.rows + p * a.panel_nbytes
        products(lines, a.operand, a.n_all, a.n_columns, a.scratch)
        total = splat(f32(0.0))
        for i in range(a.n_columns):
            x = load_f32x16(lines + LINE * (a.n_before + i))
            total = fma(x, load_f32x16(a.scratch + LINE * i), total)
        at = a.total + LINE * p
        store_f32x16(at, load_f32x16(at) + total)
