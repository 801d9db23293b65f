"""nvfp4 in panels: a step is two f16 scales (16 rows), nibbles; weight = scale * LEVELS[code].

The file's scales of 8 bits are f16 here, exactly; levels and codes are as in mxfp4.
"""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.formats.nvfp4 import SCALES
from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold_halves
from quantcli.kernels.matmul.codes import (
    NIBBLES_NBYTES,
    f16_rows,
    get_nibble,
    nibble_quad,
    put_nibble,
)
from quantcli.kernels.matmul.mxfp4 import LEVELS, OFFSET, TABLE
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import emit, load_f16, load_u8, machine, store_f32, store_u16

_SCALE_BITS = SCALES.astype("f2").view("u2")
_CODES = 64
_STEP = _CODES + NIBBLES_NBYTES


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: four scales, 32 bytes of codes."""
    for half in range(4):
        step = dst + _STEP * (half // 2)
        store_u16(step + 32 * (half % 2) + 2 * row, _SCALE_BITS[load_u8(src + half)])
        for k in range(16):
            code = (load_u8(src + 4 + 8 * half + k % 8) >> (4 * (k // 8))) & 15
            put_nibble(step + _CODES, row, 16 * (half % 2) + k, code)


@inline
def unpack_block(block, row, out):
    """Write the 64 weights of a row, f32."""
    for i in range(64):
        step, k = block + _STEP * (i // 32), i % 32
        scale = load_f16(step + 32 * (k // 16) + 2 * row)
        store_f32(out + 4 * i, scale * f32(LEVELS[get_nibble(step + _CODES, row, k)]))


PANEL = PanelFormat(
    name="nvfp4",
    n_inputs=64,
    head_nbytes=0,
    step_nbytes=_STEP,
    words=fold_halves(OFFSET),
    head=lambda b, block: (),
    codes=lambda b, step, j: machine.look_up(b, TABLE, nibble_quad(b, emit.at(b, step, _CODES), j)),
    scales=lambda b, head, step: [f16_rows(b, step, 32 * half) for half in (0, 1)],
    minima=lambda b, head, step: [],
    n_parts=2,
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
