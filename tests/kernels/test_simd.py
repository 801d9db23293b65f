"""The SIMD operations, each against NumPy, bit for bit where only one answer is right."""

from __future__ import annotations

import numpy as np
import pytest
from numba import types

from quantcli.formats import F32
from quantcli.kernels import simd
from quantcli.kernels.jit import ISA, njit
from quantcli.kernels.simd import emit, machine
from quantcli.kernels.simd.vectors import I8X64, I32X16

pytestmark = pytest.mark.jit

A = types.int64
HALVES = np.arange(65536, dtype=np.uint16)


def f32(*values: float) -> F32:
    return np.array(values, np.float32)


def normal(n: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def same_bits(got: F32, want: F32) -> None:
    """Compare bit for bit, but let a NaN be any NaN."""
    got, want = (np.where(np.isnan(v), np.float32(np.nan), v) for v in (got, want))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def fused(x: F32, y: F32, z: F32) -> F32:
    """Return x * y + z as this instruction set rounds it."""
    if ISA.name == "generic":
        return x * y + z
    return (np.float64(x) * np.float64(y) + np.float64(z)).astype(np.float32)


FLOAT_OPS = ("add", "sub", "mul", "div", "fma", "maximum", "minimum", "absolute", "sqrt", "less")


@njit
def _floats(x, y, z, out):
    a, b, c = simd.load_f32x16(x), simd.load_f32x16(y), simd.load_f32x16(z)
    simd.store_f32x16(out, a + b)
    simd.store_f32x16(out + 64, a - b)
    simd.store_f32x16(out + 128, a * b)
    simd.store_f32x16(out + 192, a / b)
    simd.store_f32x16(out + 256, simd.fma(a, b, c))
    simd.store_f32x16(out + 320, simd.maximum(a, b))
    simd.store_f32x16(out + 384, simd.minimum(a, b))
    simd.store_f32x16(out + 448, simd.absolute(a))
    simd.store_f32x16(out + 512, simd.sqrt(a))
    simd.store_f32x16(out + 576, simd.select_less(a, b, c, a))


@pytest.mark.parametrize("kind", ["normal", "special"])
def test_float_arithmetic_is_numpys(kind: str) -> None:
    x, y, z = (normal(16, seed) for seed in (1, 2, 3))
    if kind == "special":
        x[:8] = [np.nan, 1, np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38]
        y[:8] = [1, np.nan, np.nan, 2, np.inf, -0.0, 0.0, 3e38]
    out = np.zeros((10, 16), np.float32)
    _floats(x.ctypes.data, y.ctypes.data, z.ctypes.data, out.ctypes.data)
    with np.errstate(all="ignore"):
        want = {
            "add": x + y,
            "sub": x - y,
            "mul": x * y,
            "div": x / y,
            "fma": fused(x, y, z),
            "maximum": np.where(x > y, x, y),
            "minimum": np.where(x < y, x, y),
            "absolute": np.abs(x),
            "sqrt": np.sqrt(x),
            "less": np.where(x < y, z, x),
        }
    for name, got in zip(FLOAT_OPS, out, strict=True):
        same_bits(got, want[name])


@njit
def _lanes(x, y, n, out):
    a, b = simd.load_f32x16(x), simd.load_f32x16(y)
    simd.store_f32x16(out, simd.even_lanes(a, b))
    simd.store_f32x16(out + 64, simd.odd_lanes(a, b))
    simd.store_f32x16(out + 128, simd.zip_low(a, b))
    simd.store_f32x16(out + 192, simd.zip_high(a, b))
    simd.store_f32x16(out + 256, simd.lanes_between(a, np.int32(n), np.int32(n + 5), np.float32(7)))
    simd.store_f32x16(out + 320, simd.i32_to_f32(simd.lane_ids()))
    simd.store_f32x16(out + 384, simd.splat(simd.load_f32(x + 8)))
    simd.store_f32x16(out + 448, simd.splat_f32_at(y + 4))
    simd.store_f32(out + 512, simd.hsum(a))
    simd.store_f32(out + 516, simd.hmax(a))
    simd.store_f32(out + 520, simd.hmax_abs(a, b))


@pytest.mark.parametrize("n", [-20, -3, 0, 4, 13, 16])
def test_lanes_go_where_they_should(n: int) -> None:
    x, y = normal(16, 1), normal(16, 2)
    out = np.zeros((9, 16), np.float32)
    _lanes(x.ctypes.data, y.ctypes.data, n, out.ctypes.data)
    both, ids = np.concatenate([x, y]), np.arange(16)
    zipped = np.stack([x, y], axis=1).ravel()
    want = [
        both[::2],
        both[1::2],
        zipped[:16],
        zipped[16:],
        np.where((ids >= n) & (ids < n + 5), x, 7),
        ids,
        np.full(16, x[2]),
        np.full(16, y[1]),
    ]
    np.testing.assert_array_equal(out[:8], np.float32(want))
    tree = x
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    np.testing.assert_array_equal(out[8, :3], [tree[0], x.max(), np.abs(both).max()])


@pytest.mark.parametrize("place", [0, 5, 17, 31])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_largest_magnitude_keeps_what_is_no_number(bad: float, place: int) -> None:
    both, out = normal(32), np.zeros((9, 16), np.float32)
    both[place] = bad
    _lanes(both.ctypes.data, both[16:].ctypes.data, 0, out.ctypes.data)
    same_bits(out[8, 2:3], np.abs(f32(bad)))


@njit
def _integers(x, n, out):
    a, k = simd.load_f32x16(x), simd.load_i32x16(n)
    rounded = simd.round_to_i32(a)
    simd.store_i32x16(out, rounded)
    simd.store_i32x16(out + 64, simd.iadd(rounded, k))
    simd.store_i32x16(out + 128, simd.splat_i32(simd.hsum_i32(k)))
    simd.store_f32x16(out + 192, simd.ldexp(a, k))
    simd.store_i8x16(out + 256, k)
    simd.store_f32x16(out + 272, simd.load_i8x16(out + 256))
    simd.store_f32x16(out + 336, simd.load_u8x16(out + 256))


def test_integers_round_and_add_as_numpys() -> None:
    out = np.zeros(400, np.uint8)
    halves = np.arange(-8, 8, dtype=np.float32) + np.float32(0.5)
    big = normal(16) * 1e5
    for x in (halves, halves * 3, big, f32(*[2.0**21 - 0.5, -(2.0**21) + 0.5] * 8)):
        n = np.arange(-100, 92, 12, dtype=np.int32)
        _integers(x.ctypes.data, n.ctypes.data, out.ctypes.data)
        rounded = out[:64].view(np.int32)
        np.testing.assert_array_equal(rounded, np.rint(x).astype(np.int32))
        np.testing.assert_array_equal(out[64:128].view(np.int32), rounded + n)
        np.testing.assert_array_equal(out[128:192].view(np.int32), np.full(16, n.sum()))
        np.testing.assert_array_equal(out[192:256].view(np.float32), np.ldexp(x, n))
        np.testing.assert_array_equal(out[256:272].view(np.int8), n.astype(np.int8))
        np.testing.assert_array_equal(out[272:336].view(np.float32), n.astype(np.int8))
        np.testing.assert_array_equal(
            out[336:400].view(np.float32), n.astype(np.int8).view(np.uint8)
        )


@njit
def _halves_to_floats(halves, out, n):
    for i in range(0, n, 16):
        simd.store_f32x16(out + 4 * i, simd.load_f16x16(halves + 2 * i))
        simd.store_f32x16(out + 4 * (n + i), simd.load_bf16x16(halves + 2 * i))
    for i in range(n):
        simd.store_f32(out + 4 * (2 * n + i), simd.load_f16(halves + 2 * i))


def test_every_half_and_bfloat_becomes_its_float() -> None:
    out = np.zeros((3, 65536), np.float32)
    _halves_to_floats(HALVES.ctypes.data, out.ctypes.data, 65536)
    with np.errstate(invalid="ignore"):
        want = HALVES.view(np.float16).astype(np.float32)
    same_bits(out[0], want)
    same_bits(out[2], want)
    same_bits(out[1], (HALVES.astype(np.uint32) << 16).view(np.float32))


@njit
def _floats_to_halves(x, out, n):
    for i in range(0, n, 16):
        simd.store_f16x16(out + 2 * i, simd.load_f32x16(x + 4 * i))
    for i in range(n):
        simd.store_f16(out + 2 * (n + i), simd.load_f32(x + 4 * i))


def near_halves() -> F32:
    """Return every half, the points between neighbours, and the floats beside those."""
    with np.errstate(invalid="ignore"):
        halves = HALVES.view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    between = (finite[:-1] + finite[1:]) / 2
    beside = [np.nextafter(between, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf)]
    edges = f32(65519.996, 65520, 65536, 1e30, np.inf, 2**-25, 1.0000001 * 2**-25, 1e-45, 0.0)
    random = np.random.default_rng(0).integers(0, 2**32, 50_000, np.uint32).view(np.float32)
    every = np.concatenate([halves, between, *beside, edges, -edges, random])
    return every[: len(every) // 16 * 16]


def test_floats_round_to_the_nearest_half() -> None:
    x = near_halves()
    out = np.zeros((2, len(x)), np.uint16)
    _floats_to_halves(x.ctypes.data, out.ctypes.data, len(x))
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
        for got in out:
            same_bits(got.view(np.float16).astype(np.float32), want.astype(np.float32))


@njit
def _scalars(at, out):
    simd.store_i64(out, simd.load_u8(at))
    simd.store_i64(out + 8, simd.load_i8(at))
    simd.store_i64(out + 16, simd.load_u16(at))
    simd.store_i64(out + 24, np.int64(simd.load_i32(at)))
    simd.store_i64(out + 32, simd.load_i64(at))
    simd.store_u8(out + 40, simd.load_i64(at))
    simd.store_u16(out + 42, simd.load_i64(at))
    simd.store_i32(out + 44, simd.load_i32(at))
    simd.store_i64(out + 48, simd.atomic_add(at, 5))
    simd.store_i64(out + 56, simd.atomic_load(at))
    simd.atomic_store(at, -1)


def test_scalars_keep_their_width_and_sign_at_any_address() -> None:
    for offset in (0, 8):
        data, out = np.zeros(32, np.uint8), np.zeros(8, np.int64)
        data[offset : offset + 8] = [0x90, 0xA1, 0xB2, 0xC3, 4, 5, 6, 7]
        whole = int(data[offset : offset + 8].view("<i8")[0])
        _scalars(data[offset:].ctypes.data, out.ctypes.data)
        assert out[:5].tolist() == [0x90, -112, 0xA190, -1011703408, whole]
        assert out[5:6].tobytes() == bytes([0x90, 0, 0x90, 0xA1, 0x90, 0xA1, 0xB2, 0xC3])
        assert out[6:].tolist() == [whole, whole + 5]
        assert data[offset : offset + 8].view("<i8")[0] == -1


def dot(function):
    """Return an intrinsic (acc, codes, x, out) that adds 64 products by an emitter."""

    def emitter(b, acc, codes, x, out):
        loaded = emit.load(b, I32X16, acc), emit.load(b, I8X64, codes), emit.load(b, I8X64, x)
        emit.store(b, function(b, *loaded), out)

    return simd.define(types.void, (A, A, A, A), emitter)


_signed, _unsigned = dot(machine.dot_signed), dot(machine.dot_unsigned)


@njit
def _dots(acc, codes, x, out, is_signed):
    if is_signed:
        _signed(acc, codes, x, out)
    else:
        _unsigned(acc, codes, x, out)


@pytest.mark.parametrize(("is_signed", "low", "high"), [(True, -128, 127), (False, 0, 63)])
def test_dots_are_exact_to_the_last_code(is_signed: bool, low: int, high: int) -> None:
    random = np.random.default_rng(1)
    extremes = [(c, v) for c in (low, high, 0, 1) for v in (-127, 127, 1, 0)]
    cases = [(np.full(64, c), np.full(64, v)) for c, v in extremes]
    cases += [
        (random.integers(low, high + 1, 64), random.integers(-127, 128, 64)) for _ in range(50)
    ]
    cases += [(random.choice([low, high], 64), random.choice([-127, 127], 64)) for _ in range(50)]
    for codes, x in cases:
        acc = random.integers(-(2**20), 2**20, 16).astype(np.int32)
        stored = (codes + (simd.SIGNED_OFFSET if is_signed else 0)).astype(np.uint8)
        signed_x, out = x.astype(np.int8), np.zeros(16, np.int32)
        _dots(acc.ctypes.data, stored.ctypes.data, signed_x.ctypes.data, out.ctypes.data, is_signed)
        offset = simd.SIGNED_OFFSET * x if is_signed else 0
        want = acc + (codes * x + offset).reshape(16, 4).sum(axis=1)
        np.testing.assert_array_equal(out, want)


def test_an_instruction_set_says_how_it_is_used() -> None:
    assert simd.isa_name() == ISA.name
    assert simd.TILE_TOKENS in (1, 2, 4, 8)
    assert simd.SIGNED_OFFSET in (0, 128)
