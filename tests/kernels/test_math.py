"""Our own exp and what is made of it, against f64."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import F32
from quantcli.kernels import simd
from quantcli.kernels.jit import njit
from quantcli.kernels.simd import math

pytestmark = pytest.mark.jit

UNIT = 2.0**-24
NAMES = ("exp", "tanh", "silu", "gelu_tanh")


@njit
def _apply(x, out, n):
    for i in range(0, 4 * n, 64):
        v = simd.load_f32x16(x + i)
        simd.store_f32x16(out + i, math.exp(v))
        simd.store_f32x16(out + 4 * n + i, math.tanh(v))
        simd.store_f32x16(out + 8 * n + i, math.silu(v))
        simd.store_f32x16(out + 12 * n + i, math.gelu_tanh(v))


def apply(x: F32) -> dict[str, F32]:
    """Return each function of an array."""
    padded = np.zeros(-(-x.size // 16) * 16, np.float32)
    padded[: x.size] = x
    out = np.zeros((4, padded.size), np.float32)
    _apply(padded.ctypes.data, out.ctypes.data, padded.size)
    return dict(zip(NAMES, out[:, : x.size], strict=True))


def grid(low: float, high: float, n: int = 200_000) -> F32:
    even = np.linspace(low, high, n)
    near_zero = np.ldexp(np.linspace(-1, 1, 2001), -12)
    return np.concatenate([even, near_zero, np.ldexp(1.0, np.arange(-149, -1))]).astype(np.float32)


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = grid(-86.9, 88)
    exact = np.exp(x.astype(np.float64))
    units = np.abs(apply(x)["exp"] - exact) / np.spacing(exact.astype(np.float32)).astype(float)
    assert units.max() <= 2
    assert np.abs(apply(x)["exp"] / np.exp(x) - 1).max() <= 6 * UNIT


def test_exp_is_exact_where_it_must_be() -> None:
    exp = apply(np.float32([0.0, -0.0, -np.inf, -88.0, -1e30, -3.4e38]))["exp"]
    assert exp.tolist() == [1, 1, 0, 0, 0, 0]
    assert not np.signbit(exp).any()
    top = apply(np.float32([88.0, 89.0, 1e30, np.inf]))["exp"]
    assert np.isfinite(top).all()
    assert (top == top[0]).all()


def test_exp_never_falls() -> None:
    for center in (0.0, -1.0, np.log(2) / 2, -np.log(2) / 2, 10.0, -80.0):
        x = np.float32(center) + np.arange(-4000, 4000, dtype=np.float32) * np.spacing(
            np.float32(center or 1)
        )
        assert (np.diff(apply(np.sort(x))["exp"]) >= -np.spacing(apply(x)["exp"].max())).all()


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_nan(name: str) -> None:
    x = np.float32([np.nan, -np.nan, 1.0, np.nan])
    assert np.isnan(apply(x)[name]).tolist() == [True, True, False, True]


def exact(name: str, x: F32) -> np.ndarray:
    x = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return {
            "tanh": np.tanh(x),
            "silu": x / (1 + np.exp(-x)),
            "gelu_tanh": x / 2 * (1 + np.tanh(inner)),
        }[name]


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_is_made_of_exp_is_right_to_a_few_units_of_one(name: str) -> None:
    for x in (grid(-20, 20), grid(-200, 200)):
        error = np.abs(apply(x)[name] - exact(name, x))
        # 1 - 2 / (1 + e**2x) is right to units of 1, and the gates multiply that by x.
        magnitude = 1.0 if name == "tanh" else np.maximum(np.abs(x), 1.0)
        # gelu's argument, of size |x|**3 * 0.036 + |x|, is rounded four times where tanh is steep
        assert (error <= 8 * UNIT * magnitude).all(), error.max() / UNIT


def test_gates_end_where_they_should() -> None:
    x = np.float32([0.0, -0.0, 1e4, -1e4, 3e38, -3e38])
    found = apply(x)
    assert found["tanh"].tolist() == [0, 0, 1, -1, 1, -1]
    assert found["silu"][:3].tolist() == [0, 0, 1e4]
    assert found["gelu_tanh"][:4].tolist() == [0, 0, 1e4, 0]
    assert np.abs(found["silu"][[3, 5]]).max() < 1e1
    assert found["silu"][4] == np.float32(3e38)
