"""The loops around a tile: groups of tokens, panels claimed by threads, packing, row lookup."""

from __future__ import annotations

import numpy as np

from quantcli.kernels.jit import inline
from quantcli.kernels.matmul import PANEL_ROWS
from quantcli.kernels.matmul.tile import pack_block, tile
from quantcli.kernels.simd import TILE_TOKENS, atomic_add, load_i64, view

# What a matmul op is told.
ARGS = np.dtype(
    [
        ("counter", "i8"),  # address of the op's work counter
        ("n_rows", "i8"),  # address of the number of tokens
        ("weights", "i8"),  # address of the first panel
        ("acts", "i8"),  # address of the activation groups
        ("acts_thread_stride", "i8"),  # bytes between threads' private activations
        ("private", "i8"),  # address of a word: nonzero while activations are private
        ("acts_row_nbytes", "i8"),  # bytes of activations a token
        ("acts_block_nbytes", "i8"),  # bytes of a block a token
        ("words", "i8"),  # this format's words in a block, bytes a token from its start
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("bias", "i8"),  # address of f32 (n_panels * 16) of the first matrix, or 0
        ("bias_stride", "i8"),  # bytes between matrices
        ("is_add", "i8"),
        ("n_panels", "i8"),
        ("panel_nbytes", "i8"),
        ("n_blocks", "i8"),
        ("n_shares", "i8"),  # runs of panels that belong to threads, each with a counter
        ("chunk", "i8"),  # panels claimed at a time
        ("runs", "i8"),  # runs of entries, one a matrix, see kernels.experts; or 0: one matrix
        ("n_runs", "i8"),  # address of their number
        ("is_shared", "i8"),  # a step's only row is laid out once for all runs
        ("n_heads", "i8"),  # matrices that each take all rows, or 0: runs say, or there is one
        ("out_head_nbytes", "i8"),  # bytes between what they write of a row
    ],
    align=True,
)


def reference(weights, x, bias=0.0, before=0.0):
    """Return x W^T + bias + before, f32 (rows, n_out), computed in f64.

    weights  f32 (n_out, n_in)   as `embed` looks them up
    x        f32 (rows, n_in)    as staged: codes times scales, or f32
    before   f32 (rows, n_out)   what `out` held, if the op adds
    """
    return (np.float64(x) @ np.float64(weights).T + bias + before).astype(np.float32)


# What a pack op is told.
PACK_ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("src", "i8"),  # address of the rows, as in the file
        ("dst", "i8"),  # address of the first panel; zeroed
        ("n_rows", "i8"),
        ("row_nbytes", "i8"),
        ("block_nbytes", "i8"),  # of the file's format
        ("n_blocks", "i8"),  # blocks in a row
        ("panel_block_nbytes", "i8"),
    ],
    align=True,
)

# How many panels a thread packs at a time.
_PACK_CHUNK = 4


# Group sizes: full tiles, then what is left in ever smaller ones. Literals, so that each gets a
# tile of its own; activations are laid out in the same groups.
FULL = TILE_TOKENS
HALF = max(TILE_TOKENS // 2, 1)
QUARTER = max(TILE_TOKENS // 4, 1)


@inline
def group_size(n_left):
    """Return how many tokens the next group takes when n_left are left."""
    if n_left >= FULL:
        return FULL
    if n_left >= HALF:
        return HALF
    if n_left >= QUARTER:
        return QUARTER
    return 1


@inline
def _multiply_panel(a, fmt, item, acts, private):
    """Multiply one panel by all groups of tokens that go to its matrix."""
    run, panel = item // a.n_panels, item % a.n_panels
    matrix, first, left = 0, 0, load_i64(a.n_rows)
    if a.runs != 0:
        at = a.runs + 24 * run
        matrix, first, left = load_i64(at), load_i64(at + 8), load_i64(at + 16)
    size, words, n_blocks = a.acts_block_nbytes, a.words, a.n_blocks
    stride, add = a.out_stride, a.is_add
    out = a.out + first * stride + panel * 64
    if a.n_heads != 0:
        matrix, first = run, run * left
        out = a.out + run * a.out_head_nbytes + panel * 64
    w = a.weights + (matrix * a.n_panels + panel) * a.panel_nbytes
    bias = a.bias + matrix * a.bias_stride + panel * 64 if a.bias != 0 else 0
    x = acts
    if a.is_shared == 0 or not private:
        x += first * a.acts_row_nbytes
    while left > 0:
        n = group_size(left)
        if n == FULL:
            tile(fmt, FULL, w, x, size, words, n_blocks, out, stride, bias, add)
        elif n == HALF:
            tile(fmt, HALF, w, x, size, words, n_blocks, out, stride, bias, add)
        elif n == QUARTER:
            tile(fmt, QUARTER, w, x, size, words, n_blocks, out, stride, bias, add)
        else:
            tile(fmt, 1, w, x, size, words, n_blocks, out, stride, bias, add)
        x += n * a.acts_row_nbytes
        out += n * stride
        left -= n


@inline
def multiply(args, thread, fmt):
    """Multiply claimed panels by all groups of tokens, of all matrices that tokens go to.

    Each thread has a run of panels of its own, so that it reads weights in one long stream; when
    it is through, it takes chunks from the runs of threads that are behind.
    """
    a = view(args, ARGS)
    private = load_i64(a.private) != 0
    acts = a.acts + (a.acts_thread_stride * thread if private else 0)
    n_panels = a.n_panels * (load_i64(a.n_runs) if a.runs != 0 else max(a.n_heads, 1))
    n_shares = a.n_shares
    for turn in range(n_shares):
        share = (thread + turn) % n_shares
        first, stop = n_panels * share // n_shares, n_panels * (share + 1) // n_shares
        while True:
            start = first + atomic_add(a.counter + 8 * share, a.chunk)
            if start >= stop:
                break
            for panel in range(start, min(start + a.chunk, stop)):
                _multiply_panel(a, fmt, panel, acts, private)


@inline
def pack_rows(args, fmt):
    """Pack claimed panels, block by block and row by row."""
    a = view(args, PACK_ARGS)
    n_panels = (a.n_rows + PANEL_ROWS - 1) // PANEL_ROWS
    while True:
        start = atomic_add(a.counter, _PACK_CHUNK)
        if start >= n_panels:
            return
        for panel in range(start, min(start + _PACK_CHUNK, n_panels)):
            n_lanes = min(PANEL_ROWS, a.n_rows - panel * PANEL_ROWS)
            for block in range(a.n_blocks):
                dst = a.dst + (panel * a.n_blocks + block) * a.panel_block_nbytes
                for lane in range(n_lanes):
                    row = panel * PANEL_ROWS + lane
                    src = a.src + row * a.row_nbytes + block * a.block_nbytes
                    pack_block(fmt, src, dst, lane)
