"""How each format's value is made: levels, groups that share a scale, and where their bits lie.

A block's weights are `scale * level - minimum` with one scale and minimum a group; scale = d * s
and minimum = dmin * m, where s and m are the sub-scales of formats that have them, else 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantcli import formats
from quantcli.formats import F32, U8, BlockFormat, Blocks, iq4_nl, iq4_xs, mxfp4, tq1_0
from quantcli.formats.bits import join_bits, join_codes_5, quiet, scales_and_minima, split_bits

I32 = npt.NDArray[np.int32]

F16_MAX = np.float32(65504)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What a search may choose in a block of one format.

    group       weights that share a scale
    levels      f32 (n_levels,)   ascending; a code is an index into it
    s_range     least and largest sub-scale, or None where d is the scale
    m_range     the same for sub-minima; (1, 1) where dmin is the minimum, None without minima
    scale       Blocks (n,) -> scales and minima f32 (n, n_groups), as decode multiplies them
    header      d, dmin f32 (n,), s, m i32 (n, n_groups) -> Blocks (n,) without codes
    put_codes   writes codes u8 (n, weights_per_block) to Blocks (n,)
    """

    name: str
    group: int
    levels: F32
    s_range: tuple[int, int] | None
    m_range: tuple[int, int] | None
    scale: Callable[[Blocks], tuple[F32, F32]]
    header: Callable[[F32, F32, I32, I32], Blocks]
    put_codes: Callable[[Blocks, U8], None]

    @property
    def format(self) -> BlockFormat:
        """The format itself."""
        return formats.get(self.name)

    @property
    def is_uniform(self) -> bool:
        """Whether the levels are whole numbers in a row."""
        return bool((np.diff(self.levels) == 1).all())


def whole(start: int, stop: int) -> F32:
    """Return the levels start .. stop, both included."""
    return np.arange(start, stop + 1, dtype=np.float32)


@quiet
def _half(d: F32) -> npt.NDArray[np.float16]:
    return np.clip(d, -F16_MAX, F16_MAX).astype("<f2")


# ---- blocks of 32 with d, perhaps m


def _plain_scale(blocks: Blocks) -> tuple[F32, F32]:
    d = blocks["d"].astype(np.float32)[:, None]
    return d, np.zeros_like(d)


def _plain_header(name: str) -> Callable[[F32, F32, I32, I32], Blocks]:
    def header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
        blocks = np.zeros(len(d), formats.get(name).block)
        blocks["d"] = _half(d)
        return blocks

    return header


def _affine_scale(blocks: Blocks) -> tuple[F32, F32]:
    return blocks["d"].astype(np.float32)[:, None], -blocks["m"].astype(np.float32)[:, None]


def _affine_header(name: str) -> Callable[[F32, F32, I32, I32], Blocks]:
    def header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
        blocks = np.zeros(len(d), formats.get(name).block)
        blocks["d"], blocks["m"] = _half(d), _half(-dmin)
        return blocks

    return header


def _put_nibbles(blocks: Blocks, codes: U8) -> None:
    blocks["qs"] = join_bits(codes.reshape(-1, 2, 16), 4)


def _put_fives(blocks: Blocks, codes: U8) -> None:
    blocks["qs"], blocks["qh"] = join_codes_5(codes)


def _put_bytes(blocks: Blocks, codes: U8) -> None:
    blocks["qs"] = (codes - np.uint8(128)).view(np.int8)


# ---- super-blocks of 256


def _k_scale_4(blocks: Blocks) -> tuple[F32, F32]:
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    return (blocks["scales"] & 0x0F) * d, (blocks["scales"] >> 4) * dmin


