"""Loops that do one thing as fast as this machine can: read memory, or multiply small integers.

They are what real kernels are measured against, with the instructions that those use.
"""

from __future__ import annotations

import numpy as np
from numba.core import cgutils, types

from quantcli.kernels.jit import op
from quantcli.kernels.simd import (
    TILE_TOKENS,
    atomic_add,
    define,
    emit,
    iadd,
    load_i32x16,
    machine,
    splat_i32,
    store_i32x16,
    view,
)
from quantcli.kernels.simd.vectors import I8X64, I32X16, I64

CHUNK_NBYTES = 1 << 18  # read at a time, by whichever thread is free
N_QUADS = 2  # activations held at a time
N_CODES = 6 if TILE_TOKENS >= 8 else 2  # weights held in registers: as many as the tiles have room
MACS_PER_LOOP = N_CODES * N_QUADS * 64
CODES_NBYTES = 64 * N_CODES
ACTIVATIONS_NBYTES = 2048  # walked round and round; stays in the first-level cache
OUT_NBYTES = 64  # that each thread writes

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("start", "i8"),  # of the memory to read, or of the codes
        ("activations", "i8"),
        ("n", "i8"),  # chunks to read, or loops of dots
        ("out", "i8"),  # OUT_NBYTES for each thread
    ],
    align=True,
)


def read_reference(memory: np.ndarray) -> np.ndarray:
    """Return what all threads' outputs of `read` add up to: i32 (16,), wrapping around.

    memory  u8 (n_chunks * CHUNK_NBYTES,)
    """
    return memory.view(np.int32).reshape(-1, 16).sum(axis=0, dtype=np.int32)


@op
def read(args, thread, n_threads):
    """Read claimed chunks and add them up, with as few instructions as can be."""
    a = view(args, ARGS)
    zero = splat_i32(np.int32(0))
    s0, s1, s2, s3 = zero, zero, zero, zero
    while True:
        chunk = atomic_add(a.counter, 1)
        if chunk >= a.n:
            break
        start = a.start + chunk * CHUNK_NBYTES
        for i in range(CHUNK_NBYTES // 256):
            at = start + 256 * i
            s0, s1 = iadd(s0, load_i32x16(at)), iadd(s1, load_i32x16(at + 64))
            s2, s3 = iadd(s2, load_i32x16(at + 128)), iadd(s3, load_i32x16(at + 192))
    store_i32x16(a.out + OUT_NBYTES * thread, iadd(iadd(s0, s1), iadd(s2, s3)))


def multiply_reference(codes: np.ndarray, activations: np.ndarray, n_loops: int) -> np.ndarray:
    """Return what each thread's output of `multiply` is: i32 (16,).

    codes        u8 (CODES_NBYTES,)         below 64
    activations  i8 (ACTIVATIONS_NBYTES,)
    """
    weights = codes.reshape(N_CODES, 16, 4).astype(np.int32).sum(axis=0)
    quads = activations.reshape(-1, N_QUADS, 16, 4).astype(np.int32).sum(axis=1)
    n_walks, rest = divmod(n_loops, len(quads))
    walked = quads.sum(axis=0) * n_walks + quads[:rest].sum(axis=0)
    return (weights * walked).sum(axis=-1, dtype=np.int32)


def _emit_dots(b, codes_address, activations, n_loops, out):
    """Emit n_loops times N_CODES x N_QUADS dots: codes in registers, activations loaded."""
    zero = emit.constant(I32X16, 0)
    accs = [cgutils.alloca_once_value(b, zero) for _ in range(N_CODES * N_QUADS)]
    codes = [emit.load(b, I8X64, emit.at(b, codes_address, 64 * i)) for i in range(N_CODES)]
    with cgutils.for_range(b, n_loops) as loop:
        offset = b.and_(b.mul(loop.index, I64(64 * N_QUADS)), I64(ACTIVATIONS_NBYTES - 1))
        at = b.add(activations, offset)
        quads = [emit.load(b, I8X64, emit.at(b, at, 64 * i)) for i in range(N_QUADS)]
        for i, acc in enumerate(accs):
            code, quad = codes[i // N_QUADS], quads[i % N_QUADS]
            b.store(machine.dot_unsigned(b, b.load(acc), code, quad), acc)
    total = zero
    for acc in accs:
        total = b.add(total, b.load(acc))
    emit.store(b, total, out)


_dots = define(types.void, (types.int64, types.int64, types.int64, types.int64), _emit_dots)


@op
def multiply(args, thread, n_threads):
    """Do nothing but dots of unsigned codes and signed activations, as many on every thread."""
    a = view(args, ARGS)
    _dots(a.start, a.activations, a.n, a.out + OUT_NBYTES * thread)
