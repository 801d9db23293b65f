"""Per-head work between the q, k, v products and attention: norm, rotate, store k and v.

One item is one head of one row, so a single row still has work for several threads.
"""

from __future__ import annotations

import numpy as np

from quantcli.kernels.activations import rms_scale
from quantcli.kernels.jit import inline, op
from quantcli.kernels.kv_cache import KV_FORMATS, store_key, store_value
from quantcli.kernels.simd import (
    atomic_add,
    even_lanes,
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    odd_lanes,
    splat_f32_at,
    store_f32,
    store_f32x16,
    view,
    vmul,
    vsub,
    zip_high,
    zip_low,
)

NONE, NORM, NEOX = 0, 1, 2  # which pairs rotate: none, (2i, 2i + 1), (i, i + n_rot / 2)

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("positions", "i8"),  # i64 (rows): address of the positions
        ("tables", "i8"),  # i64 (rows): address of each row's page table
        ("q", "i8"),  # f32 (rows, q_stride bytes apart); normed and rotated in place
        ("k", "i8"),
        ("v", "i8"),
        ("q_stride", "i8"),
        ("k_stride", "i8"),
        ("v_stride", "i8"),
        ("n_heads", "i8"),
        ("n_kv_heads", "i8"),
        ("head_dim", "i8"),
        ("value_dim", "i8"),
        ("q_norm", "i8"),  # f32 (head_dim), or 0
        ("k_norm", "i8"),
        ("norm_last", "i8"),  # norm what is rotated, not the other way round
        ("style", "i8"),
        ("start", "i8"),  # first dimension that rotates
        ("n_rot", "i8"),
        ("angles", "i8"),  # f32 (context, n_rot): cosines then sines of a position
        ("temperatures", "i8"),  # f32 (context): factor on q at each position, or 0
        ("k_pages", "i8"),
        ("v_pages", "i8"),
        ("page_nbytes", "i8"),  # of keys
        ("value_page_nbytes", "i8"),
        ("page_size", "i8"),
        ("record_nbytes", "i8"),
        ("value_record_nbytes", "i8"),
        ("scratch", "i8"),
        ("scratch_stride", "i8"),
        ("eps", "f4"),
        ("chunk", "i4"),  # items claimed at a time
    ],
    align=True,
)


def reference(x, angles, style=NEOX, *, norm=None, eps=0.0, norm_last=False, start=0):
    """Return normed and rotated heads of q or k: f32 (rows, heads, head_dim), computed in f64.

    angles  f32 (rows, n_rot)   cosines then sines
    """
    x = np.float64(x)
    if norm is not None and not norm_last:
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * norm
    half = angles.shape[1] // 2
    cos, sin = np.float64(angles[:, None, :half]), np.float64(angles[:, None, half:])
    middle, stop = start + half, start + 2 * half
    a, b = {
        NEOX: np.s_[start:middle, middle:stop],
        NORM: np.s_[start:stop:2, start + 1 : stop : 2],
    }[style]
    y = x.copy()
    y[..., a], y[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., a] * sin + x[..., b] * cos
    if norm is not None and norm_last:
        y = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + eps) * norm
    return y.astype(np.float32)


