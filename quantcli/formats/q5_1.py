"""q5_1: 5-bit codes above a minimum, scale and minimum for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import join_codes_5, quiet, split_codes_5
from quantcli.formats.rounding import with_minimum

# 24 bytes, 32 weights: weight i = d * q[i] + m.
#
#   byte 0..1        d, the scale
#   byte 2..3        m, the minimum
#   byte 4 + i / 8   bit i % 8: bit 4 of q[i]                                (i < 32)
#   byte 8 + i       bits 3..0 and 7..4: bits 3..0 of q[i], q[i + 16]        (i < 16)
BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * q + m."""
    weights = split_codes_5(blocks["qs"], blocks["qh"]).astype(np.float32)
    weights *= blocks["d"].astype(np.float32)[:, None]
    weights += blocks["m"].astype(np.float32)[:, None]
    return weights


@quiet
def encode(weights: F32) -> Blocks:
    """Round to nearest on the grid from the smallest weight to the largest."""
    d, m, codes = with_minimum(weights, 31)
    blocks = np.empty(len(weights), BLOCK)
    blocks["d"] = d[:, 0]
    blocks["m"] = m[:, 0]
    blocks["qs"], blocks["qh"] = join_codes_5(codes)
    return blocks


FORMAT = BlockFormat(
    name="q5_1",
    ggml_id=7,
    block=BLOCK,
    weights_per_block=32,
    decode=decode,
    encode=encode,
    rmse_budget=0.0382,
)
