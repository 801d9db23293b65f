"""q3_k: 3-bit codes around zero, 16 sub-blocks of 16 weights with signed 6-bit scales."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import quiet, split_bits

# 110 bytes, 256 weights, sub-block b = i / 16: weight i = (d * (s[b] - 32)) * (q[i] - 4).
#
#   byte l              bit k: bit 2 of q[32k + l]                      (k < 8, l < 32)
#   byte 32 + 32h + l   bits 2j+1..2j: bits 1..0 of q[128h + 32j + l]   (h < 2, j < 4, l < 32)
#   byte 96 + b         bits 3..0 and 7..4: bits 3..0 of s[b], s[b + 8] (b < 8)
#   byte 104 + c        bits 2j+1..2j: bits 5..4 of s[4j + c]           (j < 4, c < 4)
#   byte 108..109       d, the scale of the scales
BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return (d * (s - 32)) * (q - 4)."""
    low = split_bits(blocks["scales"][:, :8], 4).reshape(-1, 16)
    high = split_bits(blocks["scales"][:, 8:], 2).reshape(-1, 16)
    signed = (low | (high << 4)).view(np.int8) - np.int8(32)
    scales = signed * blocks["d"].astype(np.float32)[:, None]

    codes = split_bits(blocks["hmask"], 1).reshape(-1, 256)
    codes <<= 2
    codes |= split_bits(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes -= 4
    weights = codes.view(np.int8).reshape(-1, 16, 16).astype(np.float32)
    weights *= scales[..., None]
    return weights.reshape(-1, 256)


FORMAT = BlockFormat(name="q3_k", ggml_id=11, block=BLOCK, weights_per_block=256, decode=decode)
