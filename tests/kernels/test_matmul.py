"""What all matmul kernels share: groups of rows, the layouts of codes, and the table of formats."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import Guarded, groups
from numba import types

from quantcli.formats import F32
from quantcli.kernels import matmul, simd
from quantcli.kernels.jit import njit
from quantcli.kernels.matmul import SUM, SUM_HALVES, codes, fold, fold_halves
from quantcli.kernels.matmul.rows import FULL, HALF, QUARTER
from quantcli.kernels.matmul.rows import reference as product
from quantcli.kernels.simd import define, emit, machine
from quantcli.kernels.simd.vectors import I8X64

pytestmark = pytest.mark.jit


def test_groups_cover_all_rows_and_only_shrink() -> None:
    assert FULL == simd.TILE_TOKENS >= HALF >= QUARTER >= 1
    for n_rows in range(1, 100):
        pairs = list(groups(n_rows))
        sizes = [size for _, size in pairs]
        assert sum(sizes) == n_rows
        assert [start for start, _ in pairs] == [sum(sizes[:i]) for i in range(len(sizes))]
        assert sizes == sorted(sizes, reverse=True)
        assert set(sizes) <= {FULL, HALF, QUARTER, 1}


def test_words_take_offsets_off() -> None:
    assert fold(0) == ()
    assert fold(8) == ((False, 0, -8),)
    assert fold_halves(32) == ((False, 1, -32), (False, 2, -32))
    assert len(SUM) == 1
    assert len(SUM_HALVES) == 2


@pytest.mark.parametrize("name", matmul.names())
def test_a_format_declares_what_its_tile_reads(name: str) -> None:
    panel = matmul.module(name).PANEL
    assert panel.block_nbytes == panel.head_nbytes + panel.n_steps * panel.step_nbytes
    assert panel.n_inputs in ((16,) if panel.is_float else (32, 64, 256))
    assert panel.n_parts in (1, 2)
    floats = sum(is_float for is_float, _, _ in panel.words)
    assert floats in (0, len(panel.words)), "a tile starts with integers or ends with minima"
    assert len(panel.words) in (0, panel.n_parts)


LAYOUTS = {  # name: (largest code, bytes of a step)
    "nibble": (15, codes.NIBBLES_NBYTES),
    "byte": (255, codes.BYTES_NBYTES),
    "crumb": (3, codes.CRUMBS_NBYTES),
    "bit": (1, codes.BITS_NBYTES),
}
A = types.int64


def reader(function, *extra: int):
    """Return an intrinsic that stores all eight quads of a step."""

    def emitter(b, step, out):
        for j in range(8):
            emit.store(b, function(b, step, j, *extra), out, 64 * j)

    return define(types.void, (A, A), emitter)


_nibbles, _bytes = reader(codes.nibble_quad), reader(codes.byte_quad)
_crumbs, _bits = reader(codes.crumb_quad), reader(codes.bit_quad, 0)
_high_crumbs, _high_bits = reader(codes.crumb_quad, 4), reader(codes.bit_quad, 5)


@njit
def _round_trip(layout, values, step, quads, back):
    """Put 16 rows of 32 codes, read them as quads, and get each back."""
    for row in range(16):
        for k in range(32):
            code, at = simd.load_u8(values + 32 * row + k), back + 32 * row + k
            if layout == 0:
                codes.put_nibble(step, row, k, code)
                simd.store_u8(at, codes.get_nibble(step, row, k))
            elif layout == 1:
                codes.put_byte(step, row, k, code)
                simd.store_u8(at, codes.get_byte(step, row, k))
            elif layout == 2:
                codes.put_crumb(step, row, k, code)
                simd.store_u8(at, codes.get_crumb(step, row, k))
            else:
                codes.put_bit(step, row, k, code)
                simd.store_u8(at, codes.get_bit(step, row, k))
    if layout == 0:
        _nibbles(step, quads)
    elif layout == 1:
        _bytes(step, quads)
    elif layout == 2:
        _crumbs(step, quads)
        _high_crumbs(step, quads + 512)
    else:
        _bits(step, quads)
        _high_bits(step, quads + 512)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_come_back_from_their_layout(layout: str) -> None:
    largest, nbytes = LAYOUTS[layout]
    random = np.random.default_rng(1)
    step, quads = Guarded(nbytes, np.uint8, byte=0), Guarded((2, 8, 16, 4), np.uint8)
    back = Guarded((16, 32), np.uint8)
    values = random.integers(0, largest + 1, (16, 32), np.uint8)
    index = list(LAYOUTS).index(layout)
    _round_trip(index, values.ctypes.data, step.address, quads.address, back.address)
    for memory in (step, quads, back):
        memory.check()
    np.testing.assert_array_equal(back.array, values)
    by_row = quads.array.transpose(0, 2, 1, 3).reshape(2, 16, 32)
    np.testing.assert_array_equal(by_row[0], values)
    if layout in ("crumb", "bit"):
        np.testing.assert_array_equal(by_row[1], values << {"crumb": 4, "bit": 5}[layout])
    assert I8X64.count == 64


def test_twin_is_a_product() -> None:
    weights: F32 = np.float32([[1, 2], [3, 4], [0, -1]])
    x: F32 = np.float32([[1, 0], [0.5, 2]])
    found = product(weights, x, np.float32([1, 1, 1]), np.float32([[10, 0, 0], [0, 0, 0]]))
    assert found.tolist() == [[12, 4, 1], [5.5, 10.5, -1]]


TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _look_up(b, source, out):
    emit.store(b, machine.look_up(b, TABLE, emit.load(b, I8X64, source)), out)


look_up = define(types.void, (A, A), _look_up)


@njit
def _looked_up(source, out):
    look_up(source, out)


def test_codes_are_looked_up_in_a_table() -> None:
    source = Guarded(64, np.uint8)
    source.array[:] = np.random.default_rng(0).integers(0, 16, 64)
    out = Guarded(64, np.int8)
    _looked_up(source.address, out.address)
    assert out.array.tolist() == [TABLE[code] for code in source.array]
    out.check()
