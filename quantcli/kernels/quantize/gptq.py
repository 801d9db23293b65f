"""Choosing codes column by column, each error made good by the columns that follow.

GPTQ (Frantar et al. 2022, arXiv 2210.17323) without an inverse. With H = R R^T, R upper
triangular, the output error of a row is tr(e H e^T) = |e R|^2, and component i of e R depends on
the errors of columns up to i alone. So the weight that column i should have, given the errors
before it, is w_i + (sum over j < i of e_j R_ji) / R_ii; rounding that adds R_ii^2 times the square
of what rounding changed.

Rows come in panels of 16, a lane each, with a line of 16 values for every column; a row's codes
depend on that row alone. Columns come in blocks, in the order of work.
"""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.matmul.f32 import PANEL
from quantcli.kernels.matmul.tile import tile
from quantcli.kernels.quantize.lanes import LINE, reciprocal, store_u8x16
from quantcli.kernels.quantize.on_grid import level_of, nearest_code
from quantcli.kernels.simd import (
    TILE_TOKENS,
    fma,
    load_f32x16,
    load_i64,
    splat,
    splat_f32_at,
    store_f32x16,
    view,
)

OPERAND_COLUMNS = TILE_TOKENS  # columns of an operand that lie together
INPUTS_MULTIPLE = PANEL.n_inputs  # blocks are multiples of this

ARGS = np.dtype(
    [
        ("n_panels", "i8"),
        ("panel_nbytes", "i8"),  # from a panel's lines of all columns to the next panel's
        ("n_before", "i8"),  # columns before this block
        ("n_columns", "i8"),  # of this block
        ("weights", "i8"),  # lines of all columns
        ("errors", "i8"),  # lines of all columns, weight minus value; the block's are written
        ("codes", "i8"),  # u8 in place of f32 otherwise as errors; the block's are written
        ("operand", "i8"),  # R of the columns before and this block's, see `operand`
        ("factor", "i8"),  # f32 (n_columns, n_columns): R of this block, transposed
        ("moved", "i8"),  # lines (n_panels, n_columns): errors before, times R
        ("targets", "i8"),  # lines (n_panels, n_columns): what the weights should be by now
        ("scales", "i8"),  # lines (n_panels, n_groups) of this block
        ("minima", "i8"),
        ("n_groups", "i8"),
        ("groups", "i8"),  # i64 (n_columns,): the group of each column
        ("levels", "i8"),  # f32 (n_levels,)   ascending
        ("n_levels", "i8"),
        ("is_uniform", "i8"),  # levels are whole numbers in a row
    ],
    align=True,
)


