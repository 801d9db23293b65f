"""Integers of a few bits packed into 32-bit words, in the orders that Hugging Face formats use.

A word holds 32 / bits values, the first in the lowest bits. AWQ deals the columns of eight out to
the nibbles of a word in an order of its own. Sources: AutoGPTQ's qlinear_cuda_old.py, AutoAWQ's
packing_utils.py, compressed-tensors' pack_quantized/helpers.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantcli.qtensor import U8

I32 = npt.NDArray[np.int32]

# Nibble i of a word of AWQ's holds column AWQ_ORDER[i] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the inverse: column i lies in nibble AWQ_PLACES[i]


def pack(values: U8, bits: int) -> I32:
    """Pack along the last axis: u8 (..., n) -> i32 (..., ceil(n bits / 32)); gaps are zero."""
    per_word = 32 // bits
    n_words = -(-values.shape[-1] // per_word)
    padded = np.zeros((*values.shape[:-1], n_words * per_word), np.uint8)
    padded[..., : values.shape[-1]] = values
    lanes = padded.reshape(*values.shape[:-1], n_words, per_word)
    words = np.zeros(lanes.shape[:-1], np.uint32)
    for i in range(per_word):
        words |= lanes[..., i].astype(np.uint32) << np.uint32(i * bits)
    return words.view(np.int32)


def unpack(words: I32, bits: int, n: int) -> U8:
    """Unpack along the last axis: i32 (..., n_words) -> u8 (..., n)."""
    per_word = 32 // bits
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    lanes = np.empty((*words.shape, per_word), np.uint8)
    for i in range(per_word):
        lanes[..., i] = (unsigned >> np.uint32(i * bits)) & np.uint32((1 << bits) - 1)
    return lanes.reshape(*words.shape[:-1], -1)[..., :n]


def pack_first(values: U8, bits: int) -> I32:
    """Pack along the first of two axes: u8 (n, m) -> i32 (ceil(n bits / 32), m)."""
    return np.ascontiguousarray(pack(np.ascontiguousarray(values.T), bits).T)


def unpack_first(words: I32, bits: int, n: int) -> U8:
    """Unpack along the first of two axes: i32 (n_words, m) -> u8 (n, m)."""
    per_word = 32 // bits
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    lanes = np.empty((words.shape[0], per_word, words.shape[1]), np.uint8)
    for i in range(per_word):
        lanes[:, i] = (unsigned >> np.uint32(i * bits)) & np.uint32((1 << bits) - 1)
    return lanes.reshape(-1, words.shape[1])[:n]


def pack_awq(values: U8) -> I32:
    """Pack nibbles along the last axis in AWQ's order: u8 (..., n) -> i32 (..., n / 8)."""
    return pack(_dealt(values, AWQ_ORDER), 4)


def unpack_awq(words: I32, n: int) -> U8:
    """Unpack nibbles along the last axis from AWQ's order: i32 (..., n / 8) -> u8 (..., n)."""
    return _dealt(unpack(words, 4, n), AWQ_PLACES)


def _dealt(values: U8, order: tuple[int, ...]) -> U8:
    eights = values.reshape(*values.shape[:-1], -1, 8)
    return np.ascontiguousarray(eights[..., list(order)]).reshape(values.shape)
