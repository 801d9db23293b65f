"""What quantizing costs a matrix: its output error, relative to its output."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantcli.errors import ModelError
from quantcli.formats import F32, BlockFormat
from quantcli.qtensor import U8, QTensor

_SLAB = 2**18  # weights compared at a time


def energy(weight: F32, importance: F32 | None) -> float:
    """Return sum_ij h_j W_ij ** 2: the mean square of the outputs, were the inputs uncorrelated.

    weight      f32 (n_rows, n_in)
    importance  f32 (n_in,), h; None for ones
    """
    if importance is None:
        flat = np.ascontiguousarray(weight)
        return float(np.vdot(flat, flat))
    squares = np.einsum("ij,ij->j", weight, weight)
    return float(np.dot(squares.astype(np.float64), importance.astype(np.float64)))


def error_energy(weight: F32, data: U8, fmt: BlockFormat, importance: F32 | None) -> float:
    """Return the energy of what encoding took away: sum_ij h_j (W_ij - Q_ij) ** 2.

    data  u8 (nbytes,)   the blocks of `weight`
    """
    n_rows, n_in = weight.shape
    encoded = QTensor("", weight.shape, fmt, data)
    total = 0.0
    step = max(1, _SLAB // n_in)
    for start in range(0, n_rows, step):
        stop = min(n_rows, start + step)
        difference = encoded.rows(start, stop).dequantize()
        difference -= weight[start:stop]
        total += energy(difference, importance)
    return total


def check_finite(
    values: npt.NDArray[np.floating], name: str, row_start: int = 0, what: str = "weight"
) -> None:
    """Raise ModelError that names the first value that is NaN or infinite, if one is.

    values     (n_rows, n_in) or (n,), of which the first row is row `row_start` of the tensor
    """
    # one pass without a temporary array; squares that overflow are looked at closely
    flat = values.reshape(-1)
    if np.isfinite(np.vdot(flat, flat)):
        return
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):
        return
    first = tuple(int(i) for i in bad[0])
    where = f"row {first[0] + row_start}, column {first[1]}" if len(first) > 1 else f"{first[0]}"
    more = f" (and {len(bad) - 1} more near it)" if len(bad) > 1 else ""
    raise ModelError(
        f"{name}: the {what} at {where} is {float(values[first])}{more}; every {what} must be a "
        "finite number. The file is damaged: convert or download it again."
    )
