"""Bit fields split and joined."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import bits

BYTES = np.arange(256, dtype=np.uint8).reshape(2, 4, 32)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_join_is_the_inverse_of_split(width: int) -> None:
    fields = bits.split_bits(BYTES, width)
    assert fields.shape == (2, 4, 8 // width, 32)
    assert fields.max() == 2**width - 1
    np.testing.assert_array_equal(bits.join_bits(fields, width), BYTES)


def test_split_gives_the_lowest_bits_of_every_byte_first() -> None:
    packed = np.array([0b11_10_01_00, 0b00_00_00_11], np.uint8)
    assert bits.split_bits(packed, 2).tolist() == [[0, 3], [1, 0], [2, 0], [3, 0]]
    assert bits.split_bits(packed, 4).tolist() == [[0b0100, 0b0011], [0b1110, 0]]


def test_split_reads_rows_that_are_not_contiguous() -> None:
    np.testing.assert_array_equal(
        bits.split_bits(BYTES[:, ::2, 1::3], 4), bits.split_bits(BYTES, 4)[:, ::2, :, 1::3]
    )


def test_five_bit_codes_survive_joining_and_splitting() -> None:
    codes = np.random.default_rng(1).integers(0, 32, (50, 32), np.uint8)
    low, high = bits.join_codes_5(codes)
    assert low.shape == (50, 16)
    assert high.shape == (50, 4)
    np.testing.assert_array_equal(bits.split_codes_5(low, high), codes)


def test_each_bit_of_the_six_bit_scales_has_one_place() -> None:
    packed = np.packbits(np.eye(96, dtype=np.uint8), axis=-1, bitorder="little")
    scales, minima = bits.scales_and_minima(packed)
    values = np.concatenate([scales, minima], axis=-1)
    seen = np.unpackbits(values[..., None], axis=-1, bitorder="little")[..., :6].reshape(96, 96)
    assert (seen.sum(axis=0) == 1).all()
    assert (seen.sum(axis=1) == 1).all()
    assert values.max() == 32
