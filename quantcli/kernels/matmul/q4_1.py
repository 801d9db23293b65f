"""q4_1 in panels: a step is f16 d, f16 m (16 rows each), nibbles; weight = d * code + m."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import SUM, PanelFormat
from quantcli.kernels.matmul.codes import NIBBLES_NBYTES, f16_rows, get_nibble, nibble_quad
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import (
    emit,
    load_f16,
    load_i32,
    load_u16,
    store_f32,
    store_i32,
    store_u16,
)

_M, _CODES = 32, 64


@inline
def pack_block(src, dst, row):
    """Copy a block of a row: the file pairs inputs i and i + 16 in a byte, as a panel does."""
    store_u16(dst + 2 * row, load_u16(src))
    store_u16(dst + _M + 2 * row, load_u16(src + 2))
    for i in range(4):
        store_i32(dst + _CODES + 64 * i + 4 * row, load_i32(src + 4 + 4 * i))


@inline
def unpack_block(block, row, out):
    """Write the 32 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    m = load_f16(block + _M + 2 * row)
    for k in range(32):
        store_f32(out + 4 * k, d * f32(get_nibble(block + _CODES, row, k)) + m)


PANEL = PanelFormat(
    name="q4_1",
    n_inputs=32,
    head_nbytes=0,
    step_nbytes=_CODES + NIBBLES_NBYTES,
    words=SUM,
    head=lambda b, block: (),
    codes=lambda b, step, j: nibble_quad(b, emit.at(b, step, _CODES), j),
    scales=lambda b, head, step: [f16_rows(b, step)],
    minima=lambda b, head, step: [f16_rows(b, step, _M)],
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
