"""iq1_s: groups of 8 of -1, 0 and 1 from a codebook of 2048, moved by 1/8, a scale for 32."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet
from quantcli.formats.codebooks import DELTA, LEVELS_1, indices

# 50 bytes, 256 weights, sub-block b = i / 32, group g = i / 8:
# weight i = d * (2 * s[b] + 1) * (level i % 8 of group q[g] + 1/8), or - 1/8 where m[b] is set.
#
#   byte 0..1             d, the scale of the scales
#   byte 2 + g            bits 7..0 of q[g]                                            (g < 32)
#   byte 34 + 2b .. + 1   one number of 16 bits; bits 3j+2..3j: bits 10..8 of q[4b + j] (j < 4)
#                         bits 14..12: s[b]    bit 15: m[b]                             (b < 8)
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])

_SHIFTS = np.arange(0, 12, 3, dtype=np.uint16)


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (2 * s + 1) * (level +- 1/8)."""
    packed = blocks["qh"]
    factors = np.uint16(2) * (packed >> np.uint16(12) & np.uint16(7)) + np.uint16(1)
    scales = blocks["d"].astype(np.float32)[:, None] * factors.astype(np.float32)
    high = (packed[..., None] >> _SHIFTS & np.uint16(7)).reshape(-1, 32)
    weights: F32 = LEVELS_1[indices("iq1_s")[blocks["qs"] | high << np.uint16(8)]]
    weights = weights.reshape(-1, 8, 32)
    weights += np.where(packed >> np.uint16(15), -DELTA, DELTA)[..., None]
    weights *= scales[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="iq1_s", ggml_id=19, block=BLOCK, weights_per_block=256, decode=decode)
