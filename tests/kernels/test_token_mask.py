"""Masks of allowed tokens: the compiled loop, its NumPy twin, and the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantcli.kernels.token_mask import mask, mask_reference, n_words

pytestmark = pytest.mark.jit


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 1000])
def test_tokens_that_are_not_allowed_become_minus_infinity(n: int) -> None:
    random = np.random.default_rng(n)
    for share in (0.0, 0.1, 0.9, 1.0):
        row = random.standard_normal(n).astype(np.float32)
        row[random.random(n) < 0.1] = -np.inf
        bits = random.random(n) < share
        allowed = np.zeros(n_words(n), np.uint32)
        for token in np.flatnonzero(bits):
            allowed[token // 32] |= np.uint32(1 << (int(token) % 32))
        out = np.empty(n, np.float32)
        mask(row, allowed, out)
        expected = [x if bit else -math.inf for x, bit in zip(row.tolist(), bits, strict=True)]
        assert out.tolist() == expected
        assert mask_reference(row, allowed).tobytes() == out.tobytes()
        mask(row, allowed, row)  # in place, too
        assert row.tobytes() == out.tobytes()


def test_what_is_no_finite_number_is_seen_whatever_is_allowed() -> None:
    row = np.array([1, np.nan, np.inf, -np.inf, 2], np.float32)
    out = np.empty(5, np.float32)
    none = np.zeros(1, np.uint32)
    mask(row, none, out)
    for found in (out, mask_reference(row, none)):
        assert np.isnan(found[1])
        assert found[[0, 2, 3, 4]].tolist() == [-math.inf, math.inf, -math.inf, -math.inf]
