"""Rows on their way from a folder: permuted, stacked, cut, shifted."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.huggingface.rows import (
    AsF32,
    Cut,
    InMemory,
    Permuted,
    Stacked,
    decoded,
    n_rows,
    permuted,
    unpermuted,
)


def matrix(n_out: int, n_in: int, start: int = 0) -> np.ndarray:
    """Return a matrix of numbers that all differ."""
    return np.arange(start, start + n_out * n_in, dtype=np.float32).reshape(n_out, n_in)


@pytest.mark.parametrize("n_heads", [1, 2, 3])
def test_pairs_lie_side_by_side_where_halves_were(n_heads: int) -> None:
    values = matrix(n_heads * 8, 3)
    found = decoded(Permuted(InMemory(values), n_heads), 0, n_heads * 8)
    for h in range(n_heads):
        for i in range(4):
            for j in range(2):
                assert np.array_equal(found[8 * h + 2 * i + j], values[8 * h + 4 * j + i])
    assert np.array_equal(found, permuted(values, 8))
    assert np.array_equal(unpermuted(found, 8), values)


def test_a_vector_is_permuted_weight_by_weight() -> None:
    values = np.arange(8, dtype=np.float32)
    assert decoded(Permuted(InMemory(values), 1), 0, 8).ravel().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_experts_lie_one_after_another() -> None:
    parts = tuple(InMemory(matrix(4, 3, 100 * i)) for i in range(3))
    stack = Stacked(parts)
    assert stack.shape == (3, 4, 3)
    assert n_rows(stack.shape) == 12
    assert stack.unit == 4
    found = decoded(stack, 4, 12)
    assert np.array_equal(found, np.concatenate([parts[1].values, parts[2].values]))


def test_rows_past_the_vocabulary_are_cut_and_ones_added() -> None:
    values = matrix(6, 2)
    cut = Cut(InMemory(values), 4)
    assert cut.shape == (4, 2)
    assert np.array_equal(decoded(AsF32(cut, 1.0), 1, 4), values[1:4] + 1)
