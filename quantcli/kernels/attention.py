"""Attention over a paged KV cache, with sliding window, soft cap and sinks.

Keys are taken in chunks of CHUNK_KEYS that start at fixed absolute positions. Each chunk gives a
maximum, a sum and a weighted value; chunks are folded left to right. The order is the same when
one thread does all chunks of a row and when many threads share them, and does not depend on which
rows are computed together, so a row's result has the same bits however it is scheduled.
"""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.attention_tiles import score_tile, value_tile
from quantcli.kernels.jit import inline, op
from quantcli.kernels.kv_cache import KV_FORMATS
from quantcli.kernels.matmul.rows import FULL, HALF, QUARTER, group_size
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
    store_f32,
    store_f32x16,
    store_i64,
    vdiv,
    view,
    vmul,
    vsub,
)
from quantcli.kernels.simd.math import exp, tanh

CHUNK_KEYS = 256

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("positions", "i8"),  # i64 (rows)
        ("tables", "i8"),  # i64 (rows): address of each row's page table
        ("n_tiles", "i8"),  # address of the number of tiles
        ("tile_starts", "i8"),  # i64 (tiles): first row; rows of a tile follow one another in
        ("tile_rows", "i8"),  # i64 (tiles): one sequence, and are at most max_tile_rows
        ("max_chunks", "i8"),  # address of the most chunks a row has; at most max_split_chunks
        ("q", "i8"),  # f32 (rows, q_stride bytes apart)
        ("q_stride", "i8"),
        ("out", "i8"),  # f32 (rows, out_stride bytes apart)
        ("out_stride", "i8"),
        ("n_heads", "i8"),
        ("n_kv_heads", "i8"),
        ("head_dim", "i8"),
        ("value_dim", "i8"),  # at most head_dim
        ("window", "i8"),  # keys a row sees, itself included; 0: all
        ("sinks", "i8"),  # f32 (n_heads), or 0
        ("k_pages", "i8"),
        ("v_pages", "i8"),
        ("page_nbytes", "i8"),  # of keys
        ("value_page_nbytes", "i8"),
        ("page_size", "i8"),
        ("record_nbytes", "i8"),
        ("value_record_nbytes", "i8"),
        ("scratch", "i8"),  # a thread's own, see SCRATCH below
        ("scratch_stride", "i8"),
        ("partials", "i8"),  # chunk results of items that threads share
        ("split_items", "i8"),  # share chunks when a step has fewer items than this
        ("done", "i8"),  # i64 (split_items): chunks finished
        ("scale", "f4"),
        ("softcap", "f4"),
    ],
    align=True,
)

NEG_INF, ZERO, ONE = f32(-np.inf), f32(0.0), f32(1.0)


def reference(q, k, v, positions, scale, *, window=0, softcap=0.0, sinks=None):
    """Return attention by its definition: f32 (rows, n_heads, head_dim), computed in f64.

    q      f32 (rows, n_heads, head_dim)
    k, v   f32 (keys, n_kv_heads, head_dim)   as they are read back from the cache; values may be
           narrower, and so is the result then
    """
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.float64(x), group, axis=1) for x in (k, v))
    scores = np.einsum("rhd,khd->rhk", np.float64(q), k) * scale
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    ago = np.asarray(positions)[:, None, None] - np.arange(len(k))
    scores = np.where((ago >= 0) & (ago < (window or np.inf)), scores, -np.inf)
    extra = np.full((1, q.shape[1], 1), -np.inf) if sinks is None else sinks[None, :, None]
    top = np.maximum(scores.max(axis=-1, keepdims=True), extra)
    share = np.exp(scores - top)
    share /= share.sum(axis=-1, keepdims=True) + np.exp(extra - top)
    return np.einsum("rhk,khd->rhd", share, v).astype(np.float32)


def scratch_nbytes(head_dim: int) -> int:
    """Return the bytes of scratch a thread needs for a group of up to FULL entries.

    Running results f32 (FULL, head_dim + 16), queries f32 (head_dim, FULL), scores
    f32 (FULL, CHUNK_KEYS), chunk results f32 (FULL, head_dim + 16). A result row is the weighted
    value, then its maximum and sum; values are no wider than keys.
    """
    return 4 * FULL * (2 * (head_dim + 16) + head_dim + CHUNK_KEYS)


