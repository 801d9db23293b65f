"""The 12 bytes in which q4_k and q5_k keep eight 6-bit scales and eight 6-bit minima.

Bytes 0-3 have scales 0-3 in their low six bits and the top bits of scales 4-7; bytes 4-7 the same
for minima; bytes 8-11 have the low four bits of scales 4-7, then of minima 4-7.
"""

from __future__ import annotations

from quantcli.kernels.jit import inline
from quantcli.kernels.simd import load_u8


@inline
def scale_6bit(scales, s):
    """Return scale s of 8."""
    if s < 4:
        return load_u8(scales + s) & 63
    return (load_u8(scales + s + 4) & 15) | ((load_u8(scales + s - 4) >> 6) << 4)


@inline
def minimum_6bit(scales, s):
    """Return minimum s of 8."""
    if s < 4:
        return load_u8(scales + s + 4) & 63
    return (load_u8(scales + s + 4) >> 4) | ((load_u8(scales + s) >> 6) << 4)
