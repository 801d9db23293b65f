"""Sums over rows of logits, for log-probabilities and KL divergence: one pass over each row.

A row is read in spans: its largest logit so far is what exponents are relative to, and the sums
are scaled down when a larger one comes. Sums are f64 in a fixed order, so that a row gives the
same bits on any number of threads. A NaN or +inf anywhere in a row makes its total NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy import float32 as f32
from numpy import float64 as f64

from quantcli.formats import F32
from quantcli.kernels.jit import inline, op
from quantcli.kernels.simd import (
    atomic_add,
    hmax,
    lanes_between,
    load_f32,
    load_f32x16,
    maximum,
    splat,
    view,
)
from quantcli.kernels.simd.doubles import (
    dadd,
    dexp,
    dmul,
    dsplat,
    dsub,
    dsum,
    weighted,
    widen,
)

F64 = npt.NDArray[np.float64]

MIN_WIDTH = 16  # logits a row must have
SPAN = 1024  # logits, 4 KB: stays in the nearest cache between the two looks at it
MINUS_INF = f32(-np.inf)
ZERO = f64(0.0)

# What is known of one row.
SUMS = np.dtype(
    [
        ("top", "f8"),  # its largest logit
        ("total", "f8"),  # sum of exp(logit - top)
        ("argmax", "i8"),  # the first logit that equals top
    ],
    align=True,
)

# What is known of a row and of another model's row for the same position, the base.
PAIR = np.dtype(
    [
        ("base", SUMS),
        ("row", SUMS),
        ("moment", "f8"),  # sum of exp(base - top of base) * (base - row)
    ],
    align=True,
)

SUMS_NBYTES = SUMS.itemsize
PAIR_NBYTES = PAIR.itemsize
assert PAIR.names is not None
assert PAIR.names[:2] == ("base", "row"), "compare writes them one behind the other"

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),
        ("width", "i8"),  # logits a row, at least MIN_WIDTH
        ("rows", "i8"),  # f32 (n_rows, width)
        ("stride", "i8"),  # bytes from row to row
        ("base", "i8"),  # the base's rows; only `compare` reads them
        ("base_stride", "i8"),
        ("out", "i8"),  # SUMS or PAIR (n_rows)
    ],
    align=True,
)


def reference(rows: F32) -> np.ndarray:
    """Return SUMS (n_rows,) of rows f32 (n_rows, width)."""
    sums = np.zeros(len(rows), SUMS)
    sums["top"] = rows.max(axis=1)
    origin = np.where(np.isneginf(sums["top"]), 0, sums["top"])
    with np.errstate(invalid="ignore"):
        sums["total"] = np.exp(rows - origin[:, None]).sum(axis=1)
    sums["argmax"] = rows.argmax(axis=1)
    return sums


def compare_reference(base: F32, rows: F32) -> np.ndarray:
    """Return PAIR (n_rows,) of two models' rows f32 (n_rows, width)."""
    pairs = np.zeros(len(rows), PAIR)
    pairs["base"], pairs["row"] = reference(base), reference(rows)
    with np.errstate(invalid="ignore"):
        weights = np.exp(base - pairs["base"]["top"][:, None])
        terms = np.where(weights == 0, 0, weights * (base.astype(np.float64) - rows))
    pairs["moment"] = terms.sum(axis=1)
    return pairs


@inline
def _load(row, start, width):
    """Load logits [start, start + 16), with -inf for those behind the end; reads none of them."""
    if start + 16 <= width:
        return load_f32x16(row + 4 * start)
    last = load_f32x16(row + 4 * (width - 16))
    return lanes_between(last, np.int32(start + 16 - width), np.int32(16), MINUS_INF)


@inline
def _largest(row, start, stop, width):
    """Return the largest of logits [start, stop); NaN is passed over."""
    largest = splat(MINUS_INF)
    for i in range(start, stop, 16):
        largest = maximum(_load(row, i, width), largest)
    return hmax(largest)


@inline
def _origin(top):
    """Return what to subtract from logits: never -inf, whose difference to -inf is NaN."""
    return dsplat(f64(top) if top > MINUS_INF else ZERO)


@inline
def _shrink(top, new_top):
    """Return exp(top - new_top) in all lanes; 0 where there was no top yet."""
    return dexp(dsplat(f64(top) - f64(new_top)))


@inline
def _write(out, row, width, top, total, start):
    """Store SUMS; the top lies in the span from `start` on."""
    i = start
    while i < width - 1 and load_f32(row + 4 * i) != top:
        i += 1
    sums = view(out, SUMS)
    sums.top = f64(top)
    sums.total = dsum(total)
    sums.argmax = i


@op
def log_sum_exp(args, thread, n_threads):
    """Write SUMS of claimed rows."""
    a = view(args, ARGS)
    width = a.width
    i = atomic_add(a.counter, 1)
    while i < a.n_rows:
        row = a.rows + i * a.stride
        top, top_start, total = MINUS_INF, 0, dsplat(ZERO)
        for start in range(0, width, SPAN):
            stop = min(start + SPAN, width)
            largest = _largest(row, start, stop, width)
            if largest > top:
                total = dmul(total, _shrink(top, largest))
                top, top_start = largest, start
            origin = _origin(top)
            for j in range(start, stop, 16):
                total = dadd(total, dexp(dsub(widen(_load(row, j, width)), origin)))
        _write(a.out + i * SUMS_NBYTES, row, width, top, total, top_start)
        i = atomic_add(a.counter, 1)


@op
def compare(args, thread, n_threads):
    """Write PAIR of claimed rows."""
    a = view(args, ARGS)
    width = a.width
    i = atomic_add(a.counter, 1)
    while i < a.n_rows:
        row, base = a.rows + i * a.stride, a.base + i * a.base_stride
        top, top_start, total = MINUS_INF, 0, dsplat(ZERO)
        base_top, base_start, base_total = MINUS_INF, 0, dsplat(ZERO)
        moment = dsplat(ZERO)
        for start in range(0, width, SPAN):
            stop = min(start + SPAN, width)
            largest = _largest(row, start, stop, width)
            if largest > top:
                total = dmul(total, _shrink(top, largest))
                top, top_start = largest, start
            largest = _largest(base, start, stop, width)
            if largest > base_top:
                shrink = _shrink(base_top, largest)
                base_total, moment = dmul(base_total, shrink), dmul(moment, shrink)
                base_top, base_start = largest, start
            origin, base_origin = _origin(top), _origin(base_top)
            for j in range(start, stop, 16):
                x, y = widen(_load(row, j, width)), widen(_load(base, j, width))
                weight = dexp(dsub(y, base_origin))
                total = dadd(total, dexp(dsub(x, origin)))
                base_total = dadd(base_total, weight)
                moment = dadd(moment, weighted(weight, dsub(y, x)))
        out = a.out + i * PAIR_NBYTES
        _write(out, base, width, base_top, base_total, base_start)
        _write(out + SUMS_NBYTES, row, width, top, total, top_start)
        view(out, PAIR).moment = dsum(moment)
        i = atomic_add(a.counter, 1)
