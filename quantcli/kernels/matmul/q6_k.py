"""q6_k in panels: f16 d; 8 steps of i8 scale for each half, nibbles, crumbs.

weight = d * scale * (code - 32)."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold_halves
from quantcli.kernels.matmul.codes import (
    CRUMBS_NBYTES,
    NIBBLES_NBYTES,
    crumb_quad,
    f16_rows,
    get_crumb,
    get_nibble,
    nibble_quad,
    put_crumb,
    put_nibble,
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
_HIGH = _CODES + NIBBLES_NBYTES
_STEP = _HIGH + CRUMBS_NBYTES


def _codes(b, step, j):
    low = nibble_quad(b, emit.at(b, step, _CODES), j)
    return b.or_(low, crumb_quad(b, emit.at(b, step, _HIGH), j, to_bit=4))


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: 128 bytes of low, 64 of high codes, 16 scales, d."""
    store_u16(dst + 2 * row, load_u16(src + 208))
    for s in range(8):
        step = dst + _HEAD + s * _STEP
        store_u8(step + row, load_u8(src + 192 + 2 * s))
        store_u8(step + 16 + row, load_u8(src + 192 + 2 * s + 1))
        quarter = s % 4
        low = src + 64 * (s // 4) + 32 * (quarter % 2)
        high = src + 128 + 32 * (s // 4)
        for k in range(32):
            put_nibble(step + _CODES, row, k, (load_u8(low + k) >> (4 * (quarter // 2))) & 15)
            put_crumb(step + _HIGH, row, k, (load_u8(high + k) >> (2 * quarter)) & 3)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    for s in range(8):
        step = block + _HEAD + s * _STEP
        for k in range(32):
            scale = d * f32(load_i8(step + 16 * (k // 16) + row))
            code = get_nibble(step + _CODES, row, k) | (get_crumb(step + _HIGH, row, k) << 4)
            store_f32(out + 4 * (32 * s + k), scale * f32(code - 32))


PANEL = PanelFormat(
    name="q6_k",
    n_inputs=256,
    head_nbytes=_HEAD,
    step_nbytes=_STEP,
    words=fold_halves(32),
    head=lambda b, block: (f16_rows(b, block),),
    codes=_codes,
    scales=half_scales,
    minima=lambda b, head, step: [],
    n_parts=2,
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
