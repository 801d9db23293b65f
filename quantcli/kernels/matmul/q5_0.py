"""q5_0 in panels: a step is f16 d (16 rows), nibbles, high bits; weight = d * (code - 16)."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold
from quantcli.kernels.matmul.codes import (
    BITS_NBYTES,
    NIBBLES_NBYTES,
    f16_rows,
    five_bit_quad,
    get_bit,
    get_nibble,
    put_bit,
)
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

_CODES = 32
_HIGH = _CODES + NIBBLES_NBYTES


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: nibbles as they are, 32 high bits spread to bytes."""
    store_u16(dst + 2 * row, load_u16(src))
    for i in range(4):
        store_i32(dst + _CODES + 64 * i + 4 * row, load_i32(src + 6 + 4 * i))
    high = load_i32(src + 2)
    for k in range(32):
        put_bit(dst + _HIGH, row, k, (high >> k) & 1)


@inline
def unpack_block(block, row, out):
    """Write the 32 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    for k in range(32):
        code = get_nibble(block + _CODES, row, k) | (get_bit(block + _HIGH, row, k) << 4)
        store_f32(out + 4 * k, d * f32(code - 16))


PANEL = PanelFormat(
    name="q5_0",
    n_inputs=32,
    head_nbytes=0,
    step_nbytes=_HIGH + BITS_NBYTES,
    words=fold(16),
    head=lambda b, block: (),
    codes=lambda b, step, j: five_bit_quad(b, emit.at(b, step, _CODES), emit.at(b, step, _HIGH), j),
    scales=lambda b, head, step: [f16_rows(b, step)],
    minima=lambda b, head, step: [],
    max_code=31,
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
