"""iq3_s in panels of nibbles, see codebook: one scale for 32 weights."""

from __future__ import annotations

from quantcli.formats.codebooks import LEVELS_3_S, groups
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codebook import (
    HEAD,
    SCALES,
    STEP_1,
    panel,
    put_four,
    unpack,
    with_signs,
)
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import load_f16, load_u8, store_f32, store_u8

_GROUPS = groups("iq3_s")
_LEVELS = with_signs(LEVELS_3_S)


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, 64 groups, their high bits, signs, 8 scales of 4 bits."""
    store_f32(dst + 4 * row, load_f16(src))
    for s in range(8):
        step, high = dst + HEAD + s * STEP_1, load_u8(src + 66 + s)
        scale = (load_u8(src + 106 + s // 2) >> (4 * (s % 2))) & 15
        store_u8(step + row, 2 * scale + 1)
        for g in range(8):
            signs = load_u8(src + 74 + 4 * s + g // 2) >> (4 * (g % 2))
            code = load_u8(src + 2 + 8 * s + g) | (((high >> g) & 1) << 8)
            put_four(step + SCALES, row, 4 * g, _GROUPS[code], signs)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    unpack(block, row, out, _LEVELS, 1)


PANEL = panel("iq3_s", _LEVELS, 1, pack_block, unpack_block)


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
