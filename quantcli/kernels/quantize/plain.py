"""Encoding without statistics: the bytes that llama.cpp's encoders write."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, U8, BlockFormat


def encode(weights: F32, fmt: BlockFormat) -> U8:
    """Return weights f32 (n_rows, n_in) as blocks, u8 (nbytes,)."""
    assert fmt.encode is not None, fmt.name
    return fmt.encode(weights.reshape(-1, fmt.weights_per_block)).view(np.uint8).reshape(-1)
