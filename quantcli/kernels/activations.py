"""Activations staged for the matmul tiles: a row is transformed, quantized and laid out in groups.

The rows of a step come in groups of T tokens (see matmul.rows.group_size); the rows that go to an
expert come together, in groups of their own (see kernels.experts). Quantized, a group
has for each 32 inputs: T x 32 bytes of codes, T f32 scales, then T words of 4 bytes for each Word
its readers asked for. In f32, it has T values for each input. Either way a row costs the same
number of bytes in every group, so row r of any step starts at r times that.
"""

from __future__ import annotations

import numpy as np
from numpy import float32 as f32

from quantcli.kernels.jit import inline, op
from quantcli.kernels.matmul.rows import group_size
from quantcli.kernels.simd import (
    atomic_add,
    fma,
    hmax_abs,
    hsum,
    hsum_i32,
    lanes_between,
    load_f32,
    load_f32x16,
    load_i64,
    round_to_i32,
    splat,
    sqrt,
    store_f32,
    store_f32x16,
    store_i8x16,
    store_i32,
    vdiv,
    view,
    vmul,
    vsub,
)
from quantcli.kernels.simd.math import gelu_tanh, relu_squared, silu, swiglu_oai

# What happens to a row before it is laid out.
PLAIN, RMS_NORM, SILU, GELU_TANH, LAYER_NORM, SWIGLU_OAI = 0, 1, 2, 3, 4, 5
GELU_TANH_ALONE, RELU_SQUARED = 6, 7  # of x, without an `up`
SCALE = 8  # times `factor`
MAX_WORDS = 12

ARGS = np.dtype(
    [
        ("counter", "i8"),
        ("n_rows", "i8"),  # address of the number of rows
        ("private", "i8"),  # address of a word: nonzero while each thread stages for itself
        ("x", "i8"),  # f32 (rows, x_stride bytes apart); the gate for SILU, GELU_TANH, SWIGLU_OAI
        ("up", "i8"),  # f32, as x, for those three
        ("x_stride", "i8"),
        ("up_stride", "i8"),
        ("norm", "i8"),  # f32 (width), only for norms
        ("bias", "i8"),  # f32 (width), or 0; only for LAYER_NORM
        (
            "runs",
            "i8",
        ),  # runs of entries, one an expert, see kernels.experts; or 0: one run of rows
        ("n_runs", "i8"),  # address of their number
        ("rows", "i8"),  # i64 (entries): the row of x that each entry takes, or 0: its own
        ("n_heads", "i8"),  # heads of a row that are laid out as runs of rows, or 0: rows are
        ("head_nbytes", "i8"),  # bytes between heads
        ("width", "i8"),  # values a row, a multiple of 32 (f32: of 16), zeros after n_true
        ("n_true", "i8"),  # values that count for the mean
        ("eps", "f4"),
        ("factor", "f4"),
        ("transform", "i8"),
        ("is_float", "i8"),  # lay out as f32 instead of int8
        ("out", "i8"),
        ("out_thread_stride", "i8"),
        ("row_nbytes", "i8"),
        ("scratch", "i8"),  # f32 (width), one a thread
        ("scratch_stride", "i8"),
        ("n_words", "i8"),
        ("word_is_float", "i8", MAX_WORDS),
        ("word_part", "i8", MAX_WORDS),
        ("word_factor", "i8", MAX_WORDS),
    ],
    align=True,
)

# A NaN or infinity in a block makes its scale NaN or infinite, so that it reaches the logits.
ZERO, ONE, MAX_CODE = f32(0.0), f32(1.0), f32(127.0)
TINY = f32(1e-36)  # where 127 / x would soon overflow: blocks below it are taken as zeros


