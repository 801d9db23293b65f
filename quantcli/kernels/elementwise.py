"""Row-wise ops that move or combine f32 rows: select, add, norm, scale, soft cap, gate."""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.activations import rms_scale
from quantcli.kernels.jit import op
from quantcli.kernels.simd import (
    atomic_add,
    load_f32x16,
    load_i64,
    splat,
    store_f32x16,
    vdiv,
    view,
    vmul,
)
from quantcli.kernels.simd.math import gelu_tanh, silu, tanh

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("rows", "i8"),  # i64 (rows): which rows of x to take, for `select`
        ("x", "i8"),
        ("y", "i8"),
        ("out", "i8"),
        ("x_stride", "i8"),
        ("y_stride", "i8"),
        ("out_stride", "i8"),
        ("width", "i8"),  # f32 a row, a multiple of 16
        ("n_true", "i8"),  # values that count for a mean
        ("norm", "i8"),  # f32 (width)
        ("value", "f4"),  # eps, factor or cap
    ],
    align=True,
)

ONE = f32(1.0)


@op
def select(args, thread, n_threads):
    """Copy chosen rows."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x = a.x + load_i64(a.rows + 8 * row) * a.x_stride
        for i in range(a.width // 16):
            store_f32x16(a.out + row * a.out_stride + 64 * i, load_f32x16(x + 64 * i))
        row = atomic_add(a.counter, 1)


@op
def add(args, thread, n_threads):
    """Add two rows."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, y, out = a.x + row * a.x_stride, a.y + row * a.y_stride, a.out + row * a.out_stride
        for i in range(a.width // 16):
            store_f32x16(out + 64 * i, load_f32x16(x + 64 * i) + load_f32x16(y + 64 * i))
        row = atomic_add(a.counter, 1)


@op
def add_norm(args, thread, n_threads):
    """Add the norm of y to x: a residual behind a post-norm."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, y, out = a.x + row * a.x_stride, a.y + row * a.y_stride, a.out + row * a.out_stride
        scale = rms_scale(y, a.width, a.n_true, a.value)
        for i in range(a.width // 16):
            normed = vmul(vmul(load_f32x16(y + 64 * i), scale), load_f32x16(a.norm + 64 * i))
            store_f32x16(out + 64 * i, load_f32x16(x + 64 * i) + normed)
        row = atomic_add(a.counter, 1)


@op
def rms_norm(args, thread, n_threads):
    """Normalise rows."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, out = a.x + row * a.x_stride, a.out + row * a.out_stride
        scale = rms_scale(x, a.width, a.n_true, a.value)
        for i in range(a.width // 16):
            v = vmul(load_f32x16(x + 64 * i), scale)
            store_f32x16(out + 64 * i, vmul(v, load_f32x16(a.norm + 64 * i)))
        row = atomic_add(a.counter, 1)


@op
def scale(args, thread, n_threads):
    """Multiply rows by a number."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, out = a.x + row * a.x_stride, a.out + row * a.out_stride
        for i in range(a.width // 16):
            store_f32x16(out + 64 * i, vmul(load_f32x16(x + 64 * i), splat(a.value)))
        row = atomic_add(a.counter, 1)


@op
def softcap(args, thread, n_threads):
    """Squash values into (-cap, cap)."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    cap = splat(a.value)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, out = a.x + row * a.x_stride, a.out + row * a.out_stride
        for i in range(a.width // 16):
            store_f32x16(out + 64 * i, vmul(cap, tanh(vdiv(load_f32x16(x + 64 * i), cap))))
        row = atomic_add(a.counter, 1)


@op
def gated_silu(args, thread, n_threads):
    """Multiply y by silu(x)."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, y, out = a.x + row * a.x_stride, a.y + row * a.y_stride, a.out + row * a.out_stride
        for i in range(a.width // 16):
            store_f32x16(out + 64 * i, vmul(silu(load_f32x16(x + 64 * i)), load_f32x16(y + 64 * i)))
        row = atomic_add(a.counter, 1)


@op
def gated_gelu_tanh(args, thread, n_threads):
    """Multiply y by gelu(x)."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, y, out = a.x + row * a.x_stride, a.y + row * a.y_stride, a.out + row * a.out_stride
        for i in range(a.width // 16):
            g = gelu_tanh(load_f32x16(x + 64 * i))
            store_f32x16(out + 64 * i, vmul(g, load_f32x16(y + 64 * i)))
        row = atomic_add(a.counter, 1)
