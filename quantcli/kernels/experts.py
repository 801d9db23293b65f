"""Experts: each row chooses some, rows are sorted by expert, and what experts say is added up.

An entry is a row at one of its experts. Entries lie sorted by expert, so that an expert's entries
are a run: one product with one matrix, whose cost follows the experts that are used. Products of
entries do not depend on one another and a row's entries are added best expert first, so a row's
result has the same bits in any company.
"""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import inline, op
from quantcli.kernels.simd import (
    atomic_add,
    fma,
    hmax,
    hsum,
    lanes_between,
    load_f32,
    load_f32x16,
    load_i64,
    maximum,
    splat,
    splat_f32_at,
    store_f32,
    store_f32x16,
    store_i64,
    vdiv,
    view,
    vsub,
)
from quantcli.kernels.simd.math import exp, sigmoid

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 0, 1, 2  # what scores are made of logits
RUN_NBYTES = 24  # of a run: i64 expert, first entry, entries

ROUTE_ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("logits", "i8"),  # f32 (rows, logits_stride bytes apart)
        ("logits_stride", "i8"),
        ("n_experts", "i8"),
        ("n_used", "i8"),
        ("score", "i8"),
        ("bias", "i8"),  # f32 (n_experts padded to 16), or 0
        ("normalize", "i8"),
        ("scratch", "i8"),  # f32 (2, n_experts padded to 16), one a thread
        ("scratch_stride", "i8"),
        ("ids", "i8"),  # i64 (rows, n_used): experts of each row, best first
        ("weights", "i8"),  # f32 (rows, n_used)
        ("done", "i8"),  # i64: rows that are through
        ("next", "i8"),  # i64 (n_experts)
        ("runs", "i8"),  # i64 (most runs, 3), see RUN_NBYTES
        ("n_runs", "i8"),
        ("n_entries", "i8"),
        ("rows", "i8"),  # i64 (entries): the row of each
        ("places", "i8"),  # i64 (rows, n_used): the entry of each
        ("scale", "f4"),
    ],
    align=True,
)

MIX_ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("x", "i8"),  # f32 (entries, x_stride bytes apart)
        ("x_stride", "i8"),
        ("n_used", "i8"),
        ("places", "i8"),
        ("weights", "i8"),
        ("base", "i8"),  # f32 (rows, base_stride bytes apart) that sums are added to, or 0
        ("base_stride", "i8"),
        ("out", "i8"),  # may be base
        ("out_stride", "i8"),
        ("width", "i8"),  # f32 a row, a multiple of 16
    ],
    align=True,
)

NEG_INF, NAN, ZERO, ONE = f32(-np.inf), f32(np.nan), f32(0.0), f32(1.0)
LEAST_SUM = f32(2.0**-14)  # scores may all vanish; the bound is llama.cpp's


def reference(logits, n_used, score=SOFTMAX, *, bias=0.0, normalize=True, scale=1.0):
    """Return i64 (rows, n_used) experts, best first, and their f32 weights, computed in f64."""
    logits = np.float64(logits)
    scores = {
        SOFTMAX: lambda: _softmax(logits),
        SIGMOID: lambda: 1 / (1 + np.exp(-logits)),
        SOFTMAX_OF_CHOSEN: lambda: logits,
    }[score]()
    ids = np.argsort(-(scores + bias), axis=-1, kind="stable")[:, :n_used]
    weights = np.take_along_axis(scores, ids, axis=-1)
    weights = _softmax(weights) if score == SOFTMAX_OF_CHOSEN else weights
    if normalize:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 2.0**-14)
    return ids, (weights * scale).astype(np.float32)


def reference_mix(x, weights, base=0.0):
    """Return f32 (rows, width): entries f32 (rows, n_used, width) added up, computed in f64."""
    return (base + np.einsum("rew,re->rw", np.float64(x), np.float64(weights))).astype(np.float32)


def _softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@inline
def _exp(x):
    """Return e**x of one f32."""
    return hmax(exp(splat(x)))


@inline
def _write_scores(a, logits, scores):
    """Write the scores of a row, f32 (n_experts)."""
    n = a.n_experts
    top = splat(NEG_INF)
    if a.score == SOFTMAX:
        for i in range(0, n, 16):
            top = maximum(top, lanes_between(load_f32x16(logits + 4 * i), 0, n - i, NEG_INF))
    largest, total = splat(hmax(top)), splat(ZERO)
    for i in range(0, n, 16):
        v = load_f32x16(logits + 4 * i)
        if a.score == SOFTMAX:
            v = lanes_between(exp(vsub(v, largest)), 0, n - i, ZERO)
            total = total + v
        elif a.score == SIGMOID:
            v = sigmoid(v)
        store_f32x16(scores + 4 * i, v)
    if a.score == SOFTMAX:
        whole = splat(hsum(total))
        for i in range(0, n, 16):
            store_f32x16(scores + 4 * i, vdiv(load_f32x16(scores + 4 * i), whole))


