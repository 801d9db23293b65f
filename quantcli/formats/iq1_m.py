"""iq1_m: the groups of iq1_s, each moved by an 1/8 of its own, one scale for 16 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits
from quantcli.formats.codebooks import DELTA, LEVELS_1, indices

# 56 bytes, 256 weights, sub-block b = i / 16, group g = i / 8:
# weight i = d * (2 * s[b] + 1) * (level i % 8 of group q[g] + 1/8), or - 1/8 where m[g] is set.
#
#   byte g                bits 7..0 of q[g]                                            (g < 32)
#   byte 32 + c           bits 2..0 and 6..4: bits 10..8 of q[2c], q[2c + 1]           (c < 16)
#                         bits 3 and 7: m[2c], m[2c + 1]
#   byte 48 + 2c .. + 1   one number of 16 bits; bits 3j+2..3j: s[4c + j]         (c < 4, j < 4)
#                         bits 15..12: bits 4c+3..4c of d, the scale of the scales, an f16
BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])

_SHIFTS = np.arange(0, 12, 3, dtype=np.uint16)


def main_scale(blocks: Blocks) -> F32:
    """Return d, f32 (n_blocks,)."""
    parts = blocks["scales"] >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(parts, axis=1).astype(np.uint16)
    scale: F32 = d.view(np.float16).astype(np.float32)
    return scale


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (2 * s + 1) * (level +- 1/8)."""
    s = (blocks["scales"][..., None] >> _SHIFTS & np.uint16(7)).reshape(-1, 16)
    scales = main_scale(blocks)[:, None] * (np.uint16(2) * s + np.uint16(1)).astype(np.float32)
    high = split_bits(blocks["qh"], 4).transpose(0, 2, 1).reshape(-1, 32)
    codes = blocks["qs"] | (high & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    weights: F32 = LEVELS_1[indices("iq1_s")[codes]]
    weights += np.where(high >> np.uint8(3), -DELTA, DELTA)[..., None]
    weights = weights.reshape(-1, 16, 16)
    weights *= scales[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="iq1_m", ggml_id=29, block=BLOCK, weights_per_block=256, decode=decode)
