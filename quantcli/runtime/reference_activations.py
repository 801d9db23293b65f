"""Activations in NumPy, by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from quantcli.formats import F32

_OAI_CLAMP, _OAI_SLOPE = 7.0, 1.702  # of gpt-oss's gate


def _silu(x: F32) -> F32:
    """Return x / (1 + exp(-x))."""
    below = np.exp(-x)  # an inf gives the right 0
    below += 1.0
    y: F32 = np.divide(x, below)
    return y


def _gelu_tanh(x: F32) -> F32:
    """Return 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    inner = x * x * x
    inner *= 0.044715
    inner += x
    inner *= math.sqrt(2.0 / math.pi)
    share = np.tanh(inner)
    share += 1.0
    share *= 0.5
    y: F32 = np.multiply(x, share)
    return y


def swiglu_oai(gate: F32, up: F32) -> F32:
    """Return gate / (1 + exp(-1.702 gate)) (up + 1), both clamped to 7, up to -7 as well."""
    gate = np.minimum(gate, np.float32(_OAI_CLAMP))
    up = np.clip(up, np.float32(-_OAI_CLAMP), np.float32(_OAI_CLAMP))
    y: F32 = gate / (1.0 + np.exp(np.float32(-_OAI_SLOPE) * gate)) * (up + 1.0)
    return y


def _relu_squared(x: F32) -> F32:
    y: F32 = np.square(np.maximum(x, np.float32(0.0)))
    return y


ACTS: dict[str, Callable[[F32], F32]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}
PLAIN_ACTS = {"gelu_tanh": _gelu_tanh, "relu_squared": _relu_squared}
