"""How keys and values lie in the KV cache, and the op that rotates and stores a step's own.

Sixteen keys make a record, so that a dot with a query needs no horizontal sum: lane r is key r.

    keys    f16   half (head_dim, 16)
            q8_0  i8 (head_dim, 16), then half (head_dim / 32, 16): a scale for 32 dimensions
    values  f16   half (16, head_dim)
            q8_0  i8 (16, head_dim), then half (16, head_dim / 32)

A page has, for each kv head, page_size / 16 records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba.extending import overload
from numpy import float32 as f32

from quantcli.kernels.jit import inline
from quantcli.kernels.simd import (
    hmax_abs,
    load_f32x16,
    load_u8,
    load_u16,
    maximum,
    minimum,
    round_to_i32,
    splat,
    store_f16,
    store_f16x16,
    store_i8x16,
    store_u8,
    store_u16,
    vmul,
    vsub,
)
from quantcli.kernels.static import register_static

RECORD_KEYS = 16
HALF_MAX, ZERO, MAX_CODE = f32(65504.0), f32(0.0), f32(127.0)


@register_static
@dataclass(frozen=True, slots=True, eq=False)
class KvFormat:
    """One way to keep keys and values.

    name           the catalog's spelling
    record_nbytes  head_dim -> bytes of 16 keys, or of 16 values, of one head
    store_key      compiled (k, record, key, head_dim, scratch): write one key into a record
    store_value    the same for a value
    """

    name: str
    record_nbytes: Callable[[int], int]
    store_key: Callable[..., None]
    store_value: Callable[..., None]


def reference(x, name):
    """Return f32 (..., head_dim) keys or values as they are read back from a cache of a type."""
    if name == "f16":
        half = np.clip(x, -HALF_MAX, HALF_MAX).astype(np.float16)
        return np.where(np.isfinite(x), half, np.nan).astype(np.float32)
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(MAX_CODE, largest, out=np.zeros_like(largest), where=largest > 0)
    scale = np.minimum(largest / MAX_CODE, HALF_MAX).astype(np.float16).astype(np.float32)
    scale[~np.isfinite(largest)] = np.nan
    return (np.rint(blocks * inverse) * scale).reshape(x.shape)


@inline
def _to_half_range(x):
    """Clamp to what a half can hold, so that no key or value that overflows makes a later 0 * inf.

    Infinity is no number that overflowed: it becomes NaN, as x - x does, and reaches the logits.
    """
    bounded = minimum(splat(HALF_MAX), maximum(splat(-HALF_MAX), x))
    return vsub(bounded, vsub(x, x))


@inline
def _store_key_f16(k, record, key, head_dim, scratch):
    for i in range(head_dim // 16):
        store_f16x16(scratch, _to_half_range(load_f32x16(k + 64 * i)))
        for j in range(16):
            store_u16(record + 32 * (16 * i + j) + 2 * key, load_u16(scratch + 2 * j))


@inline
def _store_value_f16(v, record, key, head_dim, scratch):
    out = record + 2 * key * head_dim
    for i in range(head_dim // 16):
        store_f16x16(out + 32 * i, _to_half_range(load_f32x16(v + 64 * i)))


@inline
def _quantize_32(x, codes):
    """Write 32 values as i8 codes and return their scale, max|x| / 127; NaN if one is no number."""
    low, high = load_f32x16(x), load_f32x16(x + 64)
    largest = hmax_abs(low, high)
    inverse = MAX_CODE / largest if largest > ZERO else ZERO
    store_i8x16(codes, round_to_i32(vmul(low, splat(inverse))))
    store_i8x16(codes + 16, round_to_i32(vmul(high, splat(inverse))))
    return min(largest / MAX_CODE, HALF_MAX) + (largest - largest)


@inline
def _store_key_q8_0(k, record, key, head_dim, scratch):
    for i in range(head_dim // 32):
        scale = _quantize_32(k + 128 * i, scratch)
        store_f16(record + 16 * head_dim + 32 * i + 2 * key, scale)
        for j in range(32):
            store_u8(record + 16 * (32 * i + j) + key, load_u8(scratch + j))


@inline
def _store_value_q8_0(v, record, key, head_dim, scratch):
    n_scales = head_dim // 32
    for i in range(n_scales):
        scale = _quantize_32(v + 128 * i, record + key * head_dim + 32 * i)
        store_f16(record + 16 * head_dim + 2 * (key * n_scales + i), scale)


KV_FORMATS = {
    "f16": KvFormat("f16", lambda head_dim: 32 * head_dim, _store_key_f16, _store_value_f16),
    "q8_0": KvFormat("q8_0", lambda head_dim: 17 * head_dim, _store_key_q8_0, _store_value_q8_0),
}


def store_key(kv, k, record, key, head_dim, scratch):
    """Write one key into a record in a KvFormat."""


def store_value(kv, v, record, key, head_dim, scratch):
    """Write one value into a record in a KvFormat."""


@overload(store_key)
def _store_key(kv, k, record, key, head_dim, scratch):
    function = kv.value.store_key
    return lambda kv, k, record, key, head_dim, scratch: function(k, record, key, head_dim, scratch)


@overload(store_value)
def _store_value(kv, v, record, key, head_dim, scratch):
    function = kv.value.store_value
    return lambda kv, v, record, key, head_dim, scratch: function(v, record, key, head_dim, scratch)