def operand(matrix: np.ndarray) -> np.ndarray:
    """Return columns f32 (n, n_columns) as `products` reads them: (n_columns / T, n, T)."""
    n, n_columns = matrix.shape
    groups = matrix.reshape(n, n_columns // OPERAND_COLUMNS, OPERAND_COLUMNS)
    return np.ascontiguousarray(groups.transpose(1, 0, 2), np.float32)


def reference(weights, factor, scales, minima, levels, groups):
    """Return errors f64 and codes u8 (n_rows, n_columns) of all columns, in the order of work.

    weights         (n_rows, n_columns)
    factor          (n_columns, n_columns)   R, upper triangular
    scales, minima  (n_rows, n_groups)
    groups          (n_columns,)   the group of each column
    """
    weights, factor = np.float64(weights), np.float64(factor)
    errors, codes = np.zeros(weights.shape), np.zeros(weights.shape, np.uint8)
    for i, g in enumerate(groups):
        target = weights[:, i] + errors[:, :i] @ factor[:i, i] / factor[i, i]
        grid = np.float64(scales[:, g, None]) * levels - minima[:, g, None]
        code = np.abs(grid - target[:, None]).argmin(axis=1)
        errors[:, i] = weights[:, i] - grid[np.arange(len(grid)), code]
        codes[:, i] = code
    return errors, codes


@inline
def products(lines, operand_, n, n_columns, out):
    """Write the lines of n_columns products of n lines with an operand."""
    for g in range(n_columns // OPERAND_COLUMNS):
        x = operand_ + 4 * g * n * OPERAND_COLUMNS
        to = out + LINE * g * OPERAND_COLUMNS
        n_blocks = n // INPUTS_MULTIPLE
        tile(PANEL, OPERAND_COLUMNS, lines, x, 0, 0, n_blocks, to, LINE, 0, 0)


@inline
def dot_lines(lines, factors, n, total):
    """Return total plus the sum of n lines times a factor each, in four partial sums."""
    s0, s1, s2, s3 = total, splat(f32(0.0)), splat(f32(0.0)), splat(f32(0.0))
    j = 0
    while j + 4 <= n:
        s0 = fma(load_f32x16(lines + LINE * j), splat_f32_at(factors + 4 * j), s0)
        s1 = fma(load_f32x16(lines + LINE * (j + 1)), splat_f32_at(factors + 4 * (j + 1)), s1)
        s2 = fma(load_f32x16(lines + LINE * (j + 2)), splat_f32_at(factors + 4 * (j + 2)), s2)
        s3 = fma(load_f32x16(lines + LINE * (j + 3)), splat_f32_at(factors + 4 * (j + 3)), s3)
        j += 4
    while j < n:
        s0 = fma(load_f32x16(lines + LINE * j), splat_f32_at(factors + 4 * j), s0)
        j += 1
    return (s0 + s1) + (s2 + s3)


@njit
def carry(args):
    """Bring the errors of the columns before to a block: `moved`, and the `targets` that follow."""
    a = view(args, ARGS)
    n, block_nbytes = a.n_columns, LINE * a.n_columns
    for p in range(a.n_panels):
        moved, targets = a.moved + p * block_nbytes, a.targets + p * block_nbytes
        if a.n_before > 0:
            products(a.errors + p * a.panel_nbytes, a.operand, a.n_before, n, moved)
        else:
            for i in range(n):
                store_f32x16(moved + LINE * i, splat(f32(0.0)))
        # What must be added to the block's weights for their part of e R to be zero: a
        # triangular system, solved in place.
        for i in range(n):
            factors = a.factor + 4 * i * n
            sum_ = dot_lines(targets, factors, i, splat(f32(0.0)))
            rest = load_f32x16(moved + LINE * i) - sum_
            store_f32x16(targets + LINE * i, rest / splat_f32_at(factors + 4 * i))
        weights = a.weights + p * a.panel_nbytes + LINE * a.n_before
        for i in range(n):
            at = targets + LINE * i
            store_f32x16(at, load_f32x16(at) + load_f32x16(weights + LINE * i))


@inline
def _column(a, i, weights, errors, codes, moved, scales, minima):
    """Choose the codes of one column of a panel."""
    factors = a.factor + 4 * i * a.n_columns
    total = dot_lines(errors, factors, i, load_f32x16(moved + LINE * i))
    weight = load_f32x16(weights + LINE * i)
    target = weight + total / splat_f32_at(factors + 4 * i)
    g = LINE * load_i64(a.groups + 8 * i)
    scale, minimum = load_f32x16(scales + g), load_f32x16(minima + g)
    y = (target + minimum) * reciprocal(scale)
    code = nearest_code(y, a.levels, a.n_levels, a.is_uniform)
    value = scale * level_of(code, a.levels, a.n_levels, a.is_uniform) - minimum
    store_f32x16(errors + LINE * i, weight - value)
    store_u8x16(codes + 16 * i, code)


@njit
def feedback(args):
    """Choose the codes of a block's columns, one after the other."""
    a = view(args, ARGS)
    first, grid_nbytes = LINE * a.n_before, LINE * a.n_groups
    for p in range(a.n_panels):
        weights = a.weights + p * a.panel_nbytes + first
        errors = a.errors + p * a.panel_nbytes + first
        codes = a.codes + (p * a.panel_nbytes + first) // 4
        moved = a.moved + p * LINE * a.n_columns
        scales, minima = a.scales + p * grid_nbytes, a.minima + p * grid_nbytes
        for i in range(a.n_columns):
            _column(a, i, weights, errors, codes, moved, scales, minima)
