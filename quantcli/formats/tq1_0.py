"""tq1_0: weights -1, 0 and 1, five to a byte, one scale for 256."""

from __future__ import annotations

import numpy as np

from quantcli.formats import F32, U8, BlockFormat, Blocks
from quantcli.formats.bits import quiet

# 54 bytes, 256 weights: weight i = d * (q[i] - 1).
#
#   byte l        q[l], q[32 + l], q[64 + l], q[96 + l], q[128 + l]              (l < 32)
#   byte 32 + l   q[160 + l], q[176 + l], q[192 + l], q[208 + l], q[224 + l]     (l < 16)
#   byte 48 + l   q[240 + l], q[244 + l], q[248 + l], q[252 + l]                 (l < 4)
#   byte 52..53   d, the scale
#
# A byte is ceil(n * 256 / 243), n being its codes as a number in base 3, the first one highest; a
# byte of four has a 0 behind them. Code k is bits 9..8 of 3 * (byte * 3**k mod 256).
BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])

POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
PARTS = ((32, 5), (16, 5), (4, 4))  # bytes, codes of each, in the order of the weights


def _split(packed: U8, n_codes: int) -> U8:
    """Return the codes u8 (n_blocks, n_codes * k) of bytes u8 (n_blocks, k)."""
    shifted = packed[:, None, :] * POWERS[:n_codes, None]
    codes: U8 = (shifted.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.uint8)
    return codes.reshape(len(packed), n_codes * packed.shape[1])


@quiet
def decode(blocks: Blocks) -> F32:
    """Return d * (q - 1)."""
    packed = (blocks["qs"][:, :32], blocks["qs"][:, 32:], blocks["qh"])
    parts = [_split(part, n) for part, (_, n) in zip(packed, PARTS, strict=True)]
    codes = np.concatenate(parts, axis=-1).view(np.int8)
    codes -= 1
    weights = codes.astype(np.float32)
    weights *= blocks["d"].astype(np.float32)[:, None]
    return weights


FORMAT = BlockFormat(name="tq1_0", ggml_id=34, block=BLOCK, weights_per_block=256, decode=decode)
