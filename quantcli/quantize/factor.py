"""The Hessian of a matrix's inputs, made ready for GPTQ: regularized, put in order, factored.

Order. Rounding column i costs R_ii^2, with H = R R^T and R upper triangular, and R_ii^2 is what
is left of H_ii once the columns after i have made good what they can. The last columns cannot pass
their errors on, so they should be cheap: from the end, the block with the least left on its
diagonal is placed, then eliminated from the others. This is sorted QR (Wubben et al. 2001), block
by block, since the columns of a block share scales; within a block it is column by column.

Regularization. H is a mean over a limited number of tokens: shrinking it toward its own diagonal
takes back correlations that are chance. Wholly shrunk, it is the importance matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantcli.formats import F32
from quantcli.kernels.quantize.gptq import operand

I64 = npt.NDArray[np.int64]
Float = npt.NDArray[Any]  # f64, or f32 where that would take too much memory

_WIDE = 4096  # inputs above which the factorization is in f32, to save memory
_MAX_TRIES = 10
_SLAB_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Factor:
    """A Hessian ready for use. Blocks are listed in the order of work.

    width       columns of a block
    order       i64 (n_in,)             columns in the order of work
    blocks      i64 (n_blocks,)         which block of the matrix each is
    inner       i64 (n_blocks, width)   the order of columns in each
    carried     for each block, R of the columns before it and its own, as `gptq.operand`
    factors     for each block, f32 (width, width): its own R, transposed
    operands    for each block, H of all columns and its own, as `gptq.operand`
    hessians    for each block, f32 (width, width): its own H
    importance  f32 (n_in,)   R_ii ** 2, by column of the matrix
    added       f32 (n_in,)   what regularizing added to (1 - shrink) H, in the order of work
    shrink, damping   how much it was regularized
    """

    width: int
    order: I64
    blocks: I64
    inner: I64
    carried: list[F32]
    factors: list[F32]
    operands: list[F32]
    hessians: list[F32]
    importance: F32
    added: F32
    shrink: float
    damping: float


def default_shrink(n_in: int, n_tokens: int) -> float:
    """Return how far to shrink: less the more tokens there are for each input."""
    return float(np.clip(1 / (1 + n_tokens / (2 * n_in)), 0.02, 0.5))


def factorize(hessian: F32, width: int, *, shrink: float, damping: float) -> Factor | None:
    """Return a Hessian f32 (n_in, n_in) ready for use, or None if no damping makes it definite.

    width    columns of a block, a divisor of n_in
    shrink   share of each off-diagonal element that is taken off
    damping  what is added to the diagonal, relative to its mean; doubled until it suffices
    """
    diagonal = np.diag(hessian).astype(np.float64)
    mean = float(diagonal.mean())
    if not 0 < mean < np.inf:
        return None
    for _ in range(_MAX_TRIES):
        added = shrink * diagonal + damping * mean
        try:
            placed = _Placed(hessian, width, shrink, added)
        except np.linalg.LinAlgError:
            damping *= 2
            continue
        return placed.factor(hessian, shrink, damping, added)
    return None


class _Placed:
    """Blocks placed from the last to the first, each eliminated from those that are left."""

    def __init__(self, hessian: F32, width: int, shrink: float, added: Float) -> None:
        n = len(hessian)
        self.width = width
        self.n_blocks = n // width
        work: Float = hessian.astype(np.float64) if n <= _WIDE else hessian.copy()
        work *= np.float32(1 - shrink)
        work[np.diag_indices(n)] += added
        self._work: Float = work
        self._columns = np.arange(n)
        self.own: list[Float] = [work] * self.n_blocks
        self._before: list[tuple[F32, I64]] = [(hessian, self._columns)] * self.n_blocks
        for k in reversed(range(self.n_blocks)):
            self._place(k)

    def _place(self, k: int) -> None:
        """Choose the block for place k, factor it, and eliminate it."""
        width = self.width
        start, stop = k * width, (k + 1) * width
        left = np.diag(self._work)[:stop].reshape(k + 1, width).sum(axis=1)
        self._swap(int(left.argmin()), k)
        inner = _cheapest_last(self._work[start:stop, start:stop])
        self._work[start:stop, :stop] = self._work[start:stop, :stop][inner]
        self._work[:stop, start:stop] = self._work[:stop, start:stop][:, inner]
        self._columns[start:stop] = self._columns[start:stop][inner]
        own = upper_cholesky(self._work[start:stop, start:stop].astype(np.float64))
        # A_b = R_b R_bb^T for the columns b of the block and the rows before it
        inverse: Float = np.linalg.inv(own).T.astype(self._work.dtype)
        before: Float = self._work[:start, start:stop] @ inverse
        for row in range(0, start, _SLAB_ROWS):
            rows = slice(row, min(row + _SLAB_ROWS, start))
            self._work[rows, :start] -= before[rows] @ before.T
        self.own[k] = own
        self._before[k] = (before.astype(np.float32), self._columns[:start].copy())

    def _swap(self, block: int, k: int) -> None:
        """Exchange two blocks of what is left."""
        if block == k:
            return
        stop = (k + 1) * self.width
        a, b = (slice(i * self.width, (i + 1) * self.width) for i in (block, k))
        work, columns = self._work, self._columns
        work[a, :stop], work[b, :stop] = work[b, :stop].copy(), work[a, :stop].copy()
        work[:stop, a], work[:stop, b] = work[:stop, b].copy(), work[:stop, a].copy()
        columns[a], columns[b] = columns[b].copy(), columns[a].copy()

    def factor(self, hessian: F32, shrink: float, damping: float, added: Float) -> Factor:
        """Return everything in the order of work."""
        order, width = self._columns, self.width
        del self._work
        blocks = order.reshape(-1, width)[:, 0] // width
        importance = np.empty(len(order), np.float32)
        importance[order] = np.concatenate([np.diag(own) ** 2 for own in self.own])
        carried, operands, hessians = [], [], []
        place = np.empty(len(order), np.int64)
        for k in range(self.n_blocks):
            before, columns = self._before[k]
            self._before[k] = (hessian, order)  # let go of it
            place[columns] = np.arange(len(columns))
            carried.append(operand(before[place[order[: k * width]]]))
            mine = slice(k * width, (k + 1) * width)
            part = hessian[np.ix_(order, order[mine])] * np.float32(1 - shrink)
            part[np.arange(mine.start, mine.stop), np.arange(width)] += added[order[mine]]
            operands.append(operand(part))
            hessians.append(np.ascontiguousarray(part[mine]))
        return Factor(
            width=width,
            order=order,
            blocks=blocks,
            inner=order.reshape(-1, width) % width,
            carried=carried,
            factors=[np.ascontiguousarray(own.T, np.float32) for own in self.own],
            operands=operands,
            hessians=hessians,
            importance=importance,
            added=added[order].astype(np.float32),
            shrink=shrink,
            damping=damping,
        )


def upper_cholesky(matrix: Float) -> Float:
    """Return R, upper triangular, with R R^T = matrix. Raises LinAlgError if it is not definite."""
    lower = np.linalg.cholesky(matrix[::-1, ::-1])
    if not np.isfinite(lower).all():
        raise np.linalg.LinAlgError("not finite")
    return np.ascontiguousarray(lower[::-1, ::-1])


def _cheapest_last(matrix: Float) -> I64:
    """Return an order of columns: from the end, the least of what is left on the diagonal."""
    left = matrix.astype(np.float64)
    order = []
    free = np.ones(len(left), bool)
    for _ in range(len(left)):
        diagonal = np.where(free, np.diag(left), np.inf)
        column = int(diagonal.argmin())
        order.append(column)
        free[column] = False
        if not diagonal[column] > 0:
            raise np.linalg.LinAlgError("not definite")
        row = left[column] / np.sqrt(diagonal[column])
        left -= np.outer(row, row)
    return np.array(order[::-1])
