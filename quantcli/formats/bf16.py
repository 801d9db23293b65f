"""bf16: the upper half of an IEEE single; a block is one weight."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks

# 2 bytes, 1 weight: sign, 8 bits of exponent and 7 of fraction of an f32, little-endian.
BLOCK = np.dtype([("w", "<u2")])


def decode(blocks: Blocks) -> F32:
    """Return the weights; the lower half of each f32 is zero."""
    bits = blocks["w"].astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)[:, None]


def encode(weights: F32) -> Blocks:
    """Round to nearest, ties to even; a NaN stays one and becomes quiet."""
    bits = np.ascontiguousarray(weights[:, 0]).view(np.uint32)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits >> 16) & 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    # Rounding could carry a NaN into infinity or zero, so it is cut instead.
    rounded[is_nan] = (bits[is_nan] >> 16) | 0x40
    blocks = np.empty(len(weights), BLOCK)
    blocks["w"] = rounded
    return blocks


FORMAT = BlockFormat(
    name="bf16",
    ggml_id=30,
    block=BLOCK,
    weights_per_block=1,
    decode=decode,
    encode=encode,
    rmse_budget=0.00168,
)
