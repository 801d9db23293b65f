"""iq1_s in panels of nibbles, see codebook: one scale for 32 weights."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.formats.codebooks import groups
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codebook import HEAD, SCALES, STEP_1, panel, put_eight, unpack
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import load_f16, load_u8, load_u16, store_f32, store_u8

_GROUPS = groups("iq1_s")
# Eighths: -1, 0 or 1 and an eighth more, then the same and an eighth less.
_LEVELS = (-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0)


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, 32 groups, then for 32 weights high bits, a scale, which eighth."""
    store_f32(dst + 4 * row, load_f16(src) * f32(0.125))
    for s in range(8):
        step, high = dst + HEAD + s * STEP_1, load_u16(src + 34 + 2 * s)
        store_u8(step + row, 2 * ((high >> 12) & 7) + 1)
        for g in range(4):
            code = load_u8(src + 2 + 4 * s + g) | (((high >> (3 * g)) & 7) << 8)
            put_eight(step + SCALES, row, 8 * g, _GROUPS[code], 255 * (high >> 15))


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    unpack(block, row, out, _LEVELS, 1)


PANEL = panel("iq1_s", _LEVELS, 1, pack_block, unpack_block)


@op
def pack(args, thread, n_threads):
    """Pack claimed panels."""
    pack_rows(args, PANEL)


@op
def matmul(args, thread, n_threads):
    """Multiply claimed panels by the step's tokens."""
    multiply(args, thread, PANEL)


@op
def embed(args, thread, n_threads):
    """Look claimed tokens' rows up."""
    lookup(args, PANEL)
