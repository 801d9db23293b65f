"""iq2_xs: groups of 8 levels from a codebook of 512, signs apart, one scale for 16 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits
from quantcli.formats.codebooks import EVEN_SIGNS, LEVELS_2, indices, signed

# 74 bytes, 256 weights, sub-block b = i / 16, group g = i / 8:
# weight i = d * (s[b] + 1/2) / 4 * level i % 8 of group q[g], or minus that.
#
#   byte 0..1            d, the scale of the scales
#   byte 2 + 2g .. + 1   one number of 16 bits; bits 8..0: q[g]                         (g < 32)
#                        bits 15..9: the signs of its first seven, then see EVEN_SIGNS
#   byte 66 + c          bits 3..0 and 7..4: s[2c], s[2c + 1]                           (c < 8)
BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (s + 1/2) / 4 * level, with its sign."""
    s = split_bits(blocks["scales"], 4).transpose(0, 2, 1).reshape(-1, 16)
    scales = blocks["d"].astype(np.float32)[:, None] * (np.float32(0.5) + s) * np.float32(0.25)
    magnitudes = LEVELS_2[indices("iq2_xs")[blocks["qs"] & np.uint16(511)]]
    return signed(scales, magnitudes, EVEN_SIGNS[blocks["qs"] >> np.uint16(9)])


FORMAT = BlockFormat(name="iq2_xs", ggml_id=17, block=BLOCK, weights_per_block=256, decode=decode)
