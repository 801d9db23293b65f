"""q4_0: 4-bit codes around zero, one scale for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import join_bits, quiet, split_bits
from quantcli.formats.rounding import symmetric

# 18 bytes, 32 weights: weight i = d * (q[i] - 8).
#
#   byte 0..1    d, the scale
#   byte 2 + i   bits 3..0: q[i]    bits 7..4: q[i + 16]        (i < 16)
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (q - 8)."""
    codes = split_bits(blocks["qs"], 4).reshape(-1, 32).view(np.int8)
    codes -= 8
    weights = codes.astype(np.float32)
    weights *= blocks["d"].astype(np.float32)[:, None]
    return weights


@quiet
def encode(weights: F32) -> Blocks:
    """Round to nearest; the weight of largest magnitude gets code 0."""
    d, codes = symmetric(weights, 8)
    blocks = np.empty(len(weights), BLOCK)
    blocks["d"] = d[:, 0]
    blocks["qs"] = join_bits(codes.reshape(-1, 2, 16), 4)
    return blocks


FORMAT = BlockFormat(
    name="q4_0",
    ggml_id=2,
    block=BLOCK,
    weights_per_block=32,
    decode=decode,
    encode=encode,
    rmse_budget=0.0865,
)
