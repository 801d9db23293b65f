"""f16: IEEE half precision; a block is one weight."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet

# 2 bytes, 1 weight: the number itself, little-endian.
BLOCK = np.dtype([("w", "<f2")])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return the weights; f16 to f32 is exact."""
    return blocks["w"].astype(np.float32)[:, None]


@quiet
def encode(weights: F32) -> Blocks:
    """Round to the nearest half, ties to even; beyond 65504 that is infinity."""
    blocks = np.empty(len(weights), BLOCK)
    blocks["w"] = weights[:, 0]
    return blocks


FORMAT = BlockFormat(
    name="f16",
    ggml_id=1,
    block=BLOCK,
    weights_per_block=1,
    decode=decode,
    encode=encode,
    rmse_budget=0.00021,
)
