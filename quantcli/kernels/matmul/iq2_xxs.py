"""iq2_xxs in panels of nibbles, see codebook: one scale for 32 weights."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.formats.codebooks import LEVELS_2, groups
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codebook import (
    HEAD,
    SCALES,
    STEP_1,
    even_signs,
    load_u32,
    panel,
    put_eight,
    unpack,
    with_signs,
)
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import load_f16, load_u8, store_f32, store_u8

_GROUPS = groups("iq2_xxs")
_LEVELS = with_signs(LEVELS_2)


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, then for 32 weights four groups, and their signs with a scale."""
    store_f32(dst + 4 * row, load_f16(src) * f32(0.125))
    for s in range(8):
        step, at = dst + HEAD + s * STEP_1, src + 2 + 8 * s
        packed = load_u32(at + 4)
        store_u8(step + row, 2 * (packed >> 28) + 1)
        for g in range(4):
            signs = even_signs((packed >> (7 * g)) & 127)
            put_eight(step + SCALES, row, 8 * g, _GROUPS[load_u8(at + g)], signs)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    unpack(block, row, out, _LEVELS, 1)


PANEL = panel("iq2_xxs", _LEVELS, 1, pack_block, unpack_block)


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
