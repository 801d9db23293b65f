"""iq2_xs in panels of nibbles, see codebook: one scale for 16 weights."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.formats.codebooks import LEVELS_2, groups
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codebook import (
    HEAD,
    SCALES,
    STEP_2,
    even_signs,
    panel,
    put_eight,
    unpack,
    with_signs,
)
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import load_f16, load_u8, load_u16, store_f32, store_u8

_GROUPS = groups("iq2_xs")
_LEVELS = with_signs(LEVELS_2)


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, 32 groups with their signs, 16 scales of 4 bits."""
    store_f32(dst + 4 * row, load_f16(src) * f32(0.125))
    for s in range(8):
        step, scales = dst + HEAD + s * STEP_2, load_u8(src + 66 + s)
        store_u8(step + row, 2 * (scales & 15) + 1)
        store_u8(step + SCALES + row, 2 * (scales >> 4) + 1)
        for g in range(4):
            code = load_u16(src + 2 + 2 * (4 * s + g))
            signs = even_signs(code >> 9)
            put_eight(step + 2 * SCALES, row, 8 * g, _GROUPS[code & 511], signs)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    unpack(block, row, out, _LEVELS, 2)


PANEL = panel("iq2_xs", _LEVELS, 2, pack_block, unpack_block)


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
