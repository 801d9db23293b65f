"""Every format of the catalog, against gguf's own NumPy implementation and its contract."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import gguf.quants
import numpy as np
import pytest

from quantcli import catalog, formats
from quantcli.formats import F32, U8, BlockFormat, Blocks

EVERY = [pytest.param(f, id=f.name) for f in formats.every()]
ENCODING = [pytest.param(f, id=f.name) for f in formats.every() if f.encode is not None]
SCALES = ("d", "m", "dmin", "w")  # fields that hold a floating-point number

ODD_SCALES = np.array(
    [0.0, -0.0, 1.0, -1.5, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan], "<f2"
)


def kind(fmt: BlockFormat) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType(fmt.ggml_id)


def gguf_decode(fmt: BlockFormat, blocks: Blocks) -> F32:
    raw = blocks.view(np.uint8).reshape(len(blocks), -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, kind(fmt)).reshape(len(blocks), -1)


def gguf_encode(fmt: BlockFormat, weights: F32) -> U8:
    with np.errstate(all="ignore"):
        return gguf.quants.quantize(weights, kind(fmt)).view(np.uint8).reshape(len(weights), -1)


def random_blocks(fmt: BlockFormat, n_blocks: int, seed: int) -> Blocks:
    raw = np.random.default_rng(seed).integers(0, 256, n_blocks * fmt.block_nbytes, np.uint8)
    return raw.view(fmt.block)


def encode(fmt: BlockFormat, weights: F32) -> Blocks:
    assert fmt.encode is not None
    return fmt.encode(weights)


def assert_same_bits(got: F32, want: F32) -> None:
    """Compare bit for bit, but let a NaN be any NaN: its payload depends on the processor."""
    both_nan = np.isnan(got) & np.isnan(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(
        np.where(both_nan, 0, got.view(np.uint32)), np.where(both_nan, 0, want.view(np.uint32))
    )


@pytest.mark.parametrize("name", catalog.names("format"))
def test_row_tells_the_name_and_the_bits_per_weight(name: str) -> None:
    fmt, row = formats.get(name), catalog.lookup("format", name)
    assert fmt.name == name
    assert f"{fmt.bits_per_weight:g} bits per weight" in row.summary


@pytest.mark.parametrize("fmt", EVERY)
def test_number_and_sizes_are_those_of_gguf(fmt: BlockFormat) -> None:
    assert kind(fmt).name.lower() == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind(fmt)] == (fmt.weights_per_block, fmt.block_nbytes)


@pytest.mark.parametrize("fmt", EVERY)
def test_block_is_packed_and_little_endian(fmt: BlockFormat) -> None:
    assert fmt.block.fields is not None
    fields = [field[0] for field in fmt.block.fields.values()]
    assert sum(field.itemsize for field in fields) == fmt.block.itemsize
    descriptions = [description[1] for description in fmt.block.descr]
    assert all(d[0] == "<" or d[1:] in ("u1", "i1") for d in descriptions), descriptions


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fmt", EVERY)
def test_decode_of_random_bytes_is_bit_equal_to_gguf(fmt: BlockFormat, seed: int) -> None:
    blocks = random_blocks(fmt, 64 * 256 // fmt.weights_per_block, seed)
    assert_same_bits(fmt.decode(blocks), gguf_decode(fmt, blocks))


@pytest.mark.parametrize("fmt", EVERY)
def test_decode_of_odd_scales_is_bit_equal_to_gguf(fmt: BlockFormat) -> None:
    blocks = random_blocks(fmt, len(ODD_SCALES) ** 2, 11)
    grid = np.meshgrid(ODD_SCALES, ODD_SCALES)
    names = [name for name in fmt.block.names or () if name in SCALES]
    for name, scales in zip(names, grid, strict=False):
        scales = scales.ravel()
        blocks[name] = scales.view("<u2") if fmt.block[name] == "<u2" else scales
    assert_same_bits(fmt.decode(blocks), gguf_decode(fmt, blocks))


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x0F, 0x10, 0x7F, 0x80, 0x81, 0xF0, 0xFF])
@pytest.mark.parametrize("fmt", EVERY)
def test_decode_of_extreme_codes_is_bit_equal_to_gguf(fmt: BlockFormat, byte: int) -> None:
    blocks = np.full(3 * fmt.block_nbytes, byte, np.uint8).view(fmt.block)
    for name in SCALES[:3]:
        if name in (fmt.block.names or ()):
            blocks[name] = [1, -2, 0.375]
    assert_same_bits(fmt.decode(blocks), gguf_decode(fmt, blocks))


@pytest.mark.parametrize("fmt", EVERY)
def test_decode_of_a_zero_block_is_zero(fmt: BlockFormat) -> None:
    weights = fmt.decode(np.zeros(2, fmt.block))
    assert weights.shape == (2, fmt.weights_per_block)
    assert not weights.any()


@pytest.mark.parametrize("fmt", EVERY)
def test_decode_returns_a_fresh_contiguous_array(fmt: BlockFormat) -> None:
    blocks = random_blocks(fmt, 5, 2)
    before = blocks.tobytes()
    blocks.flags.writeable = False
    weights = fmt.decode(blocks)
    assert weights.dtype == np.float32
    assert weights.flags.c_contiguous
    assert weights.flags.writeable
    assert not np.shares_memory(weights, blocks)
    weights[:] = 1
    assert blocks.tobytes() == before


@pytest.mark.parametrize("fmt", EVERY)
def test_decode_does_not_depend_on_how_the_blocks_lie(fmt: BlockFormat) -> None:
    blocks = random_blocks(fmt, 6, 3)
    want = fmt.decode(blocks)
    assert_same_bits(np.concatenate([fmt.decode(blocks[i : i + 1]) for i in range(6)]), want)
    assert_same_bits(fmt.decode(blocks[::2]), want[::2])
    shifted = np.zeros(6 * fmt.block_nbytes + 1, np.uint8)[1:]
    shifted[:] = blocks.view(np.uint8)
    assert_same_bits(fmt.decode(shifted.view(fmt.block)), want)
    assert fmt.decode(blocks[:0]).shape == (0, fmt.weights_per_block)


def finite_weights(n: int) -> Iterator[F32]:
    """Yield weights (n_blocks, n) that are easy to round wrongly."""
    rng = np.random.default_rng(17)
    yield rng.integers(0, 2**32, (256, n), np.uint32).view(np.float32)
    for exponent in range(-120, 128, 6):
        yield np.ldexp(rng.uniform(-1, 1, (8, n)), exponent).astype(np.float32)
    yield (rng.integers(-31, 32, (64, n)) / 2).astype(np.float32)
    just_below_half = np.nextafter(np.float32(0.5), np.float32(0))
    yield np.where(rng.random((64, n)) < 0.1, np.float32(127), just_below_half)
    yield rng.choice(np.float32([-1, 1, 0.5, -0.5]), (64, n))
    yield rng.choice(np.float32([0.0, -0.0]), (4, n))
    yield np.full((2, n), 3.3, np.float32)
    yield np.full((2, n), -3.3, np.float32)
    yield np.full((1, n), np.finfo(np.float32).max, np.float32)


@pytest.mark.parametrize("fmt", ENCODING)
def test_encode_is_bit_equal_to_gguf(fmt: BlockFormat) -> None:
    for weights in finite_weights(fmt.weights_per_block):
        weights = np.where(np.isfinite(weights), weights, np.float32(0))
        got = encode(fmt, weights).view(np.uint8).reshape(len(weights), -1)
        np.testing.assert_array_equal(got, gguf_encode(fmt, weights))


@pytest.mark.parametrize("exponent", range(-150, -120, 3))
@pytest.mark.parametrize("fmt", ENCODING)
def test_encode_of_tiny_weights_means_the_same_as_gguf(fmt: BlockFormat, exponent: int) -> None:
    # 1 / d may overflow here, and what gguf makes of the codes then depends on the processor.
    uniform = np.random.default_rng(29).uniform(-1, 1, (8, fmt.weights_per_block))
    weights = np.ldexp(uniform, exponent).astype(np.float32)
    theirs = gguf_encode(fmt, weights).reshape(-1).view(fmt.block)
    np.testing.assert_array_equal(fmt.decode(encode(fmt, weights)), fmt.decode(theirs))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fmt", ENCODING)
def test_round_trip_of_normal_weights_stays_in_the_budget(fmt: BlockFormat, seed: int) -> None:
    n_blocks = 2**18 // fmt.weights_per_block
    shape = (n_blocks, fmt.weights_per_block)
    weights = np.random.default_rng(seed).standard_normal(shape, np.float32)
    error = fmt.decode(encode(fmt, weights)) - weights
    rmse = float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))
    assert 0.97 * fmt.rmse_budget <= rmse <= fmt.rmse_budget  # a loose budget finds nothing


@pytest.mark.parametrize("fmt", ENCODING)
def test_encode_leaves_its_argument_alone_and_takes_any_strides(fmt: BlockFormat) -> None:
    wide = np.random.default_rng(5).standard_normal((8, 2 * fmt.weights_per_block), np.float32)
    weights = wide[::2, ::2]
    before = weights.copy()
    got = encode(fmt, weights)
    np.testing.assert_array_equal(weights, before)
    assert got.dtype == fmt.block
    assert got.tobytes() == encode(fmt, before).tobytes()
    assert len(encode(fmt, weights[:0])) == 0


@pytest.mark.parametrize("fmt", ENCODING)
def test_encode_of_what_is_not_finite_warns_of_nothing(fmt: BlockFormat) -> None:
    weights = np.ones((4, fmt.weights_per_block), np.float32)
    weights[:, -1] = [np.nan, np.inf, -np.inf, 1e38]
    encode(fmt, weights)  # warnings are errors here; refusing such weights is the caller's part
