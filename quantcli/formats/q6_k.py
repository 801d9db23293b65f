"""q6_k: 6-bit codes around zero, 16 sub-blocks of 16 weights with signed 8-bit scales."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits

# 210 bytes, 256 weights, sub-block b = i / 16: weight i = (d * s[b]) * (q[i] - 32).
#
#   byte 64h + l         bits 3..0 and 7..4: bits 3..0 of q[128h + l], q[128h + 64 + l]
#                        for h < 2 and l < 64
#   byte 128 + 32h + l   bits 2j+1..2j: bits 5..4 of q[128h + 32j + l]   (h < 2, j < 4, l < 32)
#   byte 192 + b         s[b], two's complement                          (b < 16)
#   byte 208..209        d, the scale of the scales
BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return (d * s) * (q - 32)."""
    scales = blocks["scales"] * blocks["d"].astype(np.float32)[:, None]
    codes = split_bits(blocks["qh"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes <<= 4
    codes |= split_bits(blocks["ql"].reshape(-1, 2, 64), 4).reshape(-1, 256)
    codes -= 32
    weights = codes.view(np.int8).reshape(-1, 16, 16).astype(np.float32)
    weights *= scales[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="q6_k", ggml_id=14, block=BLOCK, weights_per_block=256, decode=decode)
