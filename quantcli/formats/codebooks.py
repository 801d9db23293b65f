"""The codebooks of the iq1, iq2 and iq3 formats: which groups of 4 or 8 levels a code may name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

from quantcli.formats import F32, U8

# Magnitudes of the 2-bit and 3-bit formats; a sign bit belongs to each weight. Those of iq1 are
# -1, 0 and 1, and what is added to all eight of a group is 1/8 or -1/8.
LEVELS_2 = np.array([8, 25, 43], np.float32)
LEVELS_3_XXS = np.array([4, 12, 20, 28, 36, 44, 52, 62], np.float32)
LEVELS_3_S = np.array([1, 3, 5, 7, 9, 11, 13, 15], np.float32)
LEVELS_1 = np.array([-1, 0, 1], np.float32)
DELTA = np.float32(0.125)

# Seven signs are stored of eight: the number of minus signs is even.
EVEN_SIGNS = np.array([s | (s.bit_count() & 1) << 7 for s in range(128)], np.uint8)


@cache
def groups(name: str) -> np.ndarray:
    """Return a codebook u16 (n_groups,): a number of 2 or 3 bits a level, the first one lowest.

    name   iq1_s, iq2_xxs, iq2_xs, iq2_s, iq3_xxs or iq3_s
    """
    with files("quantcli").joinpath("data", "codebooks.npz").open("rb") as file:
        codebook: np.ndarray = np.load(file)[name]
    return codebook


@cache
def indices(name: str) -> U8:
    """Return a codebook u8 (n_groups, 8 or 4): the index of each level of each group."""
    width, n = (3, 4) if name.startswith("iq3") else (2, 8)
    shifts = np.arange(0, width * n, width, dtype=np.uint16)
    fields = groups(name)[:, None] >> shifts & np.uint16((1 << width) - 1)
    return fields.astype(np.uint8)


def signed(scales: F32, magnitudes: F32, signs: U8) -> F32:
    """Return scale * magnitude, negative where a sign bit is set, f32 (n_blocks, 256).

    scales      f32 (n_blocks, n_scales)   of 256 / n_scales weights each
    magnitudes  f32 (n_blocks, ...)        256 a block
    signs       u8 (n_blocks, 32)          bit i % 8 of byte i / 8 is set: weight i is negative
    """
    n = len(scales)
    factors = np.float32(1) - np.float32(2) * np.unpackbits(signs, axis=-1, bitorder="little")
    weights = magnitudes.reshape(n, scales.shape[1], 256 // scales.shape[1])
    weights *= factors.reshape(weights.shape)
    weights *= scales[..., None]
    return weights.reshape(n, 256)
