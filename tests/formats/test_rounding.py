"""Scales and codes by rounding to nearest, on blocks worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import rounding

JUST_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def test_symmetric_gives_code_zero_to_the_largest_magnitude_whatever_its_sign() -> None:
    weights = np.float32([[8, -7, 1, 0], [-8, 7, 1, 0]])
    d, codes = rounding.symmetric(weights, 8)
    assert d.tolist() == [[-1], [1]]
    assert codes.tolist() == [[0, 15, 7, 8], [0, 15, 9, 8]]


def test_symmetric_takes_the_first_of_equal_magnitudes() -> None:
    d, codes = rounding.symmetric(np.float32([[4, -4], [-4, 4]]), 8)
    assert d.tolist() == [[-0.5], [0.5]]
    assert codes.tolist() == [[0, 15], [0, 15]]  # 16 does not exist


@pytest.mark.parametrize("half", [8, 16])
def test_symmetric_of_zeros_is_scale_zero_and_the_middle_code(half: int) -> None:
    d, codes = rounding.symmetric(np.zeros((1, 4), np.float32), half)
    assert d.tolist() == [[0]]
    assert codes.tolist() == [[half] * 4]


def test_with_minimum_spreads_the_codes_from_smallest_to_largest() -> None:
    d, m, codes = rounding.with_minimum(np.float32([[-1, 0.49, 0.5, 14]]), 15)
    assert (d.tolist(), m.tolist()) == ([[1]], [[-1]])
    assert codes.tolist() == [[0, 1, 2, 15]]


def test_with_minimum_of_equal_weights_stores_them_as_the_minimum() -> None:
    d, m, codes = rounding.with_minimum(np.full((1, 4), 2.5, np.float32), 31)
    assert (d.tolist(), m.tolist(), codes.tolist()) == ([[0]], [[2.5]], [[0, 0, 0, 0]])


def test_by_magnitude_rounds_halves_away_from_zero() -> None:
    weights = np.float32([[127, 2.5, -2.5, 0.5, -0.5, JUST_BELOW_HALF, -JUST_BELOW_HALF, -1.4]])
    d, codes = rounding.by_magnitude(weights, 127)
    assert d.tolist() == [[1]]
    assert codes.tolist() == [[127, 3, -3, 1, -1, 0, 0, -1]]


def test_codes_of_tiny_blocks_are_in_range() -> None:
    tiny = np.float32([[1e-45, -1e-45, 0, 3e-39]])
    assert rounding.symmetric(tiny, 8)[1].tolist() == [[0, 0, 0, 0]]
    assert rounding.with_minimum(tiny, 15)[2].tolist() == [[0, 0, 0, 0]]
    assert rounding.by_magnitude(np.float32([[1e-45, 0]]), 127)[1].tolist() == [[0, 0]]
