"""Row-wise ops that move or combine f32 rows: select, cut, add, norms, scale, soft cap, gates."""

from __future__ import annotations

import numpy as np
from numba.extending import overload
from numpy import float32 as f32

from quantcli.kernels.activations import layer_norm_row, rms_scale
from quantcli.kernels.jit import inline, op
from quantcli.kernels.simd import (
    atomic_add,
    fma,
    lanes_between,
    load_f32x16,
    load_i64,
    splat,
    splat_f32_at,
    store_f32x16,
    view,
    vmul,
)
from quantcli.kernels.simd.math import gelu_tanh, relu_squared, sigmoid, silu, swiglu_oai, tanh
from quantcli.kernels.static import register_static

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("rows", "i8"),  # i64 (rows): which rows of x to take, or 0: all in order
        ("x", "i8"),
        ("y", "i8"),  # the second operand, or 0
        ("out", "i8"),  # may be x or y
        ("x_stride", "i8"),
        ("y_stride", "i8"),
        ("out_stride", "i8"),
        ("width", "i8"),  # f32 a row, a multiple of 16
        ("n_true", "i8"),  # values that count for a mean
        ("norm", "i8"),  # f32 (width)
        ("bias", "i8"),  # f32 (width), or 0; only for layer_norm
        ("value", "f4"),  # eps, factor or cap
    ],
    align=True,
)


def reference(name, x, y=None, *, rows=None, norm=None, bias=0.0, value=0.0):
    """Return what the op of a name writes: f32 (rows, width), computed in f64.

    x, y   f32 (rows, width)   a norm is over the whole width
    """
    x, y = np.float64(x), np.float64(x if y is None else y)
    inverse = 1 / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + value)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + value)
    gelu = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    clamped = np.minimum(x, 7)
    return {
        "select": lambda: x[rows],
        "add": lambda: x + y,
        "cut": lambda: x,
        "add_scaled": lambda: x + y * value,
        "add_norm": lambda: x + y * inverse * norm,
        "layer_norm": lambda: centred / deviation * norm + bias,
        "rms_norm": lambda: x * inverse * norm,
        "scale": lambda: x * value,
        "softcap": lambda: value * np.tanh(x / value),
        "gated_silu": lambda: x / (1 + np.exp(-x)) * y,
        "gated_gelu_tanh": lambda: gelu * y,
        "gated_swiglu_oai": lambda: (
            clamped / (1 + np.exp(-1.702 * clamped)) * (np.clip(y, -7, 7) + 1)
        ),
        "gelu_tanh_alone": lambda: gelu,
        "relu_squared_alone": lambda: np.maximum(x, 0) ** 2,
        "sigmoid_gate": lambda: x / (1 + np.exp(-y[:, :1])),
    }[name]().astype(np.float32)


ZERO = f32(0.0)


@register_static
class Combination:
    """What a loop over rows is compiled with: (x, y, value) -> f32x16, all of them f32x16."""

    def __init__(self, name, function) -> None:
        """Compile the function into whatever loop calls it."""
        self.name = name
        self.function = inline(function)


def combine(combination, x, y, value):
    """Combine two vectors by a Combination's own function."""


@overload(combine)
def _combine(combination, x, y, value):
    function = combination.value.function
    return lambda combination, x, y, value: function(x, y, value)


@inline
def _each_vector(args, combination):
    """Combine every vector of claimed rows of x and y; y is x where there is none."""
    a = view(args, ARGS)
    n_rows, value = load_i64(a.n_rows), splat(a.value)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x = a.x + (load_i64(a.rows + 8 * row) if a.rows != 0 else row) * a.x_stride
        y = a.y + row * a.y_stride if a.y != 0 else x
        out = a.out + row * a.out_stride
        for i in range(0, 4 * a.width, 64):
            v = combine(combination, load_f32x16(x + i), load_f32x16(y + i), value)
            store_f32x16(out + i, v)
        row = atomic_add(a.counter, 1)


