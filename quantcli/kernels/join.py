"""Heads put together from parts of others: what latent attention needs around its products."""

from __future__ import annotations

import numpy as np

from quantcli.kernels.jit import inline, op
from quantcli.kernels.simd import (
    atomic_add,
    load_f32,
    load_f32x16,
    load_i64,
    store_f32,
    store_f32x16,
    view,
)

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("n_heads", "i8"),
        ("a", "i8"),  # address of the first head's part in the first row
        ("a_stride", "i8"),  # bytes between rows
        ("a_head_nbytes", "i8"),  # bytes between heads, 0 if all take the same
        ("a_width", "i8"),  # f32 of a head
        ("b", "i8"),  # likewise, what comes behind; 0 for nothing
        ("b_stride", "i8"),
        ("b_head_nbytes", "i8"),
        ("b_width", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
    ],
    align=True,
)


def reference(a, b=None):
    """Return f32 (rows, heads * width): parts f32 (rows, heads or 1, width) side by side."""
    parts = [a] if b is None else [a, b]
    n_heads = max(part.shape[1] for part in parts)
    parts = [np.broadcast_to(part, (len(part), n_heads, part.shape[2])) for part in parts]
    return np.concatenate(parts, axis=2).reshape(len(a), -1)


@inline
def _copy(x, out, width):
    """Copy a part of one head."""
    for i in range(width // 16):
        store_f32x16(out + 64 * i, load_f32x16(x + 64 * i))
    for i in range(width // 16 * 16, width):
        store_f32(out + 4 * i, load_f32(x + 4 * i))


@op
def join(args, thread, n_threads):
    """Put the heads of claimed rows together."""
    s = view(args, ARGS)
    n_rows = load_i64(s.n_rows)
    row = atomic_add(s.counter, 1)
    while row < n_rows:
        out = s.out + row * s.out_stride
        for head in range(s.n_heads):
            _copy(s.a + row * s.a_stride + head * s.a_head_nbytes, out, s.a_width)
            out += 4 * s.a_width
            if s.b != 0:
                _copy(s.b + row * s.b_stride + head * s.b_head_nbytes, out, s.b_width)
                out += 4 * s.b_width
        row = atomic_add(s.counter, 1)