def partials_nbytes(split_items: int, max_chunks: int, group: int, head_dim: int) -> int:
    """Return the bytes of chunk results that threads may share."""
    return 4 * split_items * max_chunks * group * (head_dim + 16)


@inline
def _load_queries(a, queries, row, head, first, n):
    """Interleave n entries of a tile, from entry `first`: f32 (head_dim, n)."""
    group = a.n_heads // a.n_kv_heads
    for e in range(n):
        entry = first + e
        x = a.q + (row + entry // group) * a.q_stride
        x += 4 * (head * group + entry % group) * a.head_dim
        for d in range(a.head_dim):
            store_f32(queries + 4 * (d * n + e), load_f32(x + 4 * d))


@inline
def _score_record(a, kv, n, keys, queries, out):
    """Dot 16 keys with a group of n entries."""
    stride = 4 * CHUNK_KEYS
    if n == FULL:
        score_tile(kv, FULL, keys, queries, a.head_dim, out, stride)
    elif n == HALF:
        score_tile(kv, HALF, keys, queries, a.head_dim, out, stride)
    elif n == QUARTER:
        score_tile(kv, QUARTER, keys, queries, a.head_dim, out, stride)
    else:
        score_tile(kv, 1, keys, queries, a.head_dim, out, stride)


@inline
def _value_record(a, kv, n, values, n_keys, weights, out):
    """Add 16 weighted values to a group of n entries, 32 dimensions at a time, then 16."""
    ws, os, dims = 4 * CHUNK_KEYS, 4 * (a.value_dim + 16), a.value_dim
    for d in range(0, dims // 32 * 32, 32):
        o = out + 4 * d
        if n == FULL:
            value_tile(kv, FULL, 2, values, dims, d, n_keys, weights, ws, o, os)
        elif n == HALF:
            value_tile(kv, HALF, 2, values, dims, d, n_keys, weights, ws, o, os)
        elif n == QUARTER:
            value_tile(kv, QUARTER, 2, values, dims, d, n_keys, weights, ws, o, os)
        else:
            value_tile(kv, 1, 2, values, dims, d, n_keys, weights, ws, o, os)
    if dims % 32 != 0:
        d = dims // 32 * 32
        for e in range(n):
            w, o = weights + e * ws, out + e * os + 4 * d
            value_tile(kv, 1, 1, values, dims, d, n_keys, w, ws, o, os)


@inline
def _softmax_chunk(a, scores, start, first, last, key_start, key_stop):
    """Turn one entry's scores of records [first, last) into weights; return maximum and sum.

    Keys outside [key_start, key_stop) weigh exactly 0. Without a key inside, the sum is 0 and the
    weights are not to be used.
    """
    top = splat(NEG_INF)
    scale, cap = splat(a.scale), splat(a.softcap)
    for r in range(first, last):
        s = vmul(load_f32x16(scores + 64 * r), scale)
        if a.softcap != ZERO:
            s = vmul(cap, tanh(vdiv(s, cap)))
        base = start + 16 * r
        s = lanes_between(s, key_start - base, key_stop - base, NEG_INF)
        store_f32x16(scores + 64 * r, s)
        top = maximum(top, s)
    largest = hmax(top)
    total = splat(ZERO)
    for r in range(first, last):
        p = exp(vsub(load_f32x16(scores + 64 * r), splat(largest)))
        store_f32x16(scores + 64 * r, p)
        total = total + p
    is_empty = key_start >= start + 16 * last or key_stop <= start + 16 * first
    return largest, ZERO if is_empty else hsum(total)


@inline
def _chunk_results(a, kv, row, head, first_entry, n, chunk, queries, scores, results):
    """Write the results of one chunk for a group of n entries of a tile: see scratch_nbytes."""
    group = a.n_heads // a.n_kv_heads
    start = chunk * CHUNK_KEYS
    table = load_i64(a.tables + 8 * row)
    last_position = load_i64(a.positions + 8 * (row + (first_entry + n - 1) // group))
    first_position = load_i64(a.positions + 8 * (row + first_entry // group))
    stop = min(start + CHUNK_KEYS, last_position + 1)
    begin = max(start, first_position + 1 - a.window) if a.window > 0 else start
    first, last = (begin - start) // 16, (stop - start + 15) // 16
    records = a.page_size // 16
    for r in range(first, last):
        key = start + 16 * r
        page = load_i64(table + 8 * (key // a.page_size))
        at = (head * records + key % a.page_size // 16) * a.record_nbytes
        keys = a.k_pages + page * a.page_nbytes + at
        _score_record(a, kv, n, keys, queries, scores + 64 * r)
    row_nbytes = 4 * (a.value_dim + 16)
    for e in range(n):
        position = load_i64(a.positions + 8 * (row + (first_entry + e) // group))
        key_start = max(0, position + 1 - a.window) if a.window > 0 else 0
        result = results + e * row_nbytes
        largest, total = _softmax_chunk(
            a, scores + 4 * CHUNK_KEYS * e, start, first, last, key_start, position + 1
        )
        for d in range(a.value_dim // 16):
            store_f32x16(result + 64 * d, splat(ZERO))
        store_f32(result + 4 * a.value_dim, largest)
        store_f32(result + 4 * a.value_dim + 4, total)
    for r in range(first, last):
        key = start + 16 * r
        page = load_i64(table + 8 * (key // a.page_size))
        at = (head * records + key % a.page_size // 16) * a.value_record_nbytes
        values = a.v_pages + page * a.value_page_nbytes + at
        _value_record(a, kv, n, values, min(16, stop - key), scores + 64 * r, results)


@inline
def _clear(result, head_dim):
    """Make a running result that holds nothing."""
    for d in range(head_dim // 16):
        store_f32x16(result + 64 * d, splat(ZERO))
    store_f32(result + 4 * head_dim, NEG_INF)
    store_f32(result + 4 * head_dim + 4, ZERO)


@inline
def _fold(running, chunk, head_dim):
    """Fold one chunk's result into a running one; a chunk without keys changes nothing."""
    m, weight = load_f32(running + 4 * head_dim), load_f32(running + 4 * head_dim + 4)
    m_new, weight_new = load_f32(chunk + 4 * head_dim), load_f32(chunk + 4 * head_dim + 4)
    if m_new == NEG_INF and weight_new == ZERO:  # a NaN may leave no maximum, but it has a weight
        return
    top = m_new if m_new > m else m
    if m_new != m_new:
        top = m_new
    keep, take = exp(splat(m - top)), exp(splat(m_new - top))
    for d in range(head_dim // 16):
        old = vmul(load_f32x16(running + 64 * d), keep)
        store_f32x16(running + 64 * d, fma(load_f32x16(chunk + 64 * d), take, old))
    store_f32(running + 4 * head_dim, top)
    total = fma(splat(weight_new), take, vmul(splat(weight), keep))
    store_f32(running + 4 * head_dim + 4, hmax(total))


@inline
def _finish(a, running, row, head, entry):
    """Divide by the sum, the sink's share included, and write one head of one row."""
    group = a.n_heads // a.n_kv_heads
    query_head = head * group + entry % group
    m, weight = load_f32(running + 4 * a.value_dim), load_f32(running + 4 * a.value_dim + 4)
    keep, total = splat(ONE), splat(weight)
    if a.sinks != 0:
        sink = load_f32(a.sinks + 4 * query_head)
        top = sink if sink > m else m
        keep = exp(splat(m - top))
        total = vmul(total, keep) + exp(splat(sink - top))
    factor = vdiv(keep, total)
    out = a.out + (row + entry // group) * a.out_stride + 4 * query_head * a.value_dim
    for d in range(a.value_dim // 16):
        # Adding +0 turns -0 into +0: keys of other rows in a tile may have decided its sign.
        value = vmul(load_f32x16(running + 64 * d), factor) + splat(ZERO)
        store_f32x16(out + 64 * d, value)


@inline
def _first_chunk(a, row):
    """Return the first chunk a row sees."""
    if a.window == 0:
        return 0
    return max(0, load_i64(a.positions + 8 * row) + 1 - a.window) // CHUNK_KEYS


@inline
def _attend_tile(a, kv, row, n_rows, head, scratch):
    """Do all chunks of all entries of one tile and one kv head."""
    group = a.n_heads // a.n_kv_heads
    row_nbytes = 4 * (a.value_dim + 16)
    queries = scratch + FULL * row_nbytes
    scores = queries + 4 * FULL * a.head_dim
    results = scores + 4 * FULL * CHUNK_KEYS
    n_entries = n_rows * group
    entry = 0
    while entry < n_entries:
        n = group_size(n_entries - entry)
        _load_queries(a, queries, row, head, entry, n)
        for e in range(n):
            _clear(scratch + e * row_nbytes, a.value_dim)
        first = _first_chunk(a, row + entry // group)
        last = load_i64(a.positions + 8 * (row + (entry + n - 1) // group)) // CHUNK_KEYS
        for chunk in range(first, last + 1):
            _chunk_results(a, kv, row, head, entry, n, chunk, queries, scores, results)
            for e in range(n):
                _fold(scratch + e * row_nbytes, results + e * row_nbytes, a.value_dim)
        for e in range(n):
            _finish(a, scratch + e * row_nbytes, row, head, entry + e)
        entry += n


@inline
def _attend_shared(a, kv, item, chunk, scratch):
    """Do one chunk of one row and kv head; whoever does an item's last chunk folds them all."""
    row, head = load_i64(a.tile_starts + 8 * (item // a.n_kv_heads)), item % a.n_kv_heads
    n_chunks = load_i64(a.positions + 8 * row) // CHUNK_KEYS + 1
    if chunk >= n_chunks:
        return
    group = a.n_heads // a.n_kv_heads
    row_nbytes = 4 * (a.value_dim + 16)
    queries = scratch + FULL * row_nbytes
    scores = queries + 4 * FULL * a.head_dim
    most = load_i64(a.max_chunks)
    partials = a.partials + item * most * group * row_nbytes
    first = _first_chunk(a, row)
    if chunk >= first:
        entry = 0
        while entry < group:
            n = group_size(group - entry)
            _load_queries(a, queries, row, head, entry, n)
            results = partials + (chunk * group + entry) * row_nbytes
            _chunk_results(a, kv, row, head, entry, n, chunk, queries, scores, results)
            entry += n
    if atomic_add(a.done + 8 * item, 1) != n_chunks - 1:
        return
    store_i64(a.done + 8 * item, 0)
    for e in range(group):
        _clear(scratch, a.value_dim)
        for c in range(first, n_chunks):
            _fold(scratch, partials + (c * group + e) * row_nbytes, a.value_dim)
        _finish(a, scratch, row, head, e)


@inline
def attend(args, thread, kv):
    """Compute attention for claimed tiles and kv heads, or chunks of them when they are few."""
    a = view(args, ARGS)
    n_tiles = load_i64(a.n_tiles)
    n_items = n_tiles * a.n_kv_heads
    most = load_i64(a.max_chunks)
    scratch = a.scratch + a.scratch_stride * thread
    if n_items < a.split_items and most > 1:
        item = atomic_add(a.counter, 1)
        while item < n_items * most:
            _attend_shared(a, kv, item // most, item % most, scratch)
            item = atomic_add(a.counter, 1)
        return
    item = atomic_add(a.counter, 1)
    while item < n_items:
        tile = n_tiles - 1 - item // a.n_kv_heads  # late rows have most keys: start with them
        row, n_rows = load_i64(a.tile_starts + 8 * tile), load_i64(a.tile_rows + 8 * tile)
        _attend_tile(a, kv, row, n_rows, item % a.n_kv_heads, scratch)
        item = atomic_add(a.counter, 1)


_F16, _Q8_0 = KV_FORMATS["f16"], KV_FORMATS["q8_0"]


@op
def attention_f16(args, thread, n_threads):
    """Attention over a half-precision cache."""
    attend(args, thread, _F16)


@op
def attention_q8_0(args, thread, n_threads):
    """Attention over an 8-bit cache."""
    attend(args, thread, _Q8_0)


ATTENTION = {"f16": attention_f16, "q8_0": attention_q8_0}
