"""nvfp4: floats of 4 bits as in mxfp4, one float of 8 bits as the scale of 16 weights."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import split_bits
from quantcli.formats.mxfp4 import LEVELS

# 36 bytes, 64 weights, sub-block b = i / 16: weight i = SCALES[s[b]] * LEVELS[q[i]].
#
#   byte b            s[b]                                                        (b < 4)
#   byte 4 + 8b + l   bits 3..0: q[16b + l]    bits 7..4: q[16b + 8 + l]          (l < 8)
BLOCK = np.dtype([("scales", "u1", 4), ("qs", "u1", 32)])


def _scale(byte: int) -> float:
    """Return half of what a float of 8 bits stands for: 4 bits of exponent, 3 of fraction."""
    exponent, fraction = byte >> 3 & 15, byte & 7
    if byte == 0x7F:  # not a number; 0xFF is read as a number
        return 0.0
    return float(np.ldexp(8 + fraction if exponent else fraction, max(exponent, 1) - 11))


SCALES = np.array([_scale(byte) for byte in range(256)], np.float32)


def decode(blocks: Blocks) -> F32:
    """Return SCALES[s] * LEVELS[q]."""
    weights: F32 = LEVELS[split_bits(blocks["qs"].reshape(-1, 4, 8), 4).reshape(-1, 4, 16)]
    weights *= SCALES[blocks["scales"]][..., None]
    return weights.reshape(-1, 64)


FORMAT = BlockFormat(name="nvfp4", ggml_id=40, block=BLOCK, weights_per_block=64, decode=decode)
