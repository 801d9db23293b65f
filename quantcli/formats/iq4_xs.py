"""iq4_xs: the codes of iq4_nl, 8 sub-blocks of 32 weights with signed 6-bit scales."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits
from quantcli.formats.iq4_nl import LEVELS

# 136 bytes, 256 weights, sub-block b = i / 32: weight i = (d * (s[b] - 32)) * LEVELS[q[i]].
#
#   byte 0..1          d, the scale of the scales
#   byte 2..3          one number of 16 bits; bits 2b+1..2b: bits 5..4 of s[b]      (b < 8)
#   byte 4 + c         bits 3..0 and 7..4: bits 3..0 of s[2c], s[2c + 1]            (c < 4)
#   byte 8 + 16b + l   bits 3..0: q[32b + l]    bits 7..4: q[32b + 16 + l]          (l < 16)
BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])

_HIGH = np.arange(0, 16, 2, dtype=np.uint16)


@quiet
def scales(blocks: Blocks) -> F32:
    """Return d * (s - 32), f32 (n_blocks, 8)."""
    low = split_bits(blocks["scales_l"], 4).transpose(0, 2, 1).reshape(-1, 8)
    high = (blocks["scales_h"][:, None] >> _HIGH).astype(np.uint8) & np.uint8(3)
    signed = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    product: F32 = signed * blocks["d"].astype(np.float32)[:, None]
    return product


@quiet
def decode(blocks: Blocks) -> F32:
    """Return (d * (s - 32)) * LEVELS[q]."""
    weights: F32 = LEVELS[split_bits(blocks["qs"].reshape(-1, 8, 16), 4).reshape(-1, 8, 32)]
    weights *= scales(blocks)[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="iq4_xs", ggml_id=23, block=BLOCK, weights_per_block=256, decode=decode)
