"""bf16 in panels: for each input one value of 16 rows. Activations stay f32."""

from __future__ import annotations

from quantcli.kernels.embed import lookup
from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul import PanelFormat
from quantcli.kernels.matmul.rows import multiply, pack_rows
from quantcli.kernels.simd import emit, load_u16, store_i32, store_u16
from quantcli.kernels.simd.vectors import I16X16


@inline
def pack_block(src, dst, row):
    """Copy 16 inputs of a row."""
    for k in range(16):
        store_u16(dst + 2 * (16 * k + row), load_u16(src + 2 * k))


@inline
def unpack_block(block, row, out):
    """Write the 16 weights of a row, f32."""
    for k in range(16):
        store_i32(out + 4 * k, load_u16(block + 2 * (16 * k + row)) << 16)


PANEL = PanelFormat(
    name="bf16",
    n_inputs=16,
    head_nbytes=0,
    step_nbytes=32,
    words=(),
    head=lambda b, block: (),
    codes=lambda b, row, j: emit.bf16_to_f32(b, emit.load(b, I16X16, row)),
    scales=lambda b, head, step: [],
    minima=lambda b, head, step: [],
    is_float=True,
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
