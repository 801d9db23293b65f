"""Tokens that a grammar allows, one bit each, applied to a row of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantcli.kernels.jit import njit

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

f32 = np.float32


def n_words(n_tokens: int) -> int:
    """Return the words of a mask of n tokens."""
    return -(-n_tokens // 32)


def mask_reference(row: F32, allowed: U32) -> F32:
    """Return a row with -inf for every token that is not allowed; see `mask`."""
    bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: row.size].astype(bool)
    return np.where(bits | ~(row < np.inf), row, np.float32(-np.inf))


@njit
def mask(row, allowed, out):
    """Copy a row, with -inf for every token that is not allowed.

    row      f32 (n,)
    allowed  u32 (at least n / 32,)   bit i % 32 of word i / 32 is set if token i is allowed
    out      f32 (n,)

    NaN and +inf stay, so that a damaged row is seen whatever is allowed.
    """
    for word in range((row.size + 31) // 32):
        bits = allowed[word]
        part = row[word * 32 : (word + 1) * 32]
        target = out[word * 32 : (word + 1) * 32]
        for i in range(part.size):
            x = part[i]
            is_allowed = (bits >> np.uint32(i)) & np.uint32(1) != np.uint32(0)
            target[i] = x if is_allowed or not x < f32(np.inf) else f32(-np.inf)
