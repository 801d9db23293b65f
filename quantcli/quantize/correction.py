"""Moving weights so that they make up for the errors of the layers before.

A matrix W should give W x for the inputs x of the original model, but reads y, the inputs that its
quantized predecessors make. The W' with least |W x - W' y|^2 over the calibration tokens is
W + W D H^-1, with D the mean of (x - y) y^T and H that of y y^T; rounding W' in the metric of H is
then all that is left to do. As in GPTAQ (Li et al. 2025, arXiv 2504.02692) and Qronos (Zhang et al.
2025, arXiv 2505.11695), which interleave it with rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantcli.formats import F32

# Added to the diagonal of H, in parts of it and of its mean: D is known from the same tokens, and
# what it says of inputs that hardly occur is chance.
RIDGE = 0.05
DAMPING = 0.01
_WIDE = 4096  # inputs above which all is in f32, to save memory


def corrected(weights: list[F32], hessian: F32, drift: F32) -> list[F32]:
    """Return new matrices f32 (n_out, n_in) of one input that make up for its errors.

    hessian  f32 (n_in, n_in)   mean of y y^T
    drift    f32 (n_in, n_in)   mean of (x - y) y^T

    They come back as they are where the system cannot be solved.
    """
    n = len(hessian)
    kind: type[np.floating[Any]] = np.float64 if n <= _WIDE else np.float32
    system: npt.NDArray[Any] = hessian.astype(kind)
    diagonal = np.diag(hessian).astype(np.float64)
    system[np.diag_indices(n)] += RIDGE * diagonal + DAMPING * diagonal.mean()
    n_rows = sum(map(len, weights))
    try:
        if n_rows < n:
            stacked = np.concatenate(weights) @ drift
            moves = np.linalg.solve(system, stacked.T.astype(kind)).T.astype(np.float32)
            starts = np.cumsum([len(weight) for weight in weights])[:-1]
            parts = np.split(moves, starts)
        else:
            transfer = np.linalg.solve(system, drift.T.astype(kind)).T.astype(np.float32)
            parts = [weight @ transfer for weight in weights]
    except np.linalg.LinAlgError:
        return [weight.copy() for weight in weights]
    if not all(np.isfinite(part).all() for part in parts):
        return [weight.copy() for weight in weights]
    return [weight + part for weight, part in zip(weights, parts, strict=True)]
