"""Codes of weights on a grid that is given: the nearest level of each."""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.formats import F32, U8
from quantcli.kernels.jit import njit
from quantcli.kernels.quantize.lanes import LANES, LINE, clamp, reciprocal, round_even, store_u8x16
from quantcli.kernels.simd import (
    load_f32,
    load_f32x16,
    select_less,
    splat,
    splat_f32_at,
    view,
)

ARGS = np.dtype(
    [
        ("weights", "i8"),  # f32 (n_groups, group)
        ("scales", "i8"),  # f32 (n_groups,)
        ("minima", "i8"),  # f32 (n_groups,)
        ("n_groups", "i8"),
        ("group", "i8"),  # a multiple of 16
        ("levels", "i8"),  # f32 (n_levels,)   ascending
        ("n_levels", "i8"),
        ("is_uniform", "i8"),  # levels are whole numbers in a row
        ("codes", "i8"),  # u8 (n_groups, group): written
    ],
    align=True,
)


@njit
def nearest_codes(args):
    """Write the index of the level nearest to each weight; the upper one halfway."""
    a = view(args, ARGS)
    zero, one, last = splat(f32(0.0)), splat(f32(1.0)), splat(f32(a.n_levels - 1))
    first = splat(load_f32(a.levels))
    for g in range(a.n_groups):
        inverse = reciprocal(splat_f32_at(a.scales + 4 * g))
        low = splat_f32_at(a.minima + 4 * g)
        for i in range(0, a.group, LANES):
            at = g * a.group + i
            y = (load_f32x16(a.weights + LINE // LANES * at) + low) * inverse
            code = zero
            if a.is_uniform:
                code = round_even(clamp(y - first, zero, last))
            else:
                for k in range(a.n_levels - 1):
                    below, above = load_f32(a.levels + 4 * k), load_f32(a.levels + 4 * k + 4)
                    middle = splat((below + above) * f32(0.5))
                    code = code + select_less(y, middle, zero, one)
            store_u8x16(a.codes + at, code)


def find(weights: F32, scales: F32, minima: F32, levels: F32) -> U8:
    """Return codes u8 (n_rows, n_in) of weights f32 (n_rows, n_in).

    scales, minima  f32 (n_rows, n_groups)
    levels          f32 (n_levels,)   ascending
    """
    weights, scales, minima, levels = (
        np.ascontiguousarray(x, np.float32) for x in (weights, scales, minima, levels)
    )
    codes = np.empty(weights.shape, np.uint8)
    a = np.zeros(1, ARGS)
    a["weights"], a["scales"], a["minima"] = (x.ctypes.data for x in (weights, scales, minima))
    a["n_groups"], a["group"] = scales.size, weights.size // max(scales.size, 1)
    a["levels"], a["n_levels"] = levels.ctypes.data, len(levels)
    a["is_uniform"] = bool((np.diff(levels) == 1).all())
    a["codes"] = codes.ctypes.data
    nearest_codes(a.ctypes.data)
    return codes
