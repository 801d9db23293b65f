"""tq1_0 in the panels of tq2_0: the same weights, two bits each in place of 1.6."""

from __future__ import annotations

from dataclasses import replace

from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.codes import CRUMBS_NBYTES, put_crumb
from quantcli.kernels.matmul.rows import pack_rows
from quantcli.kernels.matmul.tq2_0 import HEAD, embed, matmul
from quantcli.kernels.matmul.tq2_0 import PANEL as LIKE
from quantcli.kernels.simd import load_u8, load_u16, store_u16

__all__ = ["PANEL", "embed", "matmul", "pack"]

_POWERS = (1, 3, 9, 27, 81)


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: 48 bytes of five codes, 4 of four, d."""
    store_u16(dst + 2 * row, load_u16(src + 52))
    for i in range(256):
        if i < 160:
            byte, place = i % 32, i // 32
        elif i < 240:
            byte, place = 32 + i % 16, (i - 160) // 16
        else:
            byte, place = 48 + i % 4, (i - 240) // 4
        code = (3 * ((load_u8(src + byte) * _POWERS[place]) & 255)) >> 8
        put_crumb(dst + HEAD + i // 32 * CRUMBS_NBYTES, row, i % 32, code)


PANEL = replace(LIKE, name="tq1_0", pack_block=pack_block)


@op
def pack(args, thread, n_threads):
    """Pack claimed panels."""
    pack_rows(args, PANEL)
