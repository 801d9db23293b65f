"""q2_k: 2-bit codes above a minimum, 16 sub-blocks of 16 weights with 4-bit scales and minima."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits

# 84 bytes, 256 weights, sub-block b = i / 16: weight i = (d * s[b]) * q[i] - dmin * m[b].
#
#   byte b              bits 3..0: s[b]    bits 7..4: m[b]      (b < 16)
#   byte 16 + 32h + l   bits 2j+1..2j: q[128h + 32j + l]        (h < 2, j < 4, l < 32)
#   byte 80..81         d, the scale of the scales
#   byte 82..83         dmin, the scale of the minima
BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return (d * s) * q - dmin * m."""
    scales = (blocks["scales"] & 0x0F) * blocks["d"].astype(np.float32)[:, None]
    minima = (blocks["scales"] >> 4) * blocks["dmin"].astype(np.float32)[:, None]
    codes = split_bits(blocks["qs"].reshape(-1, 2, 32), 2)
    weights = codes.reshape(-1, 16, 16).astype(np.float32)
    weights *= scales[..., None]
    weights -= minima[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="q2_k", ggml_id=10, block=BLOCK, weights_per_block=256, decode=decode)
