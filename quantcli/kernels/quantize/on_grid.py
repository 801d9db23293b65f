"""Levels and their codes, sixteen at a time: of whole numbers in a row, or of a table."""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import inline
from quantcli.kernels.quantize.lanes import clamp, round_even
from quantcli.kernels.simd import load_f32, select_less, splat, splat_f32_at


def reference(y: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the index of the level nearest to each y, the lower of two as near for a table."""
    exact = y.astype(np.float64)[..., None] - levels.astype(np.float64)
    return np.abs(exact).argmin(axis=-1)


@inline
def nearest_code(y, levels, n_levels, is_uniform):
    """Return the index of the level nearest to y, as f32; 0 where y is NaN."""
    one, zero = splat(f32(1.0)), splat(f32(0.0))
    if is_uniform != 0:
        top = splat(f32(n_levels - 1))
        return round_even(clamp(y - splat_f32_at(levels), zero, top))
    code = zero
    for k in range(n_levels - 1):
        middle = (load_f32(levels + 4 * k) + load_f32(levels + 4 * (k + 1))) * f32(0.5)
        code = code + select_less(splat(middle), y, one, zero)
    return code


@inline
def level_of(code, levels, n_levels, is_uniform):
    """Return the level with an index that is given as f32."""
    if is_uniform != 0:
        return code + splat_f32_at(levels)
    value = splat_f32_at(levels)
    for k in range(1, n_levels):
        value = select_less(splat(f32(k) - f32(0.5)), code, splat_f32_at(levels + 4 * k), value)
    return value