def reference(x, transform=PLAIN, *, up=None, norm=None, bias=None, eps=0.0, factor=1.0):
    """Return transformed rows: f32 (rows, width), computed in f64."""
    x = np.float64(x)
    if transform == LAYER_NORM:
        x = x - np.mean(x, axis=-1, keepdims=True)
    if transform in (RMS_NORM, LAYER_NORM):
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * norm
        x = x if bias is None else x + bias
    elif transform == SILU:
        x = x / (1 + np.exp(-x)) * up
    elif transform in (GELU_TANH, GELU_TANH_ALONE):
        x = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        x = x if transform == GELU_TANH_ALONE else x * up
    elif transform == SWIGLU_OAI:
        x, up = np.minimum(x, 7), np.clip(up, -7, 7)
        x = x / (1 + np.exp(-1.702 * x)) * (up + 1)
    elif transform == RELU_SQUARED:
        x = np.maximum(x, 0) ** 2
    elif transform == SCALE:
        x = x * factor
    return x.astype(np.float32)


def reference_codes(x):
    """Return i8 codes (rows, width) and f32 scales (rows, width / 32) of f32 (rows, width)."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(MAX_CODE, largest, out=np.zeros_like(largest), where=largest > TINY)
    codes = np.rint(blocks * inverse).astype(np.int8)
    return codes.reshape(x.shape), largest[..., 0] / MAX_CODE


@inline
def rms_scale(x, width, n_true, eps):
    """Return 1 / sqrt(mean(x**2) + eps) of a row of `width` f32, padded with zeros, as f32x16."""
    total = splat(ZERO)
    for i in range(width // 16):
        v = load_f32x16(x + 64 * i)
        total = fma(v, v, total)
    mean = hsum(total) / f32(n_true)
    return vdiv(splat(ONE), sqrt(splat(mean + eps)))


@inline
def layer_norm_row(x, out, weight, bias, n_true, eps):
    """Write the layer norm of a row of n_true f32: (x - mean) / deviation * weight + bias.

    weight, bias   f32 padded with zeros to a multiple of 16, so that the row's padding becomes 0;
                   bias may be 0 for none
    """
    n = (n_true + 15) // 16
    total = splat(ZERO)
    for i in range(n):
        total = total + lanes_between(load_f32x16(x + 64 * i), 0, n_true - 16 * i, ZERO)
    mean = splat(hsum(total) / f32(n_true))
    total = splat(ZERO)
    for i in range(n):
        v = lanes_between(vsub(load_f32x16(x + 64 * i), mean), 0, n_true - 16 * i, ZERO)
        total = fma(v, v, total)
    scale = vdiv(splat(ONE), sqrt(splat(hsum(total) / f32(n_true) + eps)))
    for i in range(n):
        v = vmul(vsub(load_f32x16(x + 64 * i), mean), scale)
        shift = load_f32x16(bias + 64 * i) if bias != 0 else splat(ZERO)
        v = fma(v, load_f32x16(weight + 64 * i), shift)
        store_f32x16(out + 64 * i, lanes_between(v, 0, n_true - 16 * i, ZERO))


@inline
def _activated(transform, x, up):
    """Return the activation of a vector, times `up` where there is a gate."""
    if transform == SILU:
        return vmul(silu(x), up)
    if transform == GELU_TANH:
        return vmul(gelu_tanh(x), up)
    if transform == SWIGLU_OAI:
        return swiglu_oai(x, up)
    if transform == GELU_TANH_ALONE:
        return gelu_tanh(x)
    return relu_squared(x)


@inline
def _transform_row(a, x, up, row):
    """Write the transformed row to `row`, and return where it then lies."""
    n = a.width // 16
    if a.transform == PLAIN:
        return x
    if a.transform == RMS_NORM:
        scale = rms_scale(x, a.width, a.n_true, a.eps)
        for i in range(n):
            v = vmul(load_f32x16(x + 64 * i), scale)
            store_f32x16(row + 64 * i, vmul(v, load_f32x16(a.norm + 64 * i)))
        return row
    if a.transform == LAYER_NORM:
        layer_norm_row(x, row, a.norm, a.bias, a.n_true, a.eps)
        for i in range((a.n_true + 15) // 16, n):
            store_f32x16(row + 64 * i, splat(ZERO))
        return row
    if a.transform == SCALE:
        for i in range(n):
            store_f32x16(row + 64 * i, vmul(load_f32x16(x + 64 * i), splat(a.factor)))
        return row
    for i in range(n):
        v = _activated(a.transform, load_f32x16(x + 64 * i), load_f32x16(up + 64 * i))
        store_f32x16(row + 64 * i, v)
    return row


@inline
def _quantize_row(a, row, out, n_tokens, token):
    """Quantize a row to int8 with one scale for 32 values and write it as one of T tokens.

    scale = max|x| / 127, code = round(x * (127 / max|x|)), half to even.
    """
    block_nbytes = n_tokens * (36 + 4 * a.n_words)
    for block in range(a.width // 32):
        low, high = load_f32x16(row + 128 * block), load_f32x16(row + 128 * block + 64)
        largest = hmax_abs(low, high)
        inverse = MAX_CODE / largest if largest > TINY else ZERO
        scale = largest / MAX_CODE
        codes_low = round_to_i32(vmul(low, splat(inverse)))
        codes_high = round_to_i32(vmul(high, splat(inverse)))
        at = out + block * block_nbytes
        store_i8x16(at + 32 * token, codes_low)
        store_i8x16(at + 32 * token + 16, codes_high)
        store_f32(at + 32 * n_tokens + 4 * token, scale)
        sum_low, sum_high = hsum_i32(codes_low), hsum_i32(codes_high)
        for w in range(a.n_words):
            part = a.word_part[w]
            total = sum_low + sum_high if part == 0 else (sum_low if part == 1 else sum_high)
            word = at + 36 * n_tokens + 4 * (w * n_tokens + token)
            if a.word_is_float[w] != 0:
                store_f32(word, scale * f32(total))
            else:
                store_i32(word, np.int32(total * a.word_factor[w]))


@inline
def _interleave_row(a, row, out, n_tokens, token):
    """Write a row of f32 as one of T tokens."""
    for k in range(a.width):
        store_f32(out + 4 * (k * n_tokens + token), load_f32(row + 4 * k))


@inline
def _stage_group(a, out, start, n, head, scratch):
    """Transform and lay out entries [start, start + n) as one group; of a head, its rows."""
    for token in range(n):
        entry = start + token
        row = load_i64(a.rows + 8 * entry) if a.rows != 0 else entry
        x = a.x + row * a.x_stride + head * a.head_nbytes
        up = a.up + row * a.up_stride
        values = _transform_row(a, x, up, scratch)
        if a.is_float != 0:
            _interleave_row(a, values, out, n, token)
        else:
            _quantize_row(a, values, out, n, token)


@op
def stage(args, thread, n_threads):
    """Transform, quantize and lay out the step's rows, group by group."""
    a = view(args, ARGS)
    private = load_i64(a.private) != 0
    base = a.out + a.out_thread_stride * thread if private else a.out
    scratch = a.scratch + a.scratch_stride * thread
    # A step's only row is laid out once for all the experts it goes to.
    has_runs = a.runs != 0 and not (private and a.rows != 0)
    n_runs = load_i64(a.n_runs) if has_runs else max(a.n_heads, 1)
    wanted = 0 if private else atomic_add(a.counter, 1)
    group, start = 0, 0
    for run in range(n_runs):
        n_left = load_i64(a.runs + 24 * run + 16) if has_runs else load_i64(a.n_rows)
        head, first = (run, start) if a.n_heads != 0 else (0, 0)
        while n_left > 0:
            n = group_size(n_left)
            if private or group == wanted:
                out = base + start * a.row_nbytes
                _stage_group(a, out, start - first, n, head, scratch)
                if not private:
                    wanted = atomic_add(a.counter, 1)
            group += 1
            start += n
            n_left -= n