@inline
def _each_norm(args, combination):
    """Combine claimed rows of x with the norm of y; y is x where there is none."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, out = a.x + row * a.x_stride, a.out + row * a.out_stride
        y = a.y + row * a.y_stride if a.y != 0 else x
        scale = rms_scale(y, a.width, a.n_true, a.value)
        for i in range(0, 4 * a.width, 64):
            normed = vmul(vmul(load_f32x16(y + i), scale), load_f32x16(a.norm + i))
            store_f32x16(out + i, combine(combination, load_f32x16(x + i), normed, scale))
        row = atomic_add(a.counter, 1)


@inline
def _cut_row(x, out, n):
    """Copy n values of a row whose neighbours are not zero, and zeros to the next vector."""
    for i in range((n + 15) // 16):
        v = lanes_between(load_f32x16(x + 64 * i), 0, n - 16 * i, ZERO)
        store_f32x16(out + 64 * i, v)


@inline
def _pad_row(out, n_true, width):
    """Write zeros into the vectors behind n_true values."""
    for i in range((n_true + 15) // 16, width // 16):
        store_f32x16(out + 64 * i, splat(ZERO))


_FIRST = Combination("first", lambda x, y, value: x)
_SECOND = Combination("second", lambda x, y, value: y)
_SUM = Combination("sum", lambda x, y, value: x + y)
_SCALED_SUM = Combination("scaled sum", lambda x, y, value: fma(y, value, x))
_SCALED = Combination("scaled", lambda x, y, value: x * value)
_CAPPED = Combination("capped", lambda x, y, value: value * tanh(x / value))
_SILU_GATE = Combination("silu gate", lambda x, y, value: silu(x) * y)
_GELU_TANH_GATE = Combination("gelu_tanh gate", lambda x, y, value: gelu_tanh(x) * y)

_OAI_GATE = Combination("swiglu_oai gate", lambda x, y, value: swiglu_oai(x, y))
_GELU_TANH = Combination("gelu_tanh", lambda x, y, value: gelu_tanh(x))
_RELU_SQUARED = Combination("relu squared", lambda x, y, value: relu_squared(x))


@op
def select(args, thread, n_threads):
    """Copy chosen rows."""
    _each_vector(args, _FIRST)


@op
def add(args, thread, n_threads):
    """Add two rows."""
    _each_vector(args, _SUM)


@op
def cut(args, thread, n_threads):
    """Copy some values of each row; x is the address of the first."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        out = a.out + row * a.out_stride
        _cut_row(a.x + row * a.x_stride, out, a.n_true)
        _pad_row(out, a.n_true, a.width)
        row = atomic_add(a.counter, 1)


@op
def add_scaled(args, thread, n_threads):
    """Add y times a number to x."""
    _each_vector(args, _SCALED_SUM)


@op
def sigmoid_gate(args, thread, n_threads):
    """Multiply rows of x by the sigmoid of the first value of y's."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, out = a.x + row * a.x_stride, a.out + row * a.out_stride
        share = sigmoid(splat_f32_at(a.y + row * a.y_stride))
        for i in range(0, 4 * a.width, 64):
            store_f32x16(out + i, vmul(load_f32x16(x + i), share))
        row = atomic_add(a.counter, 1)


@op
def layer_norm(args, thread, n_threads):
    """Centre and normalise rows."""
    a = view(args, ARGS)
    n_rows = load_i64(a.n_rows)
    row = atomic_add(a.counter, 1)
    while row < n_rows:
        x, out = a.x + row * a.x_stride, a.out + row * a.out_stride
        layer_norm_row(x, out, a.norm, a.bias, a.n_true, a.value)
        _pad_row(out, a.n_true, a.width)
        row = atomic_add(a.counter, 1)


@op
def add_norm(args, thread, n_threads):
    """Add the norm of y to x: a residual behind a post-norm."""
    _each_norm(args, _SUM)


@op
def rms_norm(args, thread, n_threads):
    """Normalise rows."""
    _each_norm(args, _SECOND)


@op
def scale(args, thread, n_threads):
    """Multiply rows by a number."""
    _each_vector(args, _SCALED)


@op
def softcap(args, thread, n_threads):
    """Squash values into (-cap, cap)."""
    _each_vector(args, _CAPPED)


@op
def gated_silu(args, thread, n_threads):
    """Multiply y by silu(x)."""
    _each_vector(args, _SILU_GATE)


@op
def gated_gelu_tanh(args, thread, n_threads):
    """Multiply y by gelu(x)."""
    _each_vector(args, _GELU_TANH_GATE)


@op
def gated_swiglu_oai(args, thread, n_threads):
    """Multiply y by gpt-oss's gate of x."""
    _each_vector(args, _OAI_GATE)


@op
def gelu_tanh_alone(args, thread, n_threads):
    """Return gelu(x)."""
    _each_vector(args, _GELU_TANH)


@op
def relu_squared_alone(args, thread, n_threads):
    """Return the square of x above 0."""
    _each_vector(args, _RELU_SQUARED)
