"""Rounding as the compiled kernels do it: of activations to int8, of keys and values to a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantcli.formats import F32

_BLOCK = 32  # values that share a scale, in q8 activations and q8_0 keys and values


def round_activations(x: F32) -> F32:
    """Return x as it is after int8 in blocks of 32: q = rint(x * (127 / amax)), x' = q * amax/127.

    x  f32 (rows, n_in)   n_in a multiple of 32
    """
    blocks = x.reshape(len(x), x.shape[1] // _BLOCK, _BLOCK)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    rounded: F32 = _codes(blocks, amax) * (amax / np.float32(127.0))
    return rounded.reshape(x.shape)


def _codes(blocks: F32, amax: F32) -> F32:
    inverse = np.divide(np.float32(127.0), amax, out=np.zeros_like(amax), where=amax > 0)
    codes: F32 = np.rint(blocks * inverse)
    return codes


def _as_is(x: F32) -> F32:
    return x


def _through_f16(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def _through_q8_0(x: F32) -> F32:
    """Round each head as q8_0 stores it: like activations, but with an f16 scale."""
    pad = -x.shape[-1] % _BLOCK
    blocks = np.pad(x, ((0, 0), (0, 0), (0, pad))).reshape(*x.shape[:2], -1, _BLOCK)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    rounded = _codes(blocks, amax) * _through_f16(amax / np.float32(127.0))
    return rounded.reshape(*x.shape[:2], -1)[:, :, : x.shape[-1]]


KV_ROUNDING: dict[str, Callable[[F32], F32]] = {
    "f32": _as_is,
    "f16": _through_f16,
    "q8_0": _through_q8_0,
}
