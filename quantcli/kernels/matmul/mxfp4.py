"""mxfp4 in panels: a step is u8 e (16 rows), then nibbles; weight = 2**(e - 128) * LEVELS[code].

Twice the values of a 4-bit float are whole numbers within +-12, so that plus 12 they are unsigned
codes; they are looked up in a register.
"""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.formats.mxfp4 import LEVELS as FLOATS
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold
from quantcli.kernels.matmul.codes import NIBBLES_NBYTES, get_nibble, nibble_quad
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import (
    emit,
    load_f32,
    load_i32,
    load_u8,
    machine,
    store_f32,
    store_i32,
    store_u8,
)
from quantcli.kernels.simd.vectors import F32X16, I8X16, I32X16

LEVELS = tuple(int(level) for level in FLOATS)
OFFSET = 12
TABLE = tuple(level + OFFSET for level in LEVELS)
_CODES = 16


def _power_of_two(b, step, head=()):
    """Return 2**(e - 128) of 16 rows, f32x16: subnormal, and exact, for an e of 0 or 1."""
    e = b.zext(emit.load(b, I8X16, step), I32X16)
    exponent = b.shl(b.sub(e, emit.constant(I32X16, 1)), emit.constant(I32X16, 23))
    subnormal = b.shl(emit.constant(I32X16, 1 << 21), e)
    is_small = b.icmp_unsigned("<", e, emit.constant(I32X16, 2))
    # where it is not small, what was shifted too far is not looked at
    safe = b.select(is_small, subnormal, emit.constant(I32X16, 0))
    return b.bitcast(b.select(is_small, safe, exponent), F32X16)


@inline
def pack_block(src, dst, row):
    """Copy a block of a row: the file pairs inputs i and i + 16 in a byte, as a panel does."""
    store_u8(dst + row, load_u8(src))
    for i in range(4):
        store_i32(dst + _CODES + 64 * i + 4 * row, load_i32(src + 1 + 4 * i))


@inline
def unpack_block(block, row, out):
    """Write the 32 weights of a row, f32."""
    e = load_u8(block + row)
    bits = (e - 1) << 23 if e >= 2 else 1 << (21 + e)
    store_i32(out, bits)
    scale = load_f32(out)
    for k in range(32):
        store_f32(out + 4 * k, scale * f32(LEVELS[get_nibble(block + _CODES, row, k)]))


PANEL = PanelFormat(
    name="mxfp4",
    n_inputs=32,
    head_nbytes=0,
    step_nbytes=_CODES + NIBBLES_NBYTES,
    words=fold(OFFSET),
    head=lambda b, block: (),
    codes=lambda b, step, j: machine.look_up(b, TABLE, nibble_quad(b, emit.at(b, step, _CODES), j)),
    scales=lambda b, head, step: [_power_of_two(b, step)],
    minima=lambda b, head, step: [],
    max_code=24,
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
