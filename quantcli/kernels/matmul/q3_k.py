"""q3_k in panels: f16 d; 8 steps of i8 scale for each half, crumbs, high bits.

weight = d * scale * (code - 4)."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold_halves
from quantcli.kernels.matmul.codes import (
    BITS_NBYTES,
    CRUMBS_NBYTES,
    bit_quad,
    crumb_quad,
    f16_rows,
    get_bit,
    get_crumb,
    put_bit,
    put_crumb,
)
from quantcli.kernels.matmul.k_scales import half_scales
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import (
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
_CODES = 32  # after one scale a row for each half
_HIGH = _CODES + CRUMBS_NBYTES
_STEP = _HIGH + BITS_NBYTES


def _codes(b, step, j):
    low = crumb_quad(b, emit.at(b, step, _CODES), j)
    return b.or_(low, bit_quad(b, emit.at(b, step, _HIGH), j, to_bit=2))


@inline
def _scale(scales, i):
    """Return scale i of 16: four low bits, then two high ones, less 32."""
    low = (load_u8(scales + i % 8) >> (4 * (i // 8))) & 15
    high = (load_u8(scales + 8 + i % 4) >> (2 * (i // 4))) & 3
    return (low | (high << 4)) - 32


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: 32 bytes of high bits, 64 of low codes, 12 of scales, d."""
    store_u16(dst + 2 * row, load_u16(src + 108))
    for s in range(8):
        step = dst + _HEAD + s * _STEP
        store_u8(step + row, _scale(src + 96, 2 * s))
        store_u8(step + 16 + row, _scale(src + 96, 2 * s + 1))
        for k in range(32):
            byte = load_u8(src + 32 + 32 * (s // 4) + k)
            put_crumb(step + _CODES, row, k, (byte >> (2 * (s % 4))) & 3)
            put_bit(step + _HIGH, row, k, (load_u8(src + k) >> s) & 1)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    for s in range(8):
        step = block + _HEAD + s * _STEP
        for k in range(32):
            scale = d * f32(load_i8(step + 16 * (k // 16) + row))
            code = get_crumb(step + _CODES, row, k) | (get_bit(step + _HIGH, row, k) << 2)
            store_f32(out + 4 * (32 * s + k), scale * f32(code - 4))


PANEL = PanelFormat(
    name="q3_k",
    n_inputs=256,
    head_nbytes=_HEAD,
    step_nbytes=_STEP,
    words=fold_halves(4),
    head=lambda b, block: (f16_rows(b, block),),
    codes=_codes,
    scales=half_scales,
    minima=lambda b, head, step: [],
    n_parts=2,
    max_code=7,
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
