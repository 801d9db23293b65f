"""Adding up what calibration tokens show about the inputs of matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantcli.errors import ModelError
from quantcli.formats import F32
from quantcli.kernels.quantize import hessian
from quantcli.quantize import Statistics
from quantcli.runtime.executor import OP, Executor, aligned

_PANEL = hessian.PANEL_COLUMNS


class Moments:
    """The second moments of one input buffer: its diagonal in f64, all of it in f32 if asked for.

    A sum over one call of `add` is f32 and is added to the others, so that rounding grows with the
    number of calls, not of tokens.
    """

    def __init__(
        self, n_in: int, executor: Executor, *, with_hessian: bool, with_drift: bool = False
    ) -> None:
        """Start with no tokens.

        with_drift  add up, too, how far inputs are from what they would be without any error
        """
        self.n_in = n_in
        self.n_tokens = 0
        self._squares: npt.NDArray[np.float64] = np.zeros(n_in, np.float64)
        self._width = -(-n_in // _PANEL) * _PANEL
        self._outer = _Outer(self._width, executor)
        shape = (self._width, self._width)
        self._sum = np.zeros(shape, np.float32) if with_hessian else None
        self._drift = np.zeros(shape, np.float32) if with_drift else None

    def add(self, x: F32, name: str = "the input", exact: F32 | None = None) -> None:
        """Count rows f32 (n_tokens, n_in). Raises ModelError if one of them is not finite.

        name   what the input is called in the error
        exact  the same rows as they would be without any error
        """
        assert x.shape[1] == self.n_in, (x.shape, self.n_in)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->j", x, x)
        if not np.isfinite(squares).all():
            raise _not_finite(x, name)
        self._squares += squares
        self.n_tokens += len(x)
        if self._sum is None:
            return
        rows = _padded(x, self._width)
        self._outer.add(rows, rows, self._sum)
        if self._drift is not None:
            assert exact is not None, name
            if not np.array_equal(exact, x):
                self._outer.add(rows, _padded(exact - x, self._width), self._drift)

    def statistics(self) -> Statistics:
        """Return the means over all tokens. The sums are used up."""
        n = max(self.n_tokens, 1)
        importance = (self._squares / n).astype(np.float32)
        if self._sum is None:
            return Statistics(importance, self.n_tokens)
        full, self._sum = self._sum, None
        _mirror(full)
        return Statistics(importance, self.n_tokens, self._mean(full))

    def drift(self) -> F32 | None:
        """Return the mean of (exact - x) x^T, f32 (n_in, n_in), or None where they are the same."""
        full, self._drift = self._drift, None
        return self._mean(full) if full is not None and full.any() else None

    def _mean(self, full: F32) -> F32:
        full *= np.float32(1 / max(self.n_tokens, 1))
        return full if self._width == self.n_in else full[: self.n_in, : self.n_in].copy()


class ExpertMoments:
    """The mean squares of what each of a stack of experts reads."""

    def __init__(self, n_experts: int, n_in: int) -> None:
        """Start with no rows."""
        self.counts: npt.NDArray[np.int64] = np.zeros(n_experts, np.int64)
        self._squares: npt.NDArray[np.float64] = np.zeros((n_experts, n_in), np.float64)

    @property
    def n_rows(self) -> int:
        """Rows that were counted; one that goes to several experts counts for each."""
        return int(self.counts.sum())

    def add(self, rows: F32, experts: npt.NDArray[np.int64], name: str = "the input") -> None:
        """Count rows f32 (n_rows, n_in) for the expert i64 (n_rows,) that each goes to.

        Raises ModelError if one of them is not finite.
        """
        for expert in np.unique(experts).tolist():
            mine = rows[experts == expert]
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.einsum("ij,ij->j", mine, mine)
            if not np.isfinite(squares).all():
                raise _not_finite(mine, f"{name}, expert {expert},")
            self._squares[expert] += squares
            self.counts[expert] += len(mine)

    def statistics(self) -> Statistics:
        """Return the means, f32 (n_experts, n_in); ones for an expert that saw nothing."""
        counts = self.counts[:, None]
        means = np.where(counts > 0, self._squares / np.maximum(counts, 1), 1)
        return Statistics(means.astype(np.float32), self.n_rows, counts=tuple(self.counts.tolist()))


class _Outer:
    """Adds y^T x of two sets of rows to a square, on an executor's threads."""

    def __init__(self, width: int, executor: Executor) -> None:
        self._width = width
        self._executor = executor
        self._room = 0
        self._panels: F32 = np.zeros(0, np.float32)
        self._groups: F32 = np.zeros(0, np.float32)

    def add(self, x: F32, y: F32, total: F32) -> None:
        multiple = hessian.TOKENS_MULTIPLE
        n_padded = -(-len(x) // multiple) * multiple
        if n_padded > self._room:
            self._room = n_padded
            self._panels = np.empty(n_padded * self._width, np.float32)
            self._groups = np.empty(n_padded * self._width, np.float32)
        kernels = (hessian.lay_out, hessian.add_outer)
        ops = aligned(OP, len(kernels))
        args = np.zeros(len(kernels), hessian.ARGS)
        for i, kernel in enumerate(kernels):
            a = args[i]
            a["counter"] = ops.ctypes.data + i * OP.itemsize
            a["x"], a["x_stride"], a["n_tokens"] = x.ctypes.data, x.strides[0], len(x)
            a["y"], a["y_stride"], a["is_full"] = y.ctypes.data, y.strides[0], y is not x
            a["n_padded"], a["n_panels"] = n_padded, self._width // _PANEL
            a["panels"], a["groups"] = self._panels.ctypes.data, self._groups.ctypes.data
            a["out"], a["out_stride"] = total.ctypes.data, total.strides[0]
            ops[i]["kernel"] = kernel.address
            ops[i]["args"] = args.ctypes.data + i * hessian.ARGS.itemsize
            ops[i]["barrier"] = 1
        self._executor.run(ops)


def _padded(x: F32, width: int) -> F32:
    """Return rows of a width with zeros behind them, as they are where they have it."""
    if x.shape[1] == width and x.strides[1] == 4 and x.dtype == np.float32:
        return x
    rows = np.zeros((len(x), width), np.float32)
    rows[:, : x.shape[1]] = x
    return rows


def _mirror(square: F32, step: int = 512) -> None:
    """Copy what is above the diagonal of a matrix below it, in tiles."""
    n = len(square)
    for row in range(0, n, step):
        rows = slice(row, min(row + step, n))
        tile = square[rows, rows]
        above = np.triu(tile)
        tile[...] = above + np.triu(above, 1).T
        for column in range(rows.stop, n, step):
            columns = slice(column, min(column + step, n))
            square[columns, rows] = square[rows, columns].T


def _not_finite(x: F32, name: str) -> ModelError:
    bad = np.argwhere(~np.isfinite(x))
    if not len(bad):
        return ModelError(
            f"{name} holds values whose squares overflow: the largest is {np.abs(x).max():g}. "
            "The model is damaged, or cannot run in single precision."
        )
    row, column = (int(i) for i in bad[0])
    return ModelError(
        f"{name} holds {x[row, column]} at position {row}, value {column}, and {len(bad)} such in "
        f"{len(x)} tokens. A weight before it is damaged: 'quantcli eval' on the source shows the "
        "same; download it again."
    )
