"""iq1_m in panels of nibbles, see codebook: one scale for 16 weights."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.formats.codebooks import groups
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codebook import HEAD, SCALES, STEP_2, panel, put_eight, unpack
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import load_f16, load_u8, load_u16, store_f32, store_u8, store_u16

_GROUPS = groups("iq1_s")
# Eighths: -1, 0 or 1 and an eighth more, then the same and an eighth less.
_LEVELS = (-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0)


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: 32 groups, high bits and eighths; 16 scales, d in their top bits."""
    d, at = 0, dst + 4 * row
    for c in range(4):
        d |= (load_u16(src + 48 + 2 * c) >> 12) << (4 * c)
    store_u16(at, d)
    store_f32(at, load_f16(at) * f32(0.125))
    for s in range(8):
        step, scales = dst + HEAD + s * STEP_2, load_u16(src + 48 + 2 * (s // 2)) >> (6 * (s % 2))
        store_u8(step + row, 2 * (scales & 7) + 1)
        store_u8(step + SCALES + row, 2 * ((scales >> 3) & 7) + 1)
        for g in range(4):
            high = load_u8(src + 32 + 2 * s + g // 2) >> (4 * (g % 2))
            code = load_u8(src + 4 * s + g) | ((high & 7) << 8)
            signs = 255 * ((high >> 3) & 1)
            put_eight(step + 2 * SCALES, row, 8 * g, _GROUPS[code], signs)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    unpack(block, row, out, _LEVELS, 2)


PANEL = panel("iq1_m", _LEVELS, 2, pack_block, unpack_block)


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
