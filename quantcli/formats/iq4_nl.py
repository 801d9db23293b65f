"""iq4_nl: 4-bit codes of unevenly spaced levels, one scale for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits

# What the 16 codes stand for: closer together where weights are denser.
LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)

# 18 bytes, 32 weights: weight i = d * LEVELS[q[i]].
#
#   byte 0..1    d, the scale
#   byte 2 + i   bits 3..0: q[i]    bits 7..4: q[i + 16]        (i < 16)
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * LEVELS[q]."""
    weights: F32 = LEVELS[split_bits(blocks["qs"], 4).reshape(-1, 32)]
    weights *= blocks["d"].astype(np.float32)[:, None]
    return weights


FORMAT = BlockFormat(name="iq4_nl", ggml_id=20, block=BLOCK, weights_per_block=32, decode=decode)