@inline
def _write_merits(a, scores, merits):
    """Write what a row chooses by: scores with their bias, NaN as the worst."""
    for e in range(a.n_experts):
        merit = load_f32(scores + 4 * e)
        if a.bias != 0:
            merit += load_f32(a.bias + 4 * e)
        store_f32(merits + 4 * e, merit if merit == merit else NEG_INF)


@inline
def _take_best(a, merits):
    """Return the best expert not yet taken, the lower of equals; a merit of NaN marks it taken."""
    best, most = -1, NEG_INF
    for e in range(a.n_experts):
        merit = load_f32(merits + 4 * e)
        if merit == merit and (best < 0 or merit > most):
            best, most = e, merit
    store_f32(merits + 4 * best, NAN)
    return best


@inline
def _finish_weights(a, weights):
    """Turn the scores of a row's experts into weights."""
    n = a.n_used
    if a.score == SOFTMAX_OF_CHOSEN:
        top = load_f32(weights)
        total = ZERO
        for k in range(n):
            share = _exp(load_f32(weights + 4 * k) - top)
            store_f32(weights + 4 * k, share)
            total += share
        for k in range(n):
            store_f32(weights + 4 * k, load_f32(weights + 4 * k) / total)
    divisor = ONE
    if a.normalize != 0:
        total = ZERO
        for k in range(n):
            total += load_f32(weights + 4 * k)
        divisor = total if not total < LEAST_SUM else LEAST_SUM
    for k in range(n):
        store_f32(weights + 4 * k, load_f32(weights + 4 * k) / divisor * a.scale)


@inline
def _choose(a, row, scores):
    """Choose one row's experts."""
    padded = (a.n_experts + 15) // 16 * 16
    merits = scores + 4 * padded
    _write_scores(a, a.logits + row * a.logits_stride, scores)
    _write_merits(a, scores, merits)
    ids, weights = a.ids + 8 * row * a.n_used, a.weights + 4 * row * a.n_used
    for k in range(a.n_used):
        expert = _take_best(a, merits)
        store_i64(ids + 8 * k, expert)
        store_f32(weights + 4 * k, load_f32(scores + 4 * expert))
    _finish_weights(a, weights)


@inline
def _sort_entries(a, n_rows):
    """Sort entries by expert, those of one by row, and write down the runs."""
    n_entries = n_rows * a.n_used
    for e in range(a.n_experts):
        store_i64(a.next + 8 * e, 0)
    for i in range(n_entries):
        count = a.next + 8 * load_i64(a.ids + 8 * i)
        store_i64(count, load_i64(count) + 1)
    run, first = a.runs, 0
    for e in range(a.n_experts):
        count = load_i64(a.next + 8 * e)
        store_i64(a.next + 8 * e, first)
        if count > 0:
            store_i64(run, e)
            store_i64(run + 8, first)
            store_i64(run + 16, count)
            run += RUN_NBYTES
            first += count
    store_i64(a.n_runs, (run - a.runs) // RUN_NBYTES)
    store_i64(a.n_entries, n_entries)
    for i in range(n_entries):
        place = a.next + 8 * load_i64(a.ids + 8 * i)
        entry = load_i64(place)
        store_i64(place, entry + 1)
        store_i64(a.rows + 8 * entry, i // a.n_used)
        store_i64(a.places + 8 * i, entry)


@op
def route(args, thread, n_threads):
    """Choose the experts of claimed rows; whoever is through with the last row sorts them all."""
    a = view(args, ROUTE_ARGS)
    n_rows = load_i64(a.n_rows)
    scratch = a.scratch + a.scratch_stride * thread
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        _choose(a, row, scratch)
        if atomic_add(a.done, 1) == n_rows - 1:
            store_i64(a.done, 0)
            _sort_entries(a, n_rows)
        row = atomic_add(a.counter, 1)


@op
def mix(args, thread, n_threads):
    """Add up the entries of claimed rows by their weights, best expert first."""
    a = view(args, MIX_ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        places, weights = a.places + 8 * row * a.n_used, a.weights + 4 * row * a.n_used
        base, out = a.base + row * a.base_stride, a.out + row * a.out_stride
        for i in range(0, 4 * a.width, 64):
            total = splat(ZERO)
            for k in range(a.n_used):
                x = a.x + load_i64(places + 8 * k) * a.x_stride
                total = fma(load_f32x16(x + i), splat_f32_at(weights + 4 * k), total)
            if a.base != 0:
                total = load_f32x16(base + i) + total
            store_f32x16(out + i, total)
        row = atomic_add(a.counter, 1)
