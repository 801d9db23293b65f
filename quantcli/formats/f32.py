"""f32: IEEE single precision; a block is one weight."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks

# 4 bytes, 1 weight: the number itself, little-endian.
BLOCK = np.dtype([("w", "<f4")])


def decode(blocks: Blocks) -> F32:
    """Return the weights: a fresh array, so that the file's buffer may be reused."""
    return blocks["w"].astype(np.float32)[:, None]


def encode(weights: F32) -> Blocks:
    """Return the weights unchanged."""
    blocks = np.empty(len(weights), BLOCK)
    blocks["w"] = weights[:, 0]
    return blocks


FORMAT = BlockFormat(
    name="f32", ggml_id=0, block=BLOCK, weights_per_block=1, decode=decode, encode=encode
)
