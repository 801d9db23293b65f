"""Scales and codes by rounding to nearest: what the formats with blocks of 32 encode with.

The order of operations is that of llama.cpp's reference quantizers, so the bytes are theirs too.
All arithmetic is f32. Codes are clamped before they become integers, because turning NaN or a
value out of range into an integer gives different bytes on different machines.
"""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, U8
from quantcli.formats.bits import quiet


@quiet
def symmetric(weights: F32, half: int) -> tuple[F32, U8]:
    """Return d and codes in [0, 2 * half) with weights ~ d * (codes - half).

    weights  f32 (n_blocks, n)
    half     8 for 4-bit codes, 16 for 5-bit ones
    return   f32 (n_blocks, 1), u8 (n_blocks, n)

    d is chosen so that the weight of largest magnitude, the first of equals, gets code 0: there is
    one more code on that side.
    """
    where = np.abs(weights).argmax(axis=-1, keepdims=True)
    d = np.take_along_axis(weights, where, axis=-1) / np.float32(-half)
    inverse = _reciprocal(d)
    # Where 1 / d overflows, the reference arrives at code 0. d is then stored as zero, so that any
    # code would do, but equal bytes are easier to check than equal weights.
    middle = np.where((inverse == 0) & (d != 0), np.float32(0), np.float32(half + 0.5))
    codes = weights * inverse
    codes += middle
    return d, _truncate(codes, 2 * half - 1)


@quiet
def with_minimum(weights: F32, largest: int) -> tuple[F32, F32, U8]:
    """Return d, m and codes in [0, largest] with weights ~ d * codes + m.

    weights  f32 (n_blocks, n)
    largest  15 for 4-bit codes, 31 for 5-bit ones
    return   f32 (n_blocks, 1), f32 (n_blocks, 1), u8 (n_blocks, n)

    m is the smallest weight and d spreads the codes evenly up to the largest one.
    """
    m = weights.min(axis=-1, keepdims=True)
    d = (weights.max(axis=-1, keepdims=True) - m) / np.float32(largest)
    codes = weights - m
    codes *= _reciprocal(d)
    codes += np.float32(0.5)
    return d, m, _truncate(codes, largest)


@quiet
def by_magnitude(weights: F32, largest: int) -> tuple[F32, F32]:
    """Return d and whole-numbered codes in [-largest, largest] with weights ~ d * codes.

    weights  f32 (n_blocks, n)
    largest  127 for 8-bit codes
    return   f32 (n_blocks, 1), f32 (n_blocks, n)

    Halves round away from zero, as C's roundf does.
    """
    d = np.abs(weights).max(axis=-1, keepdims=True) / np.float32(largest)
    exact = weights * _reciprocal(d)
    codes = np.trunc(exact)
    # The remainder is exact, whereas adding 0.5 first would push 0.49999997 up to 1.
    exact -= codes
    exact *= np.float32(2)
    codes += np.trunc(exact)
    return d, np.fmin(np.fmax(codes, np.float32(-largest)), np.float32(largest))


def _reciprocal(d: F32) -> F32:
    """Return 1 / d, and 0 where d is zero or so small that 1 / d overflows."""
    inverse = np.float32(1) / d
    inverse[np.isinf(inverse)] = 0
    return inverse


def _truncate(codes: F32, largest: int) -> U8:
    """Return codes cut to whole numbers in [0, largest], NaN to 0; overwrites its argument."""
    np.fmax(codes, np.float32(0), out=codes)
    np.fmin(codes, np.float32(largest), out=codes)
    return codes.astype(np.uint8)
