"""q8_0: signed 8-bit codes, one scale for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet
from quantcli.formats.rounding import by_magnitude

# 34 bytes, 32 weights: weight i = d * q[i].
#
#   byte 0..1    d, the scale
#   byte 2 + i   q[i], two's complement; encode never writes -128, files may hold it
BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * q."""
    weights: F32 = blocks["qs"].astype(np.float32)
    weights *= blocks["d"].astype(np.float32)[:, None]
    return weights


@quiet
def encode(weights: F32) -> Blocks:
    """Round to nearest, halves away from zero; the largest magnitude gets code 127 or -127."""
    d, codes = by_magnitude(weights, 127)
    blocks = np.empty(len(weights), BLOCK)
    blocks["d"] = d[:, 0]
    blocks["qs"] = codes
    return blocks


FORMAT = BlockFormat(
    name="q8_0",
    ggml_id=8,
    block=BLOCK,
    weights_per_block=32,
    decode=decode,
    encode=encode,
    rmse_budget=0.0054,
)