def _k_header_4(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
    blocks = np.zeros(len(d), formats.get("q2_k").block)
    blocks["d"], blocks["dmin"] = _half(d), _half(dmin)
    blocks["scales"] = s | (m << 4)
    return blocks


def _k_scale_6(blocks: Blocks) -> tuple[F32, F32]:
    s, m = scales_and_minima(blocks["scales"])
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    return s * d, m * dmin


def _k_header_6(name: str) -> Callable[[F32, F32, I32, I32], Blocks]:
    def header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
        blocks = np.zeros(len(d), formats.get(name).block)
        blocks["d"], blocks["dmin"] = _half(d), _half(dmin)
        packed = blocks["scales"]
        packed[:, 0:4] = s[:, :4] | (s[:, 4:] >> 4 << 6)
        packed[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4 << 6)
        packed[:, 8:12] = (s[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
        return blocks

    return header


def _q3_scale(blocks: Blocks) -> tuple[F32, F32]:
    low = split_bits(blocks["scales"][:, :8], 4).reshape(-1, 16)
    high = split_bits(blocks["scales"][:, 8:], 2).reshape(-1, 16)
    signed = (low | (high << 4)).view(np.int8) - np.int8(32)
    scales = signed * blocks["d"].astype(np.float32)[:, None]
    return scales, np.zeros_like(scales)


def _q3_header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
    blocks = np.zeros(len(d), formats.get("q3_k").block)
    blocks["d"] = _half(d)
    stored = (s + 32).astype(np.uint8)
    blocks["scales"][:, :8] = join_bits((stored & np.uint8(15)).reshape(-1, 2, 8), 4)
    blocks["scales"][:, 8:] = join_bits((stored >> np.uint8(4)).reshape(-1, 4, 4), 2)
    return blocks


def _q6_scale(blocks: Blocks) -> tuple[F32, F32]:
    scales = blocks["scales"] * blocks["d"].astype(np.float32)[:, None]
    return scales, np.zeros_like(scales)


def _q6_header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
    blocks = np.zeros(len(d), formats.get("q6_k").block)
    blocks["d"], blocks["scales"] = _half(d), s
    return blocks


def _put_q2(blocks: Blocks, codes: U8) -> None:
    blocks["qs"] = join_bits(codes.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)


def _put_q3(blocks: Blocks, codes: U8) -> None:
    _put_q2(blocks, codes & np.uint8(3))
    blocks["hmask"] = join_bits((codes >> np.uint8(2)).reshape(-1, 8, 32), 1)


def _put_q4(blocks: Blocks, codes: U8) -> None:
    blocks["qs"] = join_bits(codes.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)


def _put_q5(blocks: Blocks, codes: U8) -> None:
    _put_q4(blocks, codes & np.uint8(15))
    blocks["qh"] = join_bits((codes >> np.uint8(4)).reshape(-1, 8, 32), 1)


def _put_q6(blocks: Blocks, codes: U8) -> None:
    low, high = codes & np.uint8(15), codes >> np.uint8(4)
    blocks["ql"] = join_bits(low.reshape(-1, 2, 2, 64), 4).reshape(-1, 128)
    blocks["qh"] = join_bits(high.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)


# ---- uneven levels, ternary


def _iq4_scale(blocks: Blocks) -> tuple[F32, F32]:
    scales = iq4_xs.scales(blocks)
    return scales, np.zeros_like(scales)


def _iq4_header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
    blocks = np.zeros(len(d), iq4_xs.BLOCK)
    blocks["d"] = _half(d)
    stored = (s + 32).astype(np.uint8)
    low = (stored & np.uint8(15)).reshape(-1, 4, 2).transpose(0, 2, 1)
    blocks["scales_l"] = join_bits(np.ascontiguousarray(low), 4)
    high = (stored >> np.uint8(4)).astype(np.uint16)
    blocks["scales_h"] = (high << np.arange(0, 16, 2, dtype=np.uint16)).sum(1, dtype=np.uint16)
    return blocks


def _put_iq4(blocks: Blocks, codes: U8) -> None:
    blocks["qs"] = join_bits(codes.reshape(-1, 8, 2, 16), 4).reshape(-1, 128)


def _mx_scale(blocks: Blocks) -> tuple[F32, F32]:
    d = mxfp4.scale(blocks)[:, None]
    return d, np.zeros_like(d)


def _mx_header(d: F32, dmin: F32, s: I32, m: I32) -> Blocks:
    blocks = np.zeros(len(d), mxfp4.BLOCK)
    exponent = np.frexp(d)[1] + 127  # d is a power of two
    # With 253 the larger levels would be infinite.
    blocks["e"] = np.where(d > 0, np.clip(exponent, 0, 252), 0)
    return blocks


_MX_LEVELS = np.array([-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12], np.float32)
_MX_CODES = np.array([15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7], np.uint8)


def _put_mx(blocks: Blocks, codes: U8) -> None:
    _put_nibbles(blocks, _MX_CODES[codes])


def _put_trits(blocks: Blocks, codes: U8) -> None:
    packed, start = [], 0
    for n_bytes, n in tq1_0.PARTS:
        part = codes[:, start : start + n_bytes * n].reshape(-1, n, n_bytes).astype(np.uint16)
        numbers = (part * tq1_0.POWERS[::-1][:n, None]).sum(axis=1, dtype=np.uint16)
        packed.append((numbers * np.uint16(256) + np.uint16(242)) // np.uint16(243))
        start += n_bytes * n
    blocks["qs"], blocks["qh"] = np.concatenate(packed[:2], axis=-1), packed[2]


_SIMPLE = {
    "q4_0": Layout(
        "q4_0", 32, whole(-8, 7), None, None, _plain_scale, _plain_header("q4_0"), _put_nibbles
    ),
    "q4_1": Layout(
        "q4_1", 32, whole(0, 15), None, (1, 1), _affine_scale, _affine_header("q4_1"), _put_nibbles
    ),
    "q5_0": Layout(
        "q5_0", 32, whole(-16, 15), None, None, _plain_scale, _plain_header("q5_0"), _put_fives
    ),
    "q5_1": Layout(
        "q5_1", 32, whole(0, 31), None, (1, 1), _affine_scale, _affine_header("q5_1"), _put_fives
    ),
    "q8_0": Layout(
        "q8_0", 32, whole(-128, 127), None, None, _plain_scale, _plain_header("q8_0"), _put_bytes
    ),
}
_SUPER = {
    "q2_k": Layout("q2_k", 16, whole(0, 3), (0, 15), (0, 15), _k_scale_4, _k_header_4, _put_q2),
    "q3_k": Layout("q3_k", 16, whole(-4, 3), (-32, 31), None, _q3_scale, _q3_header, _put_q3),
    "q4_k": Layout(
        "q4_k", 32, whole(0, 15), (0, 63), (0, 63), _k_scale_6, _k_header_6("q4_k"), _put_q4
    ),
    "q5_k": Layout(
        "q5_k", 32, whole(0, 31), (0, 63), (0, 63), _k_scale_6, _k_header_6("q5_k"), _put_q5
    ),
    "q6_k": Layout("q6_k", 16, whole(-32, 31), (-128, 127), None, _q6_scale, _q6_header, _put_q6),
}
_OTHERS = {
    "iq4_nl": Layout(
        "iq4_nl", 32, iq4_nl.LEVELS, None, None, _plain_scale, _plain_header("iq4_nl"), _put_nibbles
    ),
    "iq4_xs": Layout(
        "iq4_xs", 32, iq4_nl.LEVELS, (-32, 31), None, _iq4_scale, _iq4_header, _put_iq4
    ),
    "mxfp4": Layout("mxfp4", 32, _MX_LEVELS, None, None, _mx_scale, _mx_header, _put_mx),
    "tq1_0": Layout(
        "tq1_0", 256, whole(-1, 1), None, None, _plain_scale, _plain_header("tq1_0"), _put_trits
    ),
    "tq2_0": Layout(
        "tq2_0", 256, whole(-1, 1), None, None, _plain_scale, _plain_header("tq2_0"), _put_q2
    ),
}
LAYOUTS = {**_SIMPLE, **_SUPER, **_OTHERS}
