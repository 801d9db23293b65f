"""mxfp4: floats of 4 bits, one power of two for 32 weights (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, BlockFormat, Blocks
from quantcli.formats.bits import split_bits

# Twice what the codes stand for: one bit of sign, two of exponent, one of fraction. The codes 0 and
# 8 both mean 0, never -0.
LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

# 17 bytes, 32 weights: weight i = 2**(e - 128) * LEVELS[q[i]]; e = 255 is no NaN here.
#
#   byte 0       e, the exponent
#   byte 1 + i   bits 3..0: q[i]    bits 7..4: q[i + 16]        (i < 16)
BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])


def scale(blocks: Blocks) -> F32:
    """Return 2**(e - 128), f32 (n_blocks,); the two smallest are subnormal, and exact."""
    return np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)


def decode(blocks: Blocks) -> F32:
    """Return 2**(e - 128) * LEVELS[q]."""
    weights: F32 = LEVELS[split_bits(blocks["qs"], 4).reshape(-1, 32)]
    with np.errstate(over="ignore"):
        weights *= scale(blocks)[:, None]
    return weights


FORMAT = BlockFormat(name="mxfp4", ggml_id=39, block=BLOCK, weights_per_block=32, decode=decode)
