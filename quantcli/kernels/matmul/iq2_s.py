"""iq2_s in panels of nibbles, see codebook: the panels of iq2_xs."""

from __future__ import annotations

from dataclasses import replace

from numpy import float32 as f32

from quantcli.formats.codebooks import groups
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codebook import HEAD, SCALES, STEP_2, put_eight
from quantcli.kernels.matmul.iq2_xs import PANEL as LIKE
from quantcli.kernels.matmul.iq2_xs import embed, matmul
from quantcli.kernels.matmul.rows import pack_rows
from quantcli.kernels.simd import load_f16, load_u8, store_f32, store_u8

__all__ = ["PANEL", "embed", "matmul", "pack"]

_GROUPS = groups("iq2_s")


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, 32 groups, signs, high bits of groups, 16 scales of 4 bits."""
    store_f32(dst + 4 * row, load_f16(src) * f32(0.125))
    for s in range(8):
        step, scales = dst + HEAD + s * STEP_2, load_u8(src + 74 + s)
        store_u8(step + row, 2 * (scales & 15) + 1)
        store_u8(step + SCALES + row, 2 * (scales >> 4) + 1)
        high = load_u8(src + 66 + s)
        for g in range(4):
            code = load_u8(src + 2 + 4 * s + g) | (((high >> (2 * g)) & 3) << 8)
            signs = load_u8(src + 34 + 4 * s + g)
            put_eight(step + 2 * SCALES, row, 8 * g, _GROUPS[code], signs)


PANEL = replace(LIKE, name="iq2_s", pack_block=pack_block)


@op
def pack(args, thread, n_threads):
    """Pack claimed panels."""
    pack_rows(args, PANEL)
