"""Heads put together from parts of others."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import Guarded, Threads, call, guarded

from quantcli.kernels import join

pytestmark = pytest.mark.jit

N_ROWS, N_HEADS = 11, 3


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("a_width", "b_width"), [(32, 16), (20, 7), (5, 0), (64, 32)])
@pytest.mark.parametrize("is_shared", [False, True])
def test_parts_lie_side_by_side(
    a_width: int, b_width: int, is_shared: bool, n_threads: int, threads: Threads
) -> None:
    random = np.random.default_rng(1)
    a = guarded(random.standard_normal((N_ROWS, N_HEADS, a_width + 9)).astype(np.float32))
    b = guarded(random.standard_normal((N_ROWS, 1 if is_shared else N_HEADS, 40), np.float32))
    width = a_width + b_width
    out, count = Guarded((N_ROWS, N_HEADS * width), np.float32), np.array([N_ROWS], np.int64)
    args = np.zeros(1, join.ARGS)
    args["n_rows"], args["n_heads"] = count.ctypes.data, N_HEADS
    args["a"], args["a_stride"] = a.address + 4 * 9, a.array.strides[0]
    args["a_head_nbytes"], args["a_width"] = a.array.strides[1], a_width
    if b_width:
        args["b"], args["b_stride"], args["b_width"] = b.address, b.array.strides[0], b_width
        args["b_head_nbytes"] = 0 if is_shared else b.array.strides[1]
    args["out"], args["out_stride"] = out.address, out.array.strides[0]
    call(join.join, args, threads[n_threads])
    for memory in (a, b, out):
        memory.check()
    want = join.reference(a.array[:, :, 9:], b.array[:, :, :b_width] if b_width else None)
    np.testing.assert_array_equal(out.array, want)
