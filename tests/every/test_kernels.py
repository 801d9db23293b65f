"""The kernels of every weight format: packing, lookup and products against NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import gguf
import gguf.quants
import kernel_calls
import numpy as np
import pytest
from codebook_pictures import set_iq1_m_scales
from kernel_calls import Packed, Staged, decoded, look_up, multiply, pack, random_rows, stage

from quantcli import catalog, formats
from quantcli.formats import F32, U8, BlockFormat
from quantcli.kernels import matmul
from quantcli.kernels.activations import TINY
from quantcli.kernels.matmul import SUM, SUM_HALVES, fold, rows

pytestmark = pytest.mark.jit

UNIT = 2.0**-24  # the largest relative error of one f32 rounding
PLAIN = ("bf16", "f16", "f32")
# Formats that can be read, converted and quantized to, but not yet multiplied with.
DECODED_ONLY: set[str] = set()
# Packed without loss into panels of four bits (tq1_0: two) that cost more than the file does, and
# how many bits a weight takes there.
REPACKED = {
    "iq1_m": 4.625,
    "iq1_s": 4.375,
    "iq2_s": 4.625,
    "iq2_xs": 4.625,
    "iq2_xxs": 4.375,
    "iq3_s": 4.375,
    "iq3_xxs": 4.375,
    "nvfp4": 5.0,
    "tq1_0": 2.0625,
}

EVERY = [pytest.param(formats.get(name), id=name) for name in matmul.names()]
QUANTIZED = [
    pytest.param(formats.get(name), id=name) for name in matmul.names() if name not in PLAIN
]
OUTPUTS = (1, 15, 16, 17, 40)


@pytest.fixture(scope="module")
def threads() -> Iterator[kernel_calls.Threads]:
    """Return executors by number of threads."""
    with kernel_calls.threads() as pool:
        yield pool


def inputs(fmt: BlockFormat, n_blocks: int = 2) -> int:
    """Return a row length: whole blocks, but for plain floats one that ends inside one."""
    return 100 if fmt.name in PLAIN else n_blocks * max(fmt.weights_per_block, 64)


def activations_for(packed: Packed, x: F32) -> Staged:
    """Stage rows as a packed weight reads them."""
    return stage(x, packed.panel.words, is_float=packed.panel.is_float, width=packed.n_in)


def random_x(n_rows: int, n_in: int, seed: int = 1) -> F32:
    random = np.random.default_rng(seed)
    spread = np.exp(random.uniform(-6, 6, (n_rows, 1)))
    return (random.standard_normal((n_rows, n_in)) * spread).astype(np.float32)


def error_bound(fmt: BlockFormat, data: U8, weights: F32, x: F32) -> np.ndarray:
    """Return how far a product may be from the exact one: f64 (rows, n_out).

    A result is a sum of terms, (scale * integer) * scale for each part of 32 inputs and minimum *
    sum, or weight * x for plain floats. Each term is rounded when it is made and at every addition
    after it, so the error is at most UNIT * roundings * sum |term|.
    """
    blocks = data.reshape(-1).view(fmt.block).copy()
    for name in {"m", "dmin"} & set(fmt.block.names or ()):
        blocks[name] = 0
    codes = np.float64(decoded(fmt, blocks.view(np.uint8).reshape(len(data), -1)))
    true = codes.shape[1]
    minima = np.abs(np.float64(weights[: len(data), :true]) - codes)
    magnitude = np.abs(np.float64(x[:, :true])) @ (np.abs(codes) + minima).T
    n_additions = true if fmt.name in PLAIN else 4 * (true // 32)
    return UNIT * (2 * n_additions + 10) * magnitude + np.finfo(np.float32).tiny


def assert_same_bits(got: F32, want: F32) -> None:
    """Compare bit for bit, but let a NaN be any NaN."""
    got, want = (np.where(np.isnan(v), np.float32(np.nan), v) for v in (got, want))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_every_format_has_kernels_or_is_known_to_have_none() -> None:
    assert sorted({*matmul.names(), *DECODED_ONLY}) == list(catalog.names("format"))
    assert not DECODED_ONLY & set(matmul.names())
    for name in matmul.names():
        assert matmul.module(name).PANEL.name == name


@pytest.mark.parametrize("fmt", EVERY)
def test_a_panel_costs_little_more_than_the_file(fmt: BlockFormat) -> None:
    panel = matmul.module(fmt.name).PANEL
    bits = 8 * panel.block_nbytes / (panel.n_inputs * matmul.PANEL_ROWS)
    if fmt.name in REPACKED:
        assert bits == REPACKED[fmt.name]
    else:
        assert fmt.bits_per_weight <= bits <= fmt.bits_per_weight + 0.1875


@pytest.mark.parametrize("n_out", OUTPUTS)
@pytest.mark.parametrize("fmt", EVERY)
def test_packed_rows_are_the_files_bit_for_bit(fmt: BlockFormat, n_out: int) -> None:
    n_in = inputs(fmt)
    data = random_rows(fmt, n_out, n_in, seed=n_out)
    packed = pack(fmt.name, data)
    found = look_up(packed, range(16 * packed.n_panels))
    assert_same_bits(found[:n_out, :n_in], decoded(fmt, data))
    assert not found[n_out:].any()
    assert not found[:, n_in:].any()
    kind = gguf.GGMLQuantizationType(fmt.ggml_id)
    assert_same_bits(found[:n_out, :n_in], gguf.quants.dequantize(data, kind).astype(np.float32))


@pytest.mark.parametrize("fmt", EVERY)
def test_packing_keeps_any_bytes(fmt: BlockFormat) -> None:
    size = 3 * inputs(fmt) // fmt.weights_per_block * fmt.block_nbytes
    data = np.random.default_rng(3).integers(0, 256, 20 * size, np.uint8).reshape(20, size)
    with np.errstate(all="ignore"):
        want = decoded(fmt, data)
        assert_same_bits(look_up(pack(fmt.name, data), range(20))[:, : want.shape[1]], want)


@pytest.mark.parametrize("n_threads", [2, 3])
@pytest.mark.parametrize("fmt", EVERY)
def test_threads_pack_the_same_bytes(
    fmt: BlockFormat, n_threads: int, threads: kernel_calls.Threads
) -> None:
    data = random_rows(fmt, 150, inputs(fmt))
    alone, shared = pack(fmt.name, data), pack(fmt.name, data, threads[n_threads])
    assert alone.memory.array.tobytes() == shared.memory.array.tobytes()


@pytest.mark.parametrize("fmt", EVERY)
def test_lookup_scales_and_takes_any_order(fmt: BlockFormat) -> None:
    data = random_rows(fmt, 33, inputs(fmt))
    packed, tokens = pack(fmt.name, data), [32, 0, 5, 32, 17, 16, 15]
    found = look_up(packed, tokens, scale=11.5)
    want = decoded(fmt, data)[tokens] * np.float32(11.5)
    assert_same_bits(found[:, : want.shape[1]], want)


@pytest.mark.parametrize("n_out", [16, 40])
@pytest.mark.parametrize("fmt", EVERY)
def test_product_is_as_near_the_exact_one_as_its_roundings(fmt: BlockFormat, n_out: int) -> None:
    for n_blocks in (1, 5):
        n_in = inputs(fmt, n_blocks)
        data = random_rows(fmt, n_out, n_in, seed=n_blocks)
        packed = pack(fmt.name, data)
        weights = look_up(packed, range(n_out))
        staged = activations_for(packed, random_x(13, n_in))
        x = staged.values()
        found = multiply(packed, staged)
        error = np.abs(found[:, :n_out] - np.float64(x) @ np.float64(weights).T)
        assert (error <= error_bound(fmt, data, weights, x)).all()
        assert not found[:, n_out:].any()


@pytest.mark.parametrize("fmt", QUANTIZED)
def test_largest_codes_times_largest_activations_do_not_overflow(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    x = np.repeat(np.float32([[1.0], [-1.0], [1.0], [-1.0], [1.0]]), n_in, axis=1)
    for byte in (b"\x00", b"\x77", b"\xff"):
        data = random_rows(fmt, 16, n_in)
        blocks = data.reshape(-1).view(fmt.block)
        for name in {"qs", "qh", "ql", "hmask"} & set(fmt.block.names or ()):
            blocks[name] = np.frombuffer(byte * 2, blocks[name].dtype)[0]
        packed = pack(fmt.name, data)
        weights = look_up(packed, range(16))
        staged = activations_for(packed, x)
        error = np.abs(multiply(packed, staged) - np.float64(staged.values()) @ weights.T)
        assert (error <= error_bound(fmt, data, weights, staged.values())).all()


@pytest.mark.parametrize("fmt", EVERY)
def test_a_row_has_the_same_bits_in_any_group(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    packed = pack(fmt.name, random_rows(fmt, 40, n_in))
    x = random_x(64, n_in)
    want = multiply(packed, activations_for(packed, x))
    for n_rows in range(1, 64):
        assert (
            multiply(packed, activations_for(packed, x[:n_rows])).tobytes()
            == want[:n_rows].tobytes()
        )
    random = np.random.default_rng(2)
    for _ in range(8):
        cuts = np.unique([0, 64, *random.integers(1, 64, random.integers(1, 20))])
        parts = [
            multiply(packed, activations_for(packed, x[start:stop]))
            for start, stop in itertools.pairwise(cuts)
        ]
        assert np.concatenate(parts).tobytes() == want.tobytes()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", EVERY)
def test_a_row_has_the_same_bits_on_any_number_of_threads(
    fmt: BlockFormat, n_threads: int, threads: kernel_calls.Threads
) -> None:
    n_in = inputs(fmt)
    packed = pack(fmt.name, random_rows(fmt, 200, n_in))
    staged = activations_for(packed, random_x(11, n_in))
    want = multiply(packed, staged).tobytes()
    executor = threads[n_threads]
    for n_shares in range(1, n_threads + 1):
        for chunk in (1, 2, 5, 100):
            found = multiply(packed, staged, executor=executor, n_shares=n_shares, chunk=chunk)
            assert found.tobytes() == want


@pytest.mark.parametrize("fmt", EVERY)
def test_threads_may_stage_for_themselves(fmt: BlockFormat, threads: kernel_calls.Threads) -> None:
    n_in, executor = inputs(fmt), threads[2]
    packed = pack(fmt.name, random_rows(fmt, 80, n_in))
    x = random_x(1, n_in)
    own = stage(
        x,
        packed.panel.words,
        is_float=packed.panel.is_float,
        width=packed.n_in,
        executor=executor,
        private=2,
    )
    found = multiply(packed, own, executor=executor, n_shares=2, private=True)
    assert found.tobytes() == multiply(packed, activations_for(packed, x)).tobytes()


@pytest.mark.parametrize("fmt", EVERY)
def test_product_adds_a_bias_and_what_was_there(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    packed = pack(fmt.name, random_rows(fmt, 40, n_in))
    staged = activations_for(packed, random_x(5, n_in))
    plain = multiply(packed, staged)[:, :40]
    random = np.random.default_rng(4)
    bias = random.standard_normal(40).astype(np.float32)
    before = random.standard_normal((5, 40)).astype(np.float32)
    assert_same_bits(multiply(packed, staged, bias=bias)[:, :40], plain + bias)
    assert_same_bits(multiply(packed, staged, before=before)[:, :40], plain + before)
    both = multiply(packed, staged, bias=bias, before=before)[:, :40]
    assert_same_bits(both, (plain + bias) + before)


@pytest.mark.parametrize("fmt", QUANTIZED)
def test_formats_share_activations_that_carry_more_than_they_need(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    packed = pack(fmt.name, random_rows(fmt, 40, n_in))
    x, mine = random_x(7, n_in), packed.panel.words
    want = multiply(packed, stage(x, mine, width=packed.n_in)).tobytes()
    for others in (SUM, SUM_HALVES, fold(8), fold(128)):
        if others != mine:
            for words in (others + mine, mine + others):
                assert multiply(packed, stage(x, words, width=packed.n_in)).tobytes() == want


def extreme_rows(fmt: BlockFormat, byte: int, scale: float) -> U8:
    """Return 17 rows of one byte, whose scales are `scale`."""
    n_blocks = 17 * (inputs(fmt) // fmt.weights_per_block)
    blocks = np.full(n_blocks * fmt.block_nbytes, byte, np.uint8).view(fmt.block)
    for name in {"d", "m", "dmin"} & set(fmt.block.names or ()):
        blocks[name] = scale
    if "e" in (fmt.block.names or ()):  # a power of two, doubled; the f16 scales have none so large
        blocks["e"] = 128 + (math.frexp(scale)[1] if scale else -126)
    if fmt.name == "iq1_m":
        set_iq1_m_scales(blocks, np.full(n_blocks, scale, np.float16))
    return blocks.view(np.uint8).reshape(17, -1)


@pytest.mark.parametrize("scale", [1.0, -65504.0, 2.0**-24, 0.0])
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0x55, 0x7F, 0x80, 0xF0, 0xFF])
@pytest.mark.parametrize("fmt", QUANTIZED)
def test_extreme_codes_meet_extreme_activations(fmt: BlockFormat, byte: int, scale: float) -> None:
    data = extreme_rows(fmt, byte, scale)
    packed = pack(fmt.name, data)
    n_in = packed.n_in
    x = np.full((5, n_in), 127, np.float32)  # codes are +-127, where 8-bit sums overflow first
    x[1] *= -1
    x[2, ::2] *= -1
    x[3, 1::4] *= -1
    x[4] *= np.float32(2.0**80)
    staged = activations_for(packed, x)
    assert_same_bits(staged.values(), x)
    weights = look_up(packed, range(17))
    exact = np.float64(x) @ np.float64(weights).T
    found = multiply(packed, staged)[:, :17]
    assert (np.abs(found - exact) <= error_bound(fmt, data, weights, x)).all()


@pytest.mark.parametrize("fmt", EVERY)
def test_nothing_times_anything_is_zero(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    zero = np.zeros_like(random_rows(fmt, 17, n_in))
    packed = pack(fmt.name, zero)
    assert not multiply(packed, activations_for(packed, random_x(9, n_in))).any()
    packed = pack(fmt.name, random_rows(fmt, 17, n_in))
    assert not multiply(packed, activations_for(packed, np.zeros((9, n_in), np.float32))).any()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", EVERY)
def test_bad_activations_reach_every_output_of_their_row_only(fmt: BlockFormat, bad: float) -> None:
    n_in = inputs(fmt)
    packed = pack(fmt.name, random_rows(fmt, 40, n_in))
    x = random_x(11, n_in)
    want = multiply(packed, activations_for(packed, x))
    for row, column in ((0, 0), (3, n_in - 1), (10, n_in // 2)):
        spoilt = x.copy()
        spoilt[row, column] = bad
        found = multiply(packed, activations_for(packed, spoilt))
        assert not np.isfinite(found[row, :40]).any()
        found[row] = want[row]
        assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "fmt", [p for p in EVERY if p.id not in ("mxfp4", "nvfp4")]
)  # which have none
def test_bad_weights_reach_their_output_only(fmt: BlockFormat, bad: float) -> None:
    n_in = inputs(fmt)
    data = random_rows(fmt, 40, n_in)
    packed = pack(fmt.name, data)
    x = np.abs(random_x(5, n_in))
    want = multiply(packed, activations_for(packed, x))
    blocks = data.view(fmt.block)
    if fmt.name == "iq1_m":
        set_iq1_m_scales(blocks[21, -1:], np.array([bad], np.float16))
    else:
        name = "d" if "d" in (fmt.block.names or ()) else "w"
        value = np.float32(bad).view(np.uint32) >> 16 if fmt.name == "bf16" else bad
        blocks[name][21, -1] = value
    found = multiply(pack(fmt.name, data), activations_for(packed, x))
    assert not np.isfinite(found[:, 21]).any()
    found[:, 21] = want[:, 21]
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("fmt", EVERY)
def test_tiny_and_huge_activations_keep_their_scale(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    data = random_rows(fmt, 17, n_in)
    packed = pack(fmt.name, data)
    weights = np.float64(decoded(fmt, data))
    for exponent in (-149, -140, -126, -120, -100, 60, 100):
        x = np.ldexp(random_x(5, n_in), exponent).astype(np.float32)
        found = multiply(packed, activations_for(packed, x))[:, :17]
        # At most half a step of the coarsest block for each input, and all of what is below TINY.
        step = np.abs(x).max(axis=1, keepdims=True) / 127 + 2 * TINY
        error = np.abs(found - np.float64(x) @ weights.T)
        assert (error <= step * np.abs(weights).sum(axis=1)).all(), exponent


@pytest.mark.parametrize("fmt", EVERY)
def test_twin_agrees_with_the_kernel(fmt: BlockFormat) -> None:
    n_in = inputs(fmt)
    data = random_rows(fmt, 40, n_in)
    packed = pack(fmt.name, data)
    staged = activations_for(packed, random_x(6, n_in))
    weights = look_up(packed, range(40))
    found = multiply(packed, staged, bias=weights[:, 0])[:, :40]
    want = rows.reference(weights, staged.values(), weights[:, 0])
    bound = error_bound(fmt, data, weights, staged.values()) + 4 * UNIT * np.abs(want)
    assert (np.abs(found - want) <= bound + 4 * UNIT * np.abs(weights[:, 0])).all()
