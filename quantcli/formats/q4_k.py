"""q4_k: 4-bit codes above a minimum, 8 sub-blocks of 32 weights with 6-bit scales and minima."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, scales_and_minima, split_bits

# 144 bytes, 256 weights, sub-block b = i / 32: weight i = (d * s[b]) * q[i] - dmin * m[b].
#
#   byte 0..1           d, the scale of the scales
#   byte 2..3           dmin, the scale of the minima
#   byte 4..15          s[0..7], m[0..7]: see bits.scales_and_minima
#   byte 16 + 32p + l   bits 3..0: q[64p + l]    bits 7..4: q[64p + 32 + l]     (p < 4, l < 32)
BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return (d * s) * q - dmin * m."""
    s, m = scales_and_minima(blocks["scales"])
    scales = s * blocks["d"].astype(np.float32)[:, None]
    minima = m * blocks["dmin"].astype(np.float32)[:, None]
    codes = split_bits(blocks["qs"].reshape(-1, 4, 32), 4)
    weights = codes.reshape(-1, 8, 32).astype(np.float32)
    weights *= scales[..., None]
    weights -= minima[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="q4_k", ggml_id=12, block=BLOCK, weights_per_block=256, decode=decode)