@inline
def _norm_head(x, weight, head_dim, eps):
    scale = rms_scale(x, head_dim, head_dim, eps)
    for i in range(head_dim // 16):
        v = vmul(load_f32x16(x + 64 * i), scale)
        store_f32x16(x + 64 * i, vmul(v, load_f32x16(weight + 64 * i)))


@inline
def _rotate_neox(x, cos, sin, half):
    """Rotate pairs (i, i + half)."""
    for i in range(half // 16):
        c, s = load_f32x16(cos + 64 * i), load_f32x16(sin + 64 * i)
        a, b = load_f32x16(x + 64 * i), load_f32x16(x + 4 * half + 64 * i)
        store_f32x16(x + 64 * i, vsub(vmul(a, c), vmul(b, s)))
        store_f32x16(x + 4 * half + 64 * i, fma(a, s, vmul(b, c)))
    for i in range(half // 16 * 16, half):
        c, s = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
        a, b = load_f32(x + 4 * i), load_f32(x + 4 * (half + i))
        store_f32(x + 4 * i, a * c - b * s)
        store_f32(x + 4 * (half + i), a * s + b * c)


@inline
def _rotate_norm(x, cos, sin, half):
    """Rotate pairs (2i, 2i + 1)."""
    for i in range(half // 16):
        c, s = load_f32x16(cos + 64 * i), load_f32x16(sin + 64 * i)
        low, high = load_f32x16(x + 128 * i), load_f32x16(x + 128 * i + 64)
        a, b = even_lanes(low, high), odd_lanes(low, high)
        first, second = vsub(vmul(a, c), vmul(b, s)), fma(a, s, vmul(b, c))
        store_f32x16(x + 128 * i, zip_low(first, second))
        store_f32x16(x + 128 * i + 64, zip_high(first, second))
    for i in range(half // 16 * 16, half):
        c, s = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
        a, b = load_f32(x + 8 * i), load_f32(x + 8 * i + 4)
        store_f32(x + 8 * i, a * c - b * s)
        store_f32(x + 8 * i + 4, a * s + b * c)


@inline
def _rotate(a, x, position):
    half = a.n_rot // 2
    cos = a.angles + position * a.n_rot * 4
    sin = cos + half * 4
    x = x + 4 * a.start
    if a.style == NEOX:
        _rotate_neox(x, cos, sin, half)
    elif a.style == NORM:
        _rotate_norm(x, cos, sin, half)


@inline
def _place(a, x, norm, position):
    """Norm and rotate one head, in the order the model wants."""
    if norm != 0 and a.norm_last == 0:
        _norm_head(x, norm, a.head_dim, a.eps)
    _rotate(a, x, position)
    if norm != 0 and a.norm_last != 0:
        _norm_head(x, norm, a.head_dim, a.eps)


@inline
def _warm(a, x, position):
    """Multiply one head of q by its position's factor."""
    factor = splat_f32_at(a.temperatures + 4 * position)
    for i in range(a.head_dim // 16):
        store_f32x16(x + 64 * i, vmul(load_f32x16(x + 64 * i), factor))


@inline
def _record(a, pages, page_nbytes, record_nbytes, row, position, head):
    """Return the address of the record that a row's key or value of one head goes to."""
    table = load_i64(a.tables + 8 * row)
    page = load_i64(table + 8 * (position // a.page_size))
    in_page = position % a.page_size
    records = a.page_size // 16
    return pages + page * page_nbytes + (head * records + in_page // 16) * record_nbytes


@inline
def prepare(args, thread, kv):
    """Norm and rotate the heads of q and k, and store k and v, for claimed heads of all rows."""
    a = view(args, ARGS)
    n_slots = a.n_heads + 2 * a.n_kv_heads
    n_items = load_i64(a.n_rows) * n_slots
    dim = a.head_dim
    scratch = a.scratch + a.scratch_stride * thread
    while True:
        start = atomic_add(a.counter, a.chunk)
        if start >= n_items:
            return
        for item in range(start, min(start + a.chunk, n_items)):
            row, slot = item // n_slots, item % n_slots
            position = load_i64(a.positions + 8 * row)
            if slot < a.n_heads:
                x = a.q + row * a.q_stride + 4 * slot * dim
                _place(a, x, a.q_norm, position)
                if a.temperatures != 0:
                    _warm(a, x, position)
            elif slot < a.n_heads + a.n_kv_heads:
                head = slot - a.n_heads
                x = a.k + row * a.k_stride + 4 * head * dim
                _place(a, x, a.k_norm, position)
                sizes = a.page_nbytes, a.record_nbytes
                record = _record(a, a.k_pages, sizes[0], sizes[1], row, position, head)
                store_key(kv, x, record, position % 16, dim, scratch)
            else:
                head = slot - a.n_heads - a.n_kv_heads
                x = a.v + row * a.v_stride + 4 * head * a.value_dim
                sizes = a.value_page_nbytes, a.value_record_nbytes
                record = _record(a, a.v_pages, sizes[0], sizes[1], row, position, head)
                store_value(kv, x, record, position % 16, a.value_dim, scratch)


_F16, _Q8_0 = KV_FORMATS["f16"], KV_FORMATS["q8_0"]


@op
def prepare_f16(args, thread, n_threads):
    """Prepare heads for a half-precision cache."""
    prepare(args, thread, _F16)


@op
def prepare_q8_0(args, thread, n_threads):
    """Prepare heads for an 8-bit cache."""
    prepare(args, thread, _Q8_0)


PREPARE = {"f16": prepare_f16, "q8_0": prepare_q8_0}
