"""Packed linears undone word by word, as transformers' and AutoAWQ's kernels do: slow and plain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantcli.formats import F32

Tensors = Mapping[str, np.ndarray]


def field(words: np.ndarray, index: int, bits: int) -> int:
    """Return the index-th integer of a run of words, lowest bits first."""
    word = int(words[index * bits // 32]) & 0xFFFFFFFF
    return (word >> (index * bits % 32)) & ((1 << bits) - 1)


def gptq(tensors: Tensors, base: str, bits: int) -> F32:
    """Return f32 (n_out, n_in) of a GPTQ linear of version 1: zeros are stored less one."""
    qweight, qzeros = tensors[f"{base}.qweight"], tensors[f"{base}.qzeros"]
    scales = tensors[f"{base}.scales"].astype(np.float32)
    g_idx = tensors[f"{base}.g_idx"]
    n_out = qweight.shape[1]
    weights = np.empty((n_out, g_idx.size), np.float32)
    for o in range(n_out):
        for i, group in enumerate(g_idx):
            zero = field(qzeros[group], o, bits) + 1
            weights[o, i] = scales[group, o] * np.float32(field(qweight[:, o], i, bits) - zero)
    return weights


def awq(tensors: Tensors, base: str, group: int) -> F32:
    """Return f32 (n_out, n_in) of an AWQ linear: columns 0 2 4 6 1 3 5 7 lie in nibbles 0 to 7."""
    qweight, qzeros = tensors[f"{base}.qweight"], tensors[f"{base}.qzeros"]
    scales = tensors[f"{base}.scales"].astype(np.float32)
    nibble_of = {column: nibble for nibble, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7))}
    n_in, n_out = qweight.shape[0], qweight.shape[1] * 8
    weights = np.empty((n_out, n_in), np.float32)
    for i in range(n_in):
        for o in range(n_out):
            shift = 4 * nibble_of[o % 8]
            code = int(qweight[i, o // 8]) >> shift & 15
            zero = int(qzeros[i // group, o // 8]) >> shift & 15
            weights[o, i] = np.float32(code - zero) * scales[i // group, o]
    return weights


def compressed(tensors: Tensors, base: str, bits: int, group: int) -> F32:
    """Return f32 (n_out, n_in) of a linear of compressed-tensors."""
    packed = tensors[f"{base}.weight_packed"]
    scales = tensors[f"{base}.weight_scale"].astype(np.float32)
    zeros = tensors.get(f"{base}.weight_zero_point")
    half = 1 << (bits - 1)
    n_out, n_in = tensors[f"{base}.weight_shape"].tolist()
    weights = np.empty((n_out, n_in), np.float32)
    for o in range(n_out):
        for i in range(n_in):
            code = field(packed[o], i, bits) - half
            zero = 0 if zeros is None else field(zeros[:, i // group], o, bits) - half
            weights[o, i] = np.float32(code - zero) * scales[o, i // group]
    return weights
