"""q4_1: 4-bit codes above a minimum, scale and minimum for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import join_bits, quiet, split_bits
from quantcli.formats.rounding import with_minimum

# 20 bytes, 32 weights: weight i = d * q[i] + m.
#
#   byte 0..1    d, the scale
#   byte 2..3    m, the minimum
#   byte 4 + i   bits 3..0: q[i]    bits 7..4: q[i + 16]        (i < 16)
BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * q + m."""
    weights = split_bits(blocks["qs"], 4).reshape(-1, 32).astype(np.float32)
    weights *= blocks["d"].astype(np.float32)[:, None]
    weights += blocks["m"].astype(np.float32)[:, None]
    return weights


@quiet
def encode(weights: F32) -> Blocks:
    """Round to nearest on the grid from the smallest weight to the largest."""
    d, m, codes = with_minimum(weights, 15)
    blocks = np.empty(len(weights), BLOCK)
    blocks["d"] = d[:, 0]
    blocks["m"] = m[:, 0]
    blocks["qs"] = join_bits(codes.reshape(-1, 2, 16), 4)
    return blocks


FORMAT = BlockFormat(
    name="q4_1",
    ggml_id=3,
    block=BLOCK,
    weights_per_block=32,
    decode=decode,
    encode=encode,
    rmse_budget=0.0786,
)
