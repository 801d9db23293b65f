"""Codes of weights on a grid that is given: the nearest level of each."""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import njit

NEAREST_ARGS = None


@njit
def nearest_codes(weights, scales, minima, levels, group, is_uniform, codes):
    """Fill codes u8 (n_rows, n_in) with the index of the level nearest to each weight."""
    n_rows, n_in = weights.shape
    last = f32(levels.size - 1)
    for row in range(n_rows):
        for g in range(n_in // group):
            scale, low = scales[row, g], minima[row, g]
            inverse = f32(1.0) / scale if scale != f32(0.0) else f32(0.0)
            if np.isinf(inverse):
                inverse = f32(0.0)
            if is_uniform:
                for i in range(g * group, (g + 1) * group):
                    y = (weights[row, i] + low) * inverse - levels[0]
                    y = min(max(y, f32(0.0)), last)
                    codes[row, i] = np.uint8(np.rint(y))
            else:
                for i in range(g * group, (g + 1) * group):
                    y = (weights[row, i] + low) * inverse
                    code = 0
                    for k in range(levels.size - 1):
                        code += y >= (levels[k] + levels[k + 1]) * f32(0.5)
                    codes[row, i] = np.uint8(code)
