"""tq2_0 in panels: f16 d; 8 steps of crumbs; weight = d * (code - 1)."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat, fold
from quantcli.kernels.matmul.codes import CRUMBS_NBYTES, crumb_quad, f16_rows, get_crumb, put_crumb
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import load_f16, load_u8, load_u16, store_f32, store_u16

HEAD = 32


@inline
def pack_block(src, dst, row):
    """Pack a block of a row: 64 bytes of codes, each with inputs 32 apart, then d."""
    store_u16(dst + 2 * row, load_u16(src + 64))
    for s in range(8):
        step = dst + HEAD + s * CRUMBS_NBYTES
        for k in range(32):
            byte = load_u8(src + 32 * (s // 4) + k)
            put_crumb(step, row, k, (byte >> (2 * (s % 4))) & 3)


@inline
def unpack_block(block, row, out):
    """Write the 256 weights of a row, f32."""
    d = load_f16(block + 2 * row)
    for s in range(8):
        step = block + HEAD + s * CRUMBS_NBYTES
        for k in range(32):
            store_f32(out + 4 * (32 * s + k), d * f32(get_crumb(step, row, k) - 1))


PANEL = PanelFormat(
    name="tq2_0",
    n_inputs=256,
    head_nbytes=HEAD,
    step_nbytes=CRUMBS_NBYTES,
    words=fold(1),
    head=lambda b, block: (f16_rows(b, block),),
    codes=crumb_quad,
    scales=lambda b, head, step: [head[0]],
    minima=lambda b, head, step: [],
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
