"""iq3_s: groups of 4 levels from a codebook of 512, signs apart, one scale for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits
from quantcli.formats.codebooks import LEVELS_3_S, indices, signed

# 110 bytes, 256 weights, sub-block b = i / 32, group g = i / 4:
# weight i = d * (2 * s[b] + 1) * level i % 4 of group q[g], or minus that.
#
#   byte 0..1      d, the scale of the scales
#   byte 2 + g     bits 7..0 of q[g]                                                   (g < 64)
#   byte 66 + c    bit j: bit 8 of q[8c + j]                                    (c < 8, j < 8)
#   byte 74 + c    bit j is set: weight 8c + j is negative                            (c < 32)
#   byte 106 + c   bits 3..0 and 7..4: s[2c], s[2c + 1]                                 (c < 4)
BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (2 * s + 1) * level, with its sign."""
    s = split_bits(blocks["scales"], 4).transpose(0, 2, 1).reshape(-1, 8)
    scales = blocks["d"].astype(np.float32)[:, None] * (np.uint8(1) + np.uint8(2) * s)
    high = np.unpackbits(blocks["qh"], axis=-1, bitorder="little").astype(np.uint16)
    codes = blocks["qs"] | high << np.uint16(8)
    return signed(scales, LEVELS_3_S[indices("iq3_s")[codes]], blocks["signs"])


FORMAT = BlockFormat(name="iq3_s", ggml_id=21, block=BLOCK, weights_per_block=256, decode=decode)
