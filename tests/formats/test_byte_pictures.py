"""The byte pictures of the formats, read one weight at a time with plain integers."""

from __future__ import annotations

from collections.abc import Callable

import codebook_pictures
import numpy as np
import pytest

from quantcli import catalog, formats

F = np.float32


def half(block: bytes, at: int) -> np.float32:
    return F(np.frombuffer(block, "<f2", 1, at)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def bit(block: bytes, at: int, i: int) -> int:
    return block[at + i // 8] >> i % 8 & 1


def code_4(block: bytes, at: int, i: int) -> int:
    return block[at + i % 16] >> (4 if i >= 16 else 0) & 15


def code_k4(block: bytes, at: int, i: int) -> int:
    """4-bit code i of 256: each 32 bytes hold 64 codes, the lower halves first."""
    return block[at + i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15


def code_k2(block: bytes, at: int, i: int) -> int:
    """2-bit code i of 256: each 32 bytes hold 128 codes, the lowest bits first."""
    return block[at + i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3


def six_bit_pair(block: bytes, at: int, b: int) -> tuple[int, int]:
    """Scale and minimum of sub-block b in the 12 bytes of q4_k and q5_k."""
    if b < 4:
        return block[at + b] & 63, block[at + 4 + b] & 63
    low = block[at + 4 + b]
    return block[at + b - 4] >> 6 << 4 | low & 15, block[at + b] >> 6 << 4 | low >> 4


def q5_0(block: bytes, i: int) -> np.float32:
    return half(block, 0) * F((code_4(block, 6, i) | bit(block, 2, i) << 4) - 16)


def q5_1(block: bytes, i: int) -> np.float32:
    return half(block, 0) * F(code_4(block, 8, i) | bit(block, 4, i) << 4) + half(block, 2)


def q2_k(block: bytes, i: int) -> np.float32:
    scale, minimum = block[i // 16] & 15, block[i // 16] >> 4
    q = code_k2(block, 16, i)
    return half(block, 80) * F(scale) * F(q) - half(block, 82) * F(minimum)


def q3_k(block: bytes, i: int) -> np.float32:
    b = i // 16
    low = block[96 + b % 8] >> (4 if b >= 8 else 0) & 15
    high = block[104 + b % 4] >> b // 4 * 2 & 3
    q = code_k2(block, 32, i) | (block[i % 32] >> i // 32 & 1) << 2
    return half(block, 108) * F((low | high << 4) - 32) * F(q - 4)


def q4_k(block: bytes, i: int) -> np.float32:
    scale, minimum = six_bit_pair(block, 4, i // 32)
    return half(block, 0) * F(scale) * F(code_k4(block, 16, i)) - half(block, 2) * F(minimum)


def q5_k(block: bytes, i: int) -> np.float32:
    scale, minimum = six_bit_pair(block, 4, i // 32)
    q = code_k4(block, 48, i) | (block[16 + i % 32] >> i // 32 & 1) << 4
    return half(block, 0) * F(scale) * F(q) - half(block, 2) * F(minimum)


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_xs(block: bytes, i: int) -> np.float32:
    b = i // 32
    low = block[4 + b // 2] >> (4 if b % 2 else 0) & 15
    high = (block[2] | block[3] << 8) >> 2 * b & 3
    return half(block, 0) * F((low | high << 4) - 32) * F(IQ4[code_4(block, 8 + 16 * b, i % 32)])


def mxfp4(block: bytes, i: int) -> np.float32:
    """A float of 4 bits: 0, 1/2, 1, 3/2, 2, 3, 4 and 6, in units of 2**(e - 127)."""
    code = code_4(block, 1, i)
    exponent, fraction = code >> 1 & 3, code & 1
    size = fraction if exponent == 0 else (2 + fraction) << exponent - 1
    return F(np.ldexp(float(-size if code & 8 else size), block[0] - 128))


def tq1_0(block: bytes, i: int) -> np.float32:
    byte, place = i % 32, i // 32
    if i >= 240:
        byte, place = 48 + i % 4, (i - 240) // 4
    elif i >= 160:
        byte, place = 32 + i % 16, (i - 160) // 16
    return half(block, 52) * F((block[byte] * 3**place % 256 * 3 >> 8) - 1)


def q6_k(block: bytes, i: int) -> np.float32:
    low = block[i // 128 * 64 + i % 64] >> (4 if i % 128 >= 64 else 0) & 15
    q = low | code_k2(block, 128, i) << 4
    return half(block, 208) * F(signed(block[192 + i // 16])) * F(q - 32)


def nvfp4(block: bytes, i: int) -> np.float32:
    code = block[4 + 8 * (i // 16) + i % 8] >> (4 if i % 16 >= 8 else 0) & 15
    scale = block[i // 16]
    exponent, fraction = scale >> 3 & 15, scale & 7
    size = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 512
    one = mxfp4(bytes([128]) + bytes([code]) + bytes(15), 0)
    return F(0 if scale == 127 else float(one) * size / 2)


PICTURES: dict[str, Callable[[bytes, int], np.float32]] = {
    "bf16": lambda block, i: np.frombuffer(b"\0\0" + block, "<f4")[i],
    "f16": lambda block, i: half(block, 2 * i),
    "f32": lambda block, i: np.frombuffer(block, "<f4")[i],
    **codebook_pictures.PICTURES,
    "iq4_nl": lambda block, i: half(block, 0) * F(IQ4[code_4(block, 2, i)]),
    "iq4_xs": iq4_xs,
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "q2_k": q2_k,
    "q3_k": q3_k,
    "q4_0": lambda block, i: half(block, 0) * F(code_4(block, 2, i) - 8),
    "q4_1": lambda block, i: half(block, 0) * F(code_4(block, 4, i)) + half(block, 2),
    "q4_k": q4_k,
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q5_k": q5_k,
    "q6_k": q6_k,
    "q8_0": lambda block, i: half(block, 0) * F(signed(block[2 + i])),
    "tq1_0": tq1_0,
    "tq2_0": lambda block, i: half(block, 64) * F(code_k2(block, 0, i) - 1),
}


@pytest.mark.parametrize("name", catalog.names("format"))
def test_decode_reads_the_byte_picture(name: str) -> None:
    fmt = formats.get(name)
    rng = np.random.default_rng(23)
    blocks = rng.integers(0, 256, 4 * fmt.block_nbytes, np.uint8).view(fmt.block)
    for scale in {"d", "m", "dmin", "w"} & set(fmt.block.names or ()):
        one = np.float32(rng.standard_normal(4))
        blocks[scale] = one.view(np.uint32) >> 16 if fmt.block[scale] == "<u2" else one
    want = [[PICTURES[name](b.tobytes(), i) for i in range(fmt.weights_per_block)] for b in blocks]
    np.testing.assert_array_equal(fmt.decode(blocks), np.array(want, np.float32))


# One block each, worked out by hand: fields that are not zero, then weights; all others are equal.
Fields = dict[str, object]
BY_HAND: list[tuple[str, Fields, dict[int, float], float]] = [
    ("f32", {"w": 1.25}, {}, 1.25),
    ("f16", {"w": -65504}, {}, -65504),
    ("bf16", {"w": 0x4049}, {}, 3.140625),
    ("q4_0", {"d": 0.5, "qs": [0xF1] + 15 * [0x88]}, {0: -3.5, 16: 3.5}, 0),
    ("q4_1", {"d": 0.5, "m": -1, "qs": [0xF1] + 15 * [0]}, {0: -0.5, 16: 6.5}, -1),
    (
        "q5_0",  # qh: bits 0 and 17; q = 16 + 15, 7, 16 + 2; others 0
        {"d": 0.25, "qh": [1, 0, 2, 0], "qs": [0x7F, 0x20] + 14 * [0]},
        {0: 3.75, 16: -2.25, 17: 0.5},
        -4,
    ),
    (
        "q5_1",
        {"d": 0.25, "m": 8, "qh": [1, 0, 2, 0], "qs": [0x7F, 0x20] + 14 * [0]},
        {0: 15.75, 16: 9.75, 17: 12.5},
        8,
    ),
    ("q8_0", {"d": 2, "qs": [-128, 127] + 29 * [0] + [-1]}, {0: -256, 1: 254, 31: -2}, 0),
    (
        "q2_k",  # sub-block 0: s 3, m 2; sub-block 2 (weights 32..47): s 1, m 0
        {"d": 1, "dmin": 0.5, "scales": [0x23, 0, 0x01] + 13 * [0], "qs": [0b1110] + 63 * [0]},
        {**dict.fromkeys(range(1, 16), -1.0), 0: 5, 32: 3},
        0,
    ),
    (
        "q3_k",  # s = 33 in sub-block 0 only; others 0x20 = 32, which is a scale of zero
        {
            "d": 2,
            "hmask": [1] + 31 * [0],
            "qs": [3, 2] + 62 * [0],
            "scales": [1, 0, 0, 0, 0, 0, 0, 0, 0xAA, 0xAA, 0xAA, 0xAA],
        },
        {**dict.fromkeys(range(2, 16), -8.0), 0: 6, 1: -4},
        0,
    ),
    (
        "q4_k",  # s[0] 3, m[0] 2; s[7] = 0b10_0001, m[7] = 0b01_0000: weights 224..255
        {
            "d": 1,
            "dmin": 0.5,
            "scales": [3, 0, 0, 0x80, 2, 0, 0, 0x40, 0, 0, 0, 0x01],
            "qs": [0x05] + 126 * [0] + [0x20],
        },
        {**dict.fromkeys(range(32), -1.0), 0: 14, **dict.fromkeys(range(224, 255), -8.0), 255: 58},
        0,
    ),
    (
        "q5_k",  # as q4_k, with bit 4 of q[0] and of q[255]: 21 and 18
        {
            "d": 1,
            "dmin": 0.5,
            "scales": [3, 0, 0, 0x80, 2, 0, 0, 0x40, 0, 0, 0, 0x01],
            "qh": [0x01] + 30 * [0] + [0x80],
            "qs": [0x05] + 126 * [0] + [0x20],
        },
        {**dict.fromkeys(range(32), -1.0), 0: 62, **dict.fromkeys(range(224, 255), -8.0), 255: 586},
        0,
    ),
    (
        "q6_k",  # sub-block 15 (weights 240..255): s -128; q[255] = 0b11_1111
        {
            "d": 0.5,
            "scales": 15 * [0] + [-128],
            "ql": 127 * [0] + [0xF0],
            "qh": 63 * [0] + [0xC0],
        },
        {**dict.fromkeys(range(240, 255), 2048.0), 255: -1984},
        0,
    ),
    *codebook_pictures.BY_HAND,
    (  # 0x38 is one, 0x7E 448, 1 the smallest, 0x7F none
        "nvfp4",
        {"scales": [0x38, 0x7E, 1, 0x7F], "qs": [0xA2] + 31 * [0x11]},
        {
            **dict.fromkeys(range(16), 0.5),
            0: 1,
            8: -1,
            **dict.fromkeys(range(16, 32), 224.0),
            **dict.fromkeys(range(32, 48), 0.5**10),
        },
        0,
    ),
    ("iq4_nl", {"d": 0.5, "qs": [0xF0] + 15 * [0x88]}, {0: -63.5, 16: 56.5}, 0.5),
    (
        "iq4_xs",  # s[0] = 0b01_0001, s[3] = 0b11_1111, s[7] = 0b10_0001; others 32, zero
        {
            "d": 1,
            "scales_h": 0b10_10_10_10_11_10_10_01,
            "scales_l": [0x01, 0xF0, 0, 0x10],
            "qs": [0x80] + 47 * [0x88] + 16 * [0x8F] + 63 * [0x88] + [0xF8],
        },
        {
            **dict.fromkeys(range(1, 32), -15.0),
            0: 127 * 15,
            **dict.fromkeys(range(96, 112), 31.0 * 113),
            **dict.fromkeys(range(112, 128), 31.0),
            **dict.fromkeys(range(224, 255), 1.0),
            255: 113,
        },
        0,
    ),
    (
        "mxfp4",  # e = 126: units of 1/2, 0x1 half of one, 0x7 six of them, 0xA minus one, 0x8 zero
        {"e": 126, "qs": [0x71, 0x8A] + 14 * [0]},
        {0: 0.25, 16: 3.0, 1: -0.5, 17: 0.0},
        0,
    ),
    (
        # In base 3: 11111 = 121 -> ceil(121 * 256 / 243) = 128, 20102 = 173 -> 183
        "tq1_0",
        {"d": 2, "qs": [183] + 47 * [128], "qh": 4 * [127]},  # 1 1 1 1 0: 120 -> 127
        {0: 2, 32: -2, 96: -2, 128: 2},
        0,
    ),
    (
        "tq2_0",
        {"d": 0.5, "qs": [0b10_01_00_10] + 62 * [0x55] + [0b00_01_01_01]},
        {0: 0.5, 32: -0.5, 96: 0.5, 255: -0.5},
        0,
    ),
]


@pytest.mark.parametrize(("name", "fields", "some", "others"), BY_HAND)
def test_decode_of_a_block_worked_out_by_hand(
    name: str, fields: Fields, some: dict[int, float], others: float
) -> None:
    fmt = formats.get(name)
    block = np.zeros(1, fmt.block)
    for field, value in fields.items():
        block[field] = value
    want = np.full(fmt.weights_per_block, others, np.float32)
    for i, weight in some.items():
        want[i] = weight
    np.testing.assert_array_equal(fmt.decode(block)[0], want)


def test_every_format_has_a_picture_and_a_block_worked_out_by_hand() -> None:
    assert tuple(PICTURES) == catalog.names("format")
    assert {name for name, *_ in BY_HAND} == set(catalog.names("format"))
