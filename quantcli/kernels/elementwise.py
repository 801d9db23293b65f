"""Row-wise ops that move or combine f32 rows: select, add, norm, scale, soft cap, gate."""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from quantcli.kernels.activations import rms_scale
from quantcli.kernels.jit import inline, op
from quantcli.kernels.simd import (
    atomic_add,
    load_f32x16,
    load_i64,
    splat,
    store_f32x16,
    view,
    vmul,
)
from quantcli.kernels.simd.math import gelu_tanh, silu, tanh
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
        ("value", "f4"),  # eps, factor or cap
    ],
    align=True,
)


def reference(name, x, y=None, *, rows=None, norm=None, value=0.0):
    """Return what the op of a name writes: f32 (rows, width), computed in f64.

    x, y   f32 (rows, width)   a norm is over the whole width
    """
    x, y = np.float64(x), np.float64(x if y is None else y)
    inverse = 1 / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + value)
    return {
        "select": lambda: x[rows],
        "add": lambda: x + y,
        "add_norm": lambda: x + y * inverse * norm,
        "rms_norm": lambda: x * inverse * norm,
        "scale": lambda: x * value,
        "softcap": lambda: value * np.tanh(x / value),
        "gated_silu": lambda: x / (1 + np.exp(-x)) * y,
        "gated_gelu_tanh": lambda: (
            x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) * y
        ),
    }[name]().astype(np.float32)


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


_FIRST = Combination("first", lambda x, y, value: x)
_SECOND = Combination("second", lambda x, y, value: y)
_SUM = Combination("sum", lambda x, y, value: x + y)
_SCALED = Combination("scaled", lambda x, y, value: x * value)
_CAPPED = Combination("capped", lambda x, y, value: value * tanh(x / value))
_SILU_GATE = Combination("silu gate", lambda x, y, value: silu(x) * y)
_GELU_TANH_GATE = Combination("gelu_tanh gate", lambda x, y, value: gelu_tanh(x) * y)


@op
def select(args, thread, n_threads):
    """Copy chosen rows."""
    _each_vector(args, _FIRST)


@op
def add(args, thread, n_threads):
    """Add two rows."""
    _each_vector(args, _SUM)


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
