"""f32, f16 and bf16: every bit pattern, NaN and ties."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import F32, BlockFormat, bf16, f16, f32

ALL_16_BITS = np.arange(2**16, dtype="<u2")


def encode(fmt: BlockFormat, weights: F32) -> np.ndarray:
    assert fmt.encode is not None
    return fmt.encode(weights.reshape(-1, 1))


@pytest.mark.parametrize("fmt", [f16.FORMAT, bf16.FORMAT], ids=lambda fmt: fmt.name)
def test_every_16_bit_number_survives_decode_and_encode(fmt: BlockFormat) -> None:
    weights = fmt.decode(ALL_16_BITS.view(fmt.block))
    again = encode(fmt, weights).view("<u2")
    is_number = ~np.isnan(weights[:, 0])
    np.testing.assert_array_equal(again[is_number], ALL_16_BITS[is_number])
    assert np.isnan(fmt.decode(again[~is_number].view(fmt.block))).all()


def test_f32_keeps_every_bit() -> None:
    bits = np.random.default_rng(9).integers(0, 2**32, 4096, np.uint32)
    blocks = encode(f32.FORMAT, bits.view(np.float32))
    np.testing.assert_array_equal(f32.decode(blocks)[:, 0].view(np.uint32), bits)


@pytest.mark.parametrize(
    ("bits", "want"),
    [
        (0x3F80_8000, 0x3F80),  # tie: down to even
        (0x3F81_8000, 0x3F82),  # tie: up to even
        (0x3F80_8001, 0x3F81),  # just above a tie
        (0x3F80_7FFF, 0x3F80),  # just below one
        (0x7F7F_FFFF, 0x7F80),  # the largest number becomes infinity
        (0xFF80_0000, 0xFF80),  # infinity stays
        (0x7F80_0001, 0x7FC0),  # a signalling NaN whose payload would be cut off
        (0xFFFF_FFFF, 0xFFFF),  # a NaN that rounding would carry to zero
        (0x7FBF_FFFF, 0x7FFF),
        (0x0000_8000, 0x0000),  # denormals
        (0x0001_8000, 0x0002),
        (0x8000_0000, 0x8000),
    ],
)
def test_bf16_rounds_to_nearest_even_and_keeps_nan(bits: int, want: int) -> None:
    weights = np.array([bits], np.uint32).view(np.float32)
    assert encode(bf16.FORMAT, weights)["w"].tolist() == [want]


def test_f16_overflows_to_infinity_where_half_precision_ends() -> None:
    got = encode(f16.FORMAT, np.float32([65519, 65520, -1e38, 2e-8, 3e-8]))["w"]
    assert got.tolist() == [65504, np.inf, -np.inf, 0, 2**-24]
