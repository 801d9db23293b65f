"""q8_0 in panels: a step is f16 d (16 rows), then bytes; weight = d * code."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold
from quantcli.kernels.matmul.codes import BYTES_NBYTES, byte_quad, f16_rows, get_byte, put_byte
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import (
    SIGNED_OFFSET,
    emit,
    load_f16,
    load_u8,
    load_u16,
    store_f32,
    store_u16,
)

_CODES = 32


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: codes get the offset that this machine's dot wants."""
    store_u16(dst + 2 * row, load_u16(src))
    for k in range(32):
        put_byte(dst + _CODES, row, k, load_u8(src + 2 + k) ^ SIGNED_OFFSET)


@inline
def unpack_block(block, row, out):
    """Write the 32 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    for k in range(32):
        code = get_byte(block + _CODES, row, k) ^ SIGNED_OFFSET
        store_f32(out + 4 * k, d * f32(((code + 128) & 255) - 128))


PANEL = PanelFormat(
    name="q8_0",
    n_inputs=32,
    head_nbytes=0,
    step_nbytes=_CODES + BYTES_NBYTES,
    words=fold(SIGNED_OFFSET),
    head=lambda b, block: (),
    codes=lambda b, step, j: byte_quad(b, emit.at(b, step, _CODES), j),
    scales=lambda b, head, step: [f16_rows(b, step)],
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
