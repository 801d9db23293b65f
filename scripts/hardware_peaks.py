"""What this machine can do at most: bytes read a second, and int8 multiply-adds a second.

Both run on the executor's threads, with the instruction set that QUANTCLI_ISA or the CPU chose.
"""

from __future__ import annotations

import time

import numpy as np
from numba.core import cgutils, types

from quantcli.kernels.jit import OpKernel, op
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
from quantcli.runtime.executor import OP, Executor, aligned

CHUNK_NBYTES = 1 << 18  # read at a time
N_BUFFER = 4096  # bytes of codes and activations for the dots; stays in the first-level cache
N_DOT_LOOPS = 1 << 16
N_CODES = 6 if TILE_TOKENS >= 8 else 2  # registers: the tile's own number of tokens says how many
N_QUADS = 2
MACS_PER_DOT = 64

ARGS = np.dtype([("counter", "i8"), ("start", "i8"), ("n_chunks", "i8"), ("out", "i8")], align=True)


@op
def read_plainly(args, thread, n_threads):
    """Read claimed chunks and add them up, with as few instructions as can be."""
    a = view(args, ARGS)
    zero = splat_i32(np.int32(0))
    s0, s1, s2, s3 = zero, zero, zero, zero
    while True:
        chunk = atomic_add(a.counter, 1)
        if chunk >= a.n_chunks:
            break
        start = a.start + chunk * CHUNK_NBYTES
        for i in range(CHUNK_NBYTES // 256):
            at = start + 256 * i
            s0, s1 = iadd(s0, load_i32x16(at)), iadd(s1, load_i32x16(at + 64))
            s2, s3 = iadd(s2, load_i32x16(at + 128)), iadd(s3, load_i32x16(at + 192))
    store_i32x16(a.out + 64 * thread, iadd(iadd(s0, s1), iadd(s2, s3)))


def _emit_dots(b, buffer, n_loops, out):
    """Emit n_loops times N_CODES x N_QUADS dots: codes in registers, activations loaded."""
    zero = emit.constant(I32X16, 0)
    n = N_CODES * N_QUADS
    accs = [cgutils.alloca_once_value(b, zero) for _ in range(n)]
    codes = [emit.load(b, I8X64, emit.at(b, buffer, 64 * i)) for i in range(N_CODES)]
    with cgutils.for_range(b, n_loops) as loop:
        offset = b.and_(b.mul(loop.index, I64(64 * N_QUADS)), I64(N_BUFFER // 2 - 1))
        at = b.add(emit.at(b, buffer, N_BUFFER // 2), offset)
        quads = [emit.load(b, I8X64, emit.at(b, at, 64 * i)) for i in range(N_QUADS)]
        for i, acc in enumerate(accs):
            code, quad = codes[i // N_QUADS], quads[i % N_QUADS]
            b.store(machine.dot_unsigned(b, b.load(acc), code, quad), acc)
    total = zero
    for acc in accs:
        total = b.add(total, b.load(acc))
    emit.store(b, total, out)


dots = define(types.void, (types.int64, types.int64, types.int64), _emit_dots)


@op
def multiply_plainly(args, thread, n_threads):
    """Do nothing but dots, as many on every thread."""
    a = view(args, ARGS)
    dots(a.start, a.n_chunks, a.out + 64 * thread)


def seconds(executor: Executor, ops: np.ndarray) -> float:
    """Run an op array once and return how long it took."""
    began = time.perf_counter()
    executor.run(ops)
    return time.perf_counter() - began


class Peaks:
    """The two measurements, on buffers of their own."""

    def __init__(self, executor: Executor, read_nbytes: int) -> None:
        """Make the buffers; read_nbytes should be several times the last-level cache."""
        self.executor = executor
        self._memory = np.ones(read_nbytes // CHUNK_NBYTES * CHUNK_NBYTES, np.uint8)
        self._codes = np.full(N_BUFFER + 64, 3, np.uint8)
        self._out = np.zeros(64 * executor.n_threads + 64, np.uint8)
        n_chunks = self._memory.size // CHUNK_NBYTES
        self._read = self._ops(read_plainly, self._memory, n_chunks)
        self._multiply = self._ops(multiply_plainly, self._codes, N_DOT_LOOPS)
        for ops, _ in (self._read, self._multiply):
            executor.run(ops)  # compiles, and touches the memory

    def bytes_per_s(self) -> float:
        """Return how fast memory is read."""
        return self._memory.size / seconds(self.executor, self._read[0])

    def macs_per_s(self) -> float:
        """Return how many int8 multiply-adds are done."""
        n = N_DOT_LOOPS * N_CODES * N_QUADS * MACS_PER_DOT * self.executor.n_threads
        return n / seconds(self.executor, self._multiply[0])

    def _ops(self, kernel: OpKernel, data: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return an op array of one kernel, and its arguments, which must live as long."""
        ops, args = aligned(OP), np.zeros(1, ARGS)
        address = data.ctypes.data
        args["counter"] = ops.ctypes.data
        args["start"] = address + -address % 64
        args["n_chunks"] = n - (1 if kernel is read_plainly else 0)  # alignment may shift the end
        out = self._out.ctypes.data
        args["out"] = out + -out % 64
        ops["kernel"], ops["args"], ops["barrier"] = kernel.address, args.ctypes.data, 1
        return ops, args
