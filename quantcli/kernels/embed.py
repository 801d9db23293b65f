"""Embedding lookup: the row of a packed matrix that a token id chooses."""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import inline
from quantcli.kernels.matmul import PANEL_ROWS
from quantcli.kernels.matmul.tile import unpack_block
from quantcli.kernels.simd import (
    atomic_add,
    load_f32x16,
    load_i64,
    splat,
    store_f32x16,
    view,
    vmul,
)

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("tokens", "i8"),  # i64 (rows): token ids, checked by the caller
        ("weights", "i8"),  # address of the first panel
        ("panel_nbytes", "i8"),
        ("block_nbytes", "i8"),
        ("n_blocks", "i8"),
        ("block_inputs", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("scale", "f4"),
    ],
    align=True,
)

ONE = f32(1.0)


def reference(weights, tokens, scale=1.0):
    """Return f32 (rows, width): the rows of f32 (n_vocab, width) that tokens choose, scaled."""
    return weights[tokens] * f32(scale)


@inline
def lookup(args, fmt):
    """Write the rows of claimed tokens."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        token = load_i64(a.tokens + 8 * row)
        panel = a.weights + token // PANEL_ROWS * a.panel_nbytes
        out = a.out + row * a.out_stride
        for block in range(a.n_blocks):
            at = out + 4 * block * a.block_inputs
            unpack_block(fmt, panel + block * a.block_nbytes, token % PANEL_ROWS, at)
        if a.scale != ONE:
            for i in range(a.n_blocks * a.block_inputs // 16):
                v = load_f32x16(out + 64 * i)
                store_f32x16(out + 64 * i, vmul(v, splat(a.scale)))
        row = atomic_add(a.counter, 1)
