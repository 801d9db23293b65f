"""iq4_xs in panels: f16 d; 8 steps of i8 scale (16 rows), nibbles.

weight = d * scale * LEVELS[code], levels as in iq4_nl; 4.3125 bits a weight."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold
from quantcli.kernels.matmul.codes import (
    NIBBLES_NBYTES,
    f16_rows,
    get_nibble,
    i8_rows,
    put_nibble,
)
from quantcli.kernels.matmul.iq4_nl import LEVELS, level_quad
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import (
    SIGNED_OFFSET,
    emit,
    load_f16,
    load_i8,
    load_u8,
    load_u16,
    store_f32,
    store_u8,
    store_u16,
)

_HEAD = 32
_CODES = 16  # after a scale a row
_STEP = _CODES + NIBBLES_NBYTES


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, 2 bytes of high and 4 of low scale bits, 128 bytes of codes."""
    store_u16(dst + 2 * row, load_u16(src))
    high = load_u16(src + 2)
    for s in range(8):
        step = dst + _HEAD + s * _STEP
        low = (load_u8(src + 4 + s // 2) >> (4 * (s % 2))) & 15
        store_u8(step + row, (low | (((high >> (2 * s)) & 3) << 4)) - 32)
        for k in range(32):
            byte = load_u8(src + 8 + 16 * s + k % 16)
            put_nibble(step + _CODES, row, k, (byte >> (4 * (k // 16))) & 15)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    for s in range(8):
        step = block + _HEAD + s * _STEP
        scale = d * f32(load_i8(step + row))
        for k in range(32):
            level = f32(LEVELS[get_nibble(step + _CODES, row, k)])
            store_f32(out + 4 * (32 * s + k), scale * level)


PANEL = PanelFormat(
    name="iq4_xs",
    n_inputs=256,
    head_nbytes=_HEAD,
    step_nbytes=_STEP,
    words=fold(SIGNED_OFFSET),
    head=lambda b, block: (f16_rows(b, block),),
    codes=lambda b, step, j: level_quad(b, emit.at(b, step, _CODES), j),
    scales=lambda b, head, step: [b.fmul(head[0], i8_rows(b, step))],
    minima=lambda b, head, step: [],
    is_signed=True,
    pack_block=pack_block,
    unpack_block=unpack_block,
)


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
