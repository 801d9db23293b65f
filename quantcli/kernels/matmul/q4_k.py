"""q4_k in panels: f16 d, f16 dmin; 8 steps of u8 scale, u8 min (16 rows each), nibbles.

weight = d * scale * code - dmin * min; 4.625 bits a weight."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import SUM, PanelFormat
from quantcli.kernels.matmul.codes import (
    NIBBLES_NBYTES,
    get_nibble,
    nibble_quad,
    put_nibble,
)
from quantcli.kernels.matmul.k_scales import (
    DMIN,
    HEAD_NBYTES,
    MINIMA,
    head,
    minima,
    minimum_6bit,
    scale_6bit,
    scales,
)
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import emit, load_f16, load_u8, load_u16, store_f32, store_u8, store_u16

_CODES = 32  # after a scale and a minimum a row
_STEP = _CODES + NIBBLES_NBYTES


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of codes."""
    store_u16(dst + 2 * row, load_u16(src))
    store_u16(dst + DMIN + 2 * row, load_u16(src + 2))
    for s in range(8):
        step = dst + HEAD_NBYTES + s * _STEP
        store_u8(step + row, scale_6bit(src + 4, s))
        store_u8(step + MINIMA + row, minimum_6bit(src + 4, s))
        for k in range(32):
            byte = load_u8(src + 16 + 32 * (s // 2) + k)
            put_nibble(step + _CODES, row, k, (byte >> (4 * (s % 2))) & 15)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    dmin = load_f16(block + DMIN + 2 * row)
    for s in range(8):
        step = block + HEAD_NBYTES + s * _STEP
        scale = d * f32(load_u8(step + row))
        minimum = dmin * f32(load_u8(step + MINIMA + row))
        for k in range(32):
            code = f32(get_nibble(step + _CODES, row, k))
            store_f32(out + 4 * (32 * s + k), scale * code - minimum)


PANEL = PanelFormat(
    name="q4_k",
    n_inputs=256,
    head_nbytes=HEAD_NBYTES,
    step_nbytes=_STEP,
    words=SUM,
    head=head,
    codes=lambda b, step, j: nibble_quad(b, emit.at(b, step, _CODES), j),
    scales=scales,
    minima=minima,
    max_code=15,
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
