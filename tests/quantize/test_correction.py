"""Weights moved to make up for earlier errors: least squares, by NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import F32
from quantcli.quantize import correction
from quantcli.quantize.correction import corrected


def inputs(n: int, n_tokens: int, noise: float, seed: int = 0) -> tuple[F32, F32]:
    """Return original inputs and those with errors, which lean one way."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n_tokens, n)) @ random.standard_normal((n, n)) / np.sqrt(n)
    lean = np.eye(n) + noise * random.standard_normal((n, n)) / np.sqrt(n)
    y = x @ lean + noise * random.standard_normal(x.shape)
    return x.astype(np.float32), y.astype(np.float32)


def moments(x: F32, y: F32) -> tuple[F32, F32]:
    """Return the Hessian of y and the drift from x."""
    y64 = np.float64(y)
    h = y64.T @ y64 / len(y)
    return h.astype(np.float32), ((np.float64(x) - y64).T @ y64 / len(y)).astype(np.float32)


@pytest.mark.parametrize("n_rows", [5, 90])  # fewer than inputs, and more
def test_moved_weights_are_the_least_squares(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction, "RIDGE", 0.0)
    monkeypatch.setattr(correction, "DAMPING", 0.0)
    x, y = inputs(48, 4000, 0.1)
    w = np.random.default_rng(1).standard_normal((n_rows, 48)).astype(np.float32)
    hessian, drift = moments(x, y)
    first, second = corrected([w[:3], w[3:]], hessian, drift)
    want, *_ = np.linalg.lstsq(np.float64(y), np.float64(x) @ np.float64(w).T, rcond=None)
    np.testing.assert_allclose(np.concatenate([first, second]), want.T, atol=2e-4)


def test_outputs_come_closer_on_other_tokens_too() -> None:
    x, y = inputs(64, 3000, 0.2, seed=3)
    w = np.random.default_rng(1).standard_normal((10, 64)).astype(np.float32)
    moved = corrected([w], *moments(x[:2000], y[:2000]))[0]
    left = [np.square(x[2000:] @ w.T - y[2000:] @ other.T).mean() for other in (w, moved)]
    assert left[1] < 0.8 * left[0]


def test_no_drift_and_no_solution_leave_weights_as_they_are() -> None:
    w = np.ones((3, 8), np.float32)
    zero = np.zeros((8, 8), np.float32)
    eye = np.eye(8, dtype=np.float32)
    for hessian, drift in ((eye, zero), (zero, eye), (eye * np.float32(np.nan), eye)):
        moved = corrected([w], hessian, drift)[0]
        np.testing.assert_array_equal(moved, w)
        assert moved is not w
