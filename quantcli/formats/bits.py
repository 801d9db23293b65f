"""Bit fields inside bytes, shared by the block formats: splitting, joining, 6-bit scales."""

from __future__ import annotations

import numpy as np

from quantcli.formats import U8

# A file may hold infinite or NaN scales, and a weight may be too large for an f16 scale. Both give
# infinite or NaN weights, as in the reference; NumPy's warnings about it would be noise.
quiet = np.errstate(divide="ignore", over="ignore", invalid="ignore")


def split_bits(packed: U8, width: int) -> U8:
    """Return the bit fields of bytes, field by field: first the lowest of every byte.

    packed  u8 (..., k)
    width   bits of a field: 1, 2 or 4
    return  u8 (..., 8 / width, k)   entry [..., j, i]: bits j * width and up of byte i
    """
    n_fields = 8 // width
    fields = np.empty((*packed.shape[:-1], n_fields, packed.shape[-1]), np.uint8)
    for j in range(n_fields):
        np.right_shift(packed, j * width, out=fields[..., j, :])
    fields &= (1 << width) - 1
    return fields


def join_bits(fields: U8, width: int) -> U8:
    """Return bytes made of bit fields: the inverse of `split_bits`.

    fields  u8 (..., 8 / width, k)   values below 2**width
    width   bits of a field: 1, 2 or 4
    return  u8 (..., k)
    """
    packed = fields[..., 0, :].copy()
    for j in range(1, 8 // width):
        packed |= fields[..., j, :] << (j * width)
    return packed


def split_codes_5(low: U8, high: U8) -> U8:
    """Return the 5-bit codes of q5_0 and q5_1.

    low     u8 (n_blocks, 16)   bits 3..0 of code i in the lower half of byte i, of code 16 + i in
                                the upper half
    high    u8 (n_blocks, 4)    bit 4 of code i in bit i % 8 of byte i / 8
    return  u8 (n_blocks, 32)
    """
    codes = np.unpackbits(high, axis=-1, bitorder="little")
    codes <<= 4
    codes |= split_bits(low, 4).reshape(-1, 32)
    return codes


def join_codes_5(codes: U8) -> tuple[U8, U8]:
    """Return the low and high bits of 5-bit codes: the inverse of `split_codes_5`.

    codes   u8 (n_blocks, 32)   values below 32
    return  u8 (n_blocks, 16), u8 (n_blocks, 4)
    """
    low = join_bits(codes.reshape(-1, 2, 16) & np.uint8(0x0F), 4)
    high = np.packbits(codes >> 4, axis=-1, bitorder="little")
    return low, high


def scales_and_minima(packed: U8) -> tuple[U8, U8]:
    """Return the eight 6-bit scales and the eight 6-bit minima that q4_k and q5_k share.

    packed  u8 (n_blocks, 12)
    return  u8 (n_blocks, 8), u8 (n_blocks, 8)

    Bits of the 12 bytes, highest first; s and m are the scale and minimum of a sub-block:

        byte j      (j < 4)   s[j+4] 5..4    s[j] 5..0
        byte 4 + j            m[j+4] 5..4    m[j] 5..0
        byte 8 + j            m[j+4] 3..0    s[j+4] 3..0
    """
    first, second, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (first >> 6 << 4) | (low & 0x0F)], axis=-1)
    minima = np.concatenate([second & 0x3F, (second >> 6 << 4) | (low >> 4)], axis=-1)
    return scales, minima
