"""tq2_0: weights -1, 0 and 1 in 2 bits each, one scale for 256."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits

# 66 bytes, 256 weights: weight i = d * (q[i] - 1); a q of 3 means 2 and is never encoded.
#
#   byte 32h + l   bits 2j+1..2j: q[128h + 32j + l]        (h < 2, j < 4, l < 32)
#   byte 64..65    d, the scale
BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (q - 1)."""
    codes = split_bits(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256).view(np.int8)
    codes -= 1
    weights = codes.astype(np.float32)
    weights *= blocks["d"].astype(np.float32)[:, None]
    return weights


FORMAT = BlockFormat(name="tq2_0", ggml_id=35, block=BLOCK, weights_per_block=256, decode=decode)
