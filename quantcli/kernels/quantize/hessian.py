"""Adding up y x^T over tokens: with y = x, the second moments of a matrix's inputs.

The same tile as a matrix product, with columns in the place of rows and tokens in that of inputs:
a panel is 16 columns and a group TILE_TOKENS columns of all tokens. Only panels on and above the
diagonal are computed where y = x; whoever reads mirrors them.
"""

from __future__ import annotations

import numpy as np

from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.f32 import PANEL
from quantcli.kernels.matmul.tile import tile
from quantcli.kernels.simd import (
    TILE_TOKENS,
    atomic_add,
    load_f32,
    load_f32x16,
    splat,
    store_f32,
    store_f32x16,
    view,
)

PANEL_COLUMNS = 16
TOKENS_MULTIPLE = PANEL.n_inputs  # tokens are padded with zeros to a multiple of this

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("x", "i8"),  # f32 (n_tokens, x_stride bytes apart), columns padded to whole panels
        ("x_stride", "i8"),
        ("y", "i8"),  # as x; x itself for second moments
        ("y_stride", "i8"),
        ("is_full", "i8"),  # compute panels below the diagonal too
        ("n_tokens", "i8"),
        ("n_padded", "i8"),  # a multiple of TOKENS_MULTIPLE
        ("n_panels", "i8"),
        ("panels", "i8"),  # f32 (n_panels, n_padded, 16)
        ("groups", "i8"),  # f32 (columns / TILE_TOKENS, n_padded, TILE_TOKENS)
        ("out", "i8"),  # f32 (columns, columns), out_stride bytes apart; added to
        ("out_stride", "i8"),
    ],
    align=True,
)


def reference(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """Return y^T x, f64 (n_in, n_in), of f32 (n_tokens, n_in); y is x where it is not given."""
    return (x if y is None else y).astype(np.float64).T @ x.astype(np.float64)


@inline
def _lay_out_panel(a, panel):
    """Copy 16 columns of all tokens: those of x as a panel, those of y as groups."""
    to, group = a.panels + panel * a.n_padded * 64, a.groups + panel * a.n_padded * 64
    zero = splat(np.float32(0))
    for t in range(a.n_padded):
        at = to + 64 * t
        is_token = t < a.n_tokens
        store_f32x16(at, load_f32x16(a.x + t * a.x_stride + 64 * panel) if is_token else zero)
        y = a.y + t * a.y_stride + 64 * panel
        for c in range(16):
            g, lane = c // TILE_TOKENS, c % TILE_TOKENS
            value = load_f32(y + 4 * c) if is_token else np.float32(0)
            store_f32(group + 4 * ((g * a.n_padded + t) * TILE_TOKENS + lane), value)


@op
def lay_out(args, thread, n_threads):
    """Lay claimed panels out."""
    a = view(args, ARGS)
    panel = atomic_add(a.counter, 1)
    while panel < a.n_panels:
        _lay_out_panel(a, panel)
        panel = atomic_add(a.counter, 1)


@op
def add_outer(args, thread, n_threads):
    """Add claimed panels' products with groups, all or up to the diagonal, long ones first."""
    a = view(args, ARGS)
    group_nbytes = 4 * TILE_TOKENS * a.n_padded
    n_blocks = a.n_padded // TOKENS_MULTIPLE
    done = atomic_add(a.counter, 1)
    while done < a.n_panels:
        panel = a.n_panels - 1 - done
        weights = a.panels + panel * a.n_padded * 64
        n_panels = a.n_panels if a.is_full != 0 else panel + 1
        for g in range(n_panels * (16 // TILE_TOKENS)):
            out = a.out + g * TILE_TOKENS * a.out_stride + 64 * panel
            x = a.groups + g * group_nbytes
            tile(PANEL, TILE_TOKENS, weights, x, 0, 0, n_blocks, out, a.out_stride, 0, 1)
        done = atomic_add(a.counter, 1)
