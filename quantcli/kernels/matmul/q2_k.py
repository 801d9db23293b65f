"""q2_k in panels: f16 d, f16 dmin; 8 steps of u8 scale and min for each half, crumbs.

A byte has the scale in its low and the minimum in its high half.
weight = d * scale * code - dmin * min."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import SUM_HALVES, PanelFormat
from quantcli.kernels.matmul.codes import CRUMBS_NBYTES, crumb_quad, get_crumb, put_crumb
from quantcli.kernels.matmul.k_scales import DMIN, HEAD_NBYTES, head
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import emit, load_f16, load_u8, load_u16, store_f32, store_u8, store_u16
from quantcli.kernels.simd.vectors import I8X16

_CODES = 32  # after one byte a row for each half
_STEP = _CODES + CRUMBS_NBYTES


def _halves(b, step, shift):
    """Return the low (shift 0) or high (4) halves of the scale bytes, f32x16 each."""
    for half in (0, 1):
        byte = emit.load(b, I8X16, step, 16 * half)
        moved = b.lshr(byte, emit.constant(I8X16, shift))
        yield emit.u8_to_f32(b, b.and_(moved, emit.constant(I8X16, 15)))


def _scales(b, head, step):
    return [b.fmul(head[0], scale) for scale in _halves(b, step, 0)]


def _minima(b, head, step):
    return [b.fneg(b.fmul(head[1], minimum)) for minimum in _halves(b, step, 4)]


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: 16 bytes of scales, 64 of codes, d, dmin."""
    store_u16(dst + 2 * row, load_u16(src + 80))
    store_u16(dst + DMIN + 2 * row, load_u16(src + 82))
    for s in range(8):
        step = dst + HEAD_NBYTES + s * _STEP
        store_u8(step + row, load_u8(src + 2 * s))
        store_u8(step + 16 + row, load_u8(src + 2 * s + 1))
        for k in range(32):
            byte = load_u8(src + 16 + 32 * (s // 4) + k)
            put_crumb(step + _CODES, row, k, (byte >> (2 * (s % 4))) & 3)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    dmin = load_f16(block + DMIN + 2 * row)
    for s in range(8):
        step = block + HEAD_NBYTES + s * _STEP
        for k in range(32):
            byte = load_u8(step + 16 * (k // 16) + row)
            code = f32(get_crumb(step + _CODES, row, k))
            store_f32(out + 4 * (32 * s + k), d * f32(byte & 15) * code - dmin * f32(byte >> 4))


PANEL = PanelFormat(
    name="q2_k",
    n_inputs=256,
    head_nbytes=HEAD_NBYTES,
    step_nbytes=_STEP,
    words=SUM_HALVES,
    head=head,
    codes=lambda b, step, j: crumb_quad(b, emit.at(b, step, _CODES), j),
    scales=_scales,
    minima=_minima,
    n_parts=2,
    max_code=3,
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
