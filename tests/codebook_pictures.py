"""The byte pictures of the formats with codebooks, and blocks of them worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantcli.formats import Blocks, codebooks

F = np.float32


def half(block: bytes, at: int) -> np.float32:
    return F(np.frombuffer(block, "<f2", 1, at)[0])


def bit(block: bytes, at: int, i: int) -> int:
    return block[at + i // 8] >> i % 8 & 1


def word(block: bytes, at: int, n: int = 2) -> int:
    return int.from_bytes(block[at : at + n], "little")


def even_sign(seven: int, j: int) -> int:
    """Sign j of 8, of which seven are stored and the number of set ones is even."""
    return seven.bit_count() & 1 if j == 7 else seven >> j & 1


def level(name: str, levels: tuple[int, ...], code: int, j: int) -> int:
    """Level j of a group of a codebook."""
    width = 3 if len(levels) == 8 else 2
    return levels[int(codebooks.groups(name)[code]) >> width * j & (1 << width) - 1]


IQ1, IQ2 = (-1, 0, 1), (8, 25, 43)
IQ3_XXS, IQ3_S = (4, 12, 20, 28, 36, 44, 52, 62), (1, 3, 5, 7, 9, 11, 13, 15)


def scaled(d: np.float32, factor: float, value: float, sign: int) -> np.float32:
    return F(float(d) * factor * (-value if sign else value))  # exact in an f64


def iq1_s(block: bytes, i: int) -> np.float32:
    b, g = i // 32, i // 8
    high = word(block, 34 + 2 * b)
    code = block[2 + g] | (high >> 3 * (g % 4) & 7) << 8
    value = level("iq1_s", IQ1, code, i % 8) + (-0.125 if high >> 15 else 0.125)
    return scaled(half(block, 0), 2 * (high >> 12 & 7) + 1, value, 0)


def iq1_m(block: bytes, i: int) -> np.float32:
    b, g = i // 16, i // 8
    d = sum((word(block, 48 + 2 * c) >> 12) << 4 * c for c in range(4)).to_bytes(2, "little")
    high = block[32 + g // 2] >> 4 * (g % 2)
    s = word(block, 48 + 2 * (b // 4)) >> 3 * (b % 4) & 7
    value = level("iq1_s", IQ1, block[g] | (high & 7) << 8, i % 8)
    return scaled(half(d, 0), 2 * s + 1, value + (-0.125 if high & 8 else 0.125), 0)


def iq2_xxs(block: bytes, i: int) -> np.float32:
    b, g = i // 32, i // 8 % 4
    packed = word(block, 6 + 8 * b, 4)
    value = level("iq2_xxs", IQ2, block[2 + 8 * b + g], i % 8)
    sign = even_sign(packed >> 7 * g & 127, i % 8)
    return scaled(half(block, 0), ((packed >> 28) + 0.5) / 4, value, sign)


def iq2_xs(block: bytes, i: int) -> np.float32:
    packed = word(block, 2 + 2 * (i // 8))
    s = block[66 + i // 32] >> 4 * (i // 16 % 2) & 15
    value = level("iq2_xs", IQ2, packed & 511, i % 8)
    return scaled(half(block, 0), (s + 0.5) / 4, value, even_sign(packed >> 9, i % 8))


def iq2_s(block: bytes, i: int) -> np.float32:
    g = i // 8
    code = block[2 + g] | (block[66 + g // 4] >> 2 * (g % 4) & 3) << 8
    s = block[74 + i // 32] >> 4 * (i // 16 % 2) & 15
    value = level("iq2_s", IQ2, code, i % 8)
    return scaled(half(block, 0), (s + 0.5) / 4, value, bit(block, 34, i))


def iq3_xxs(block: bytes, i: int) -> np.float32:
    packed = word(block, 66 + 4 * (i // 32), 4)
    value = level("iq3_xxs", IQ3_XXS, block[2 + i // 4], i % 4)
    sign = even_sign(packed >> 7 * (i // 8 % 4) & 127, i % 8)
    return scaled(half(block, 0), ((packed >> 28) + 0.5) / 2, value, sign)


def iq3_s(block: bytes, i: int) -> np.float32:
    code = block[2 + i // 4] | bit(block, 66, i // 4) << 8
    s = block[106 + i // 64] >> 4 * (i // 32 % 2) & 15
    value = level("iq3_s", IQ3_S, code, i % 4)
    return scaled(half(block, 0), 2 * s + 1, value, bit(block, 74, i))


PICTURES: dict[str, Callable[[bytes, int], np.float32]] = {
    "iq1_m": iq1_m,
    "iq1_s": iq1_s,
    "iq2_s": iq2_s,
    "iq2_xs": iq2_xs,
    "iq2_xxs": iq2_xxs,
    "iq3_s": iq3_s,
    "iq3_xxs": iq3_xxs,
}

# Fields that are not zero, then weights; all others are equal.
BY_HAND: list[tuple[str, dict[str, object], dict[int, float], float]] = [
    (  # group 0 is all -1, group 2047 all 1; s[0] = 1, s[7] = 2, m[7]
        "iq1_s",
        {"d": 8, "qs": 31 * [0] + [255], "qh": [0x1000] + 6 * [0] + [0xAE00]},
        {
            **dict.fromkeys(range(32), -21.0),
            **dict.fromkeys(range(224, 248), -45.0),
            **dict.fromkeys(range(248, 256), 35.0),
        },
        -7,
    ),
    (  # d = 0x4800 = 8, in four parts; q[1] = 2047 and m[1]; s[15] = 1
        "iq1_m",
        {"qs": [0, 255] + 30 * [0], "qh": [0xF0] + 15 * [0], "scales": [0, 0, 0x8000, 0x4200]},
        {**dict.fromkeys(range(8, 16), 7.0), **dict.fromkeys(range(240, 256), -21.0)},
        -7,
    ),
    (  # group 1 starts with 43, else 8; two signs, then one and that of the eighth; s[1] = 15
        "iq2_xxs",
        {
            "d": 8,
            "qs": [[0, 0, 0, 1, 0, 0, 0x60, 0], [0, 0, 0, 0, 1, 0, 0, 0xF0], *(6 * [8 * [0]])],
        },
        {24: -43, 25: -8, **dict.fromkeys(range(32, 64), 248.0), 32: -248, 39: -248},
        8,
    ),
    (
        "iq2_xs",
        {"d": 8, "qs": [1, 1 << 9] + 30 * [0], "scales": [0xF0] + 7 * [0]},
        {0: 43, 8: -8, 15: -8, **dict.fromkeys(range(16, 32), 248.0)},
        8,
    ),
    (  # the last group, 1023, is all 43
        "iq2_s",
        {
            "d": 8,
            "qs": 31 * [0] + [255],
            "qh": 7 * [0] + [0xC0],
            "signs": [1] + 30 * [0] + [0x80],
            "scales": 7 * [0] + [0x10],
        },
        {
            0: -8,
            **dict.fromkeys(range(240, 248), 24.0),
            **dict.fromkeys(range(248, 255), 129.0),
            255: -129,
        },
        8,
    ),
    (  # group 1 starts with 20, else 4; the first sign, and so the eighth; s[0] = 1
        "iq3_xxs",
        {"d": 4, "qs": [1] + 63 * [0], "scales": [0x10000001] + 7 * [0]},
        {**dict.fromkeys(range(32), 12.0), 0: -60, 7: -12},
        4,
    ),
    (  # the last group, 511, is 1 1 15 15; s[7] = 1
        "iq3_s",
        {
            "d": 2,
            "qs": 63 * [0] + [255],
            "qh": 7 * [0] + [0x80],
            "signs": [2] + 31 * [0],
            "scales": 3 * [0] + [0x10],
        },
        {1: -2, **dict.fromkeys(range(224, 254), 6.0), 254: 90, 255: 90},
        2,
    ),
]


def set_iq1_m_scales(blocks: Blocks, d: np.ndarray) -> None:
    """Set the main scales f16 (n_blocks,) of iq1_m blocks, which lie in four parts."""
    parts = d.view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & np.uint16(15)
    blocks["scales"] = blocks["scales"] & np.uint16(0xFFF) | parts << np.uint16(12)
