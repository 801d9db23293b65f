"""iq2_xxs: groups of 8 levels from a codebook of 256, signs apart, one scale for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet
from quantcli.formats.codebooks import EVEN_SIGNS, LEVELS_2, indices, signed

# 66 bytes, 256 weights, sub-block b = i / 32 of four groups g = i / 8 % 4:
# weight i = d * (s[b] + 1/2) / 4 * level i % 8 of group q[b, g], or minus that.
#
#   byte 0..1            d, the scale of the scales
#   byte 2 + 8b + g      q[b, g]                                                     (b < 8, g < 4)
#   byte 6 + 8b .. + 3   one number of 32 bits; bits 31..28: s[b]
#                        bits 7g + 6..7g: the signs of group g's first seven, then see EVEN_SIGNS
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", (8, 8))])

_SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (s + 1/2) / 4 * level, with its sign."""
    n = len(blocks)
    packed = np.ascontiguousarray(blocks["qs"][:, :, 4:]).view("<u4").reshape(n, 8)
    signs = EVEN_SIGNS[packed[..., None] >> _SHIFTS & np.uint32(127)].reshape(n, 32)
    factors = np.float32(0.5) + (packed >> np.uint32(28)).astype(np.float32)
    scales = blocks["d"].astype(np.float32)[:, None] * factors * np.float32(0.25)
    return signed(scales, LEVELS_2[indices("iq2_xxs")[blocks["qs"][:, :, :4]]], signs)


FORMAT = BlockFormat(name="iq2_xxs", ggml_id=16, block=BLOCK, weights_per_block=256, decode=decode)
