"""Scales of k-quants: as panels hold them, and the 12 bytes in which q4_k and q5_k files keep
eight 6-bit scales and eight 6-bit minima.

Bytes 0-3 have scales 0-3 in their low six bits and the top bits of scales 4-7; bytes 4-7 the same
for minima; bytes 8-11 have the low four bits of scales 4-7, then of minima 4-7.
"""

from __future__ import annotations

from quantcli.kernels.jit import inline
from quantcli.kernels.matmul.codes import f16_rows, i8_rows, u8_rows
from quantcli.kernels.simd import load_u8

# Where panels of k-quants keep a block's two scales, and a step's scales and minima, 16 rows each.
DMIN, HEAD_NBYTES = 32, 64
MINIMA = 16


def head(b, block):
    """Return d and dmin of a panel block, f32x16 each."""
    return f16_rows(b, block), f16_rows(b, block, DMIN)


def scales(b, block_head, step):
    """Return d * scale of a step with one u8 scale a row."""
    return [b.fmul(block_head[0], u8_rows(b, step))]


def minima(b, block_head, step):
    """Return -(dmin * minimum) of a step with one u8 minimum a row."""
    return [b.fneg(b.fmul(block_head[1], u8_rows(b, step, MINIMA)))]


def half_scales(b, block_head, step):
    """Return d * scale for each half of a step with two i8 scales a row."""
    return [b.fmul(block_head[0], i8_rows(b, step, 16 * half)) for half in (0, 1)]


@inline
def scale_6bit(packed, s):
    """Return scale s of 8."""
    if s < 4:
        return load_u8(packed + s) & 63
    return (load_u8(packed + s + 4) & 15) | ((load_u8(packed + s - 4) >> 6) << 4)


@inline
def minimum_6bit(packed, s):
    """Return minimum s of 8."""
    if s < 4:
        return load_u8(packed + s + 4) & 63
    return (load_u8(packed + s + 4) >> 4) | ((load_u8(packed + s) >> 6) << 4)
