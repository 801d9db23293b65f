"""iq3_xxs: groups of 4 levels from a codebook of 256, signs apart, one scale for 32 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet
from quantcli.formats.codebooks import EVEN_SIGNS, LEVELS_3_XXS, indices, signed

# 98 bytes, 256 weights, sub-block b = i / 32, group g = i / 4:
# weight i = d * (s[b] + 1/2) / 2 * level i % 4 of group q[g], or minus that.
#
#   byte 0..1             d, the scale of the scales
#   byte 2 + g            q[g]                                                         (g < 64)
#   byte 66 + 4b .. + 3   one number of 32 bits; bits 31..28: s[b]                      (b < 8)
#                         bits 7e + 6..7e: the signs of seven from 32b + 8e on, then see EVEN_SIGNS
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("scales", "<u4", 8)])

_SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (s + 1/2) / 2 * level, with its sign."""
    packed = blocks["scales"]
    signs = EVEN_SIGNS[packed[..., None] >> _SHIFTS & np.uint32(127)].reshape(-1, 32)
    factors = np.float32(0.5) + (packed >> np.uint32(28)).astype(np.float32)
    scales = blocks["d"].astype(np.float32)[:, None] * factors * np.float32(0.5)
    return signed(scales, LEVELS_3_XXS[indices("iq3_xxs")[blocks["qs"]]], signs)


FORMAT = BlockFormat(name="iq3_xxs", ggml_id=18, block=BLOCK, weights_per_block=256, decode=decode)
