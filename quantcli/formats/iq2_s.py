"""iq2_s: groups of 8 levels from a codebook of 1024, signs apart, one scale for 16 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits
from quantcli.formats.codebooks import LEVELS_2, indices, signed

# 82 bytes, 256 weights, sub-block b = i / 16, group g = i / 8:
# weight i = d * (s[b] + 1/2) / 4 * level i % 8 of group q[g], or minus that.
#
#   byte 0..1     d, the scale of the scales
#   byte 2 + g    bits 7..0 of q[g]                                                    (g < 32)
#   byte 34 + g   bit j is set: weight 8g + j is negative
#   byte 66 + c   bits 2j+1..2j: bits 9..8 of q[4c + j]                         (c < 8, j < 4)
#   byte 74 + c   bits 3..0 and 7..4: s[2c], s[2c + 1]                                  (c < 8)
BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (s + 1/2) / 4 * level, with its sign."""
    s = split_bits(blocks["scales"], 4).transpose(0, 2, 1).reshape(-1, 16)
    scales = blocks["d"].astype(np.float32)[:, None] * (np.float32(0.5) + s) * np.float32(0.25)
    high = split_bits(blocks["qh"], 2).transpose(0, 2, 1).reshape(-1, 32)
    codes = blocks["qs"] | high.astype(np.uint16) << np.uint16(8)
    return signed(scales, LEVELS_2[indices("iq2_s")[codes]], blocks["signs"])


FORMAT = BlockFormat(name="iq2_s", ggml_id=22, block=BLOCK, weights_per_block=256, decode=decode)
