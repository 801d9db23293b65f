"""Integers in words: every order undone, and the bytes that compressed-tensors packs."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from quantcli.huggingface.packing import (
    AWQ_ORDER,
    AWQ_PLACES,
    pack,
    pack_awq,
    pack_first,
    unpack,
    unpack_awq,
    unpack_first,
)
from quantcli.huggingface.quantized import Packed
from quantcli.huggingface.scheme import ExportScheme, QuantizedLinear

GOLDENS = json.loads(
    (Path(__file__).parent.parent / "goldens" / "packed.json").read_text(encoding="utf-8")
)
SHAPE = (24, 96)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("n", [1, 7, 8, 32, 33, 64])
def test_packing_is_undone_along_either_axis(bits: int, n: int) -> None:
    codes = np.random.default_rng(n).integers(0, 1 << bits, (5, n), np.uint8)
    words = pack(codes, bits)
    assert words.dtype == np.int32
    assert words.shape == (5, -(-n * bits // 32))
    assert np.array_equal(unpack(words, bits, n), codes)
    columns = pack_first(np.ascontiguousarray(codes.T), bits)
    assert np.array_equal(columns, words.T)
    assert np.array_equal(unpack_first(columns, bits, n), codes.T)


def test_the_first_value_lies_in_the_lowest_bits() -> None:
    codes = np.arange(8, dtype=np.uint8)[None]
    assert pack(codes, 4).tolist() == [[0x76543210]]
    assert pack(codes[:, :4] + np.uint8(250), 8).view(np.uint32).tolist() == [[0xFDFCFBFA]]


def test_awq_deals_columns_to_nibbles_in_its_own_order() -> None:
    codes = np.arange(8, dtype=np.uint8)[None]
    (word,) = pack_awq(codes).view(np.uint32)[0].tolist()
    assert [(word >> 4 * i) & 15 for i in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert [AWQ_ORDER[place] for place in AWQ_PLACES] == list(range(8))
    more = np.random.default_rng(1).integers(0, 16, (3, 40), np.uint8)
    assert np.array_equal(unpack_awq(pack_awq(more), 40), more)


def integers(bits: int, symmetric: bool, group: int) -> tuple[np.ndarray, ...]:
    """Return codes, zeros and steps of scales as scripts/make_goldens_packed makes them."""
    random = np.random.default_rng(bits)
    n_groups = 1 if group == -1 else SHAPE[1] // group
    codes = random.integers(0, 1 << bits, SHAPE, np.uint8)
    zeros = random.integers(1, 1 << bits, (SHAPE[0], n_groups), np.uint8)
    steps = random.integers(1, 256, (SHAPE[0], n_groups), np.int32)
    return codes, np.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros, steps


def hash_of(array: np.ndarray) -> str:
    """Return the hash of an array's bytes, as the script stores it."""
    return sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


@pytest.mark.parametrize("name", GOLDENS["cases"])
def test_bytes_and_weights_are_those_of_compressed_tensors(name: str) -> None:
    bits, kind, group, dtype = name.replace("--1-", "-all-").split("-")
    n_group = -1 if group == "all" else int(group)
    codes, zeros, steps = integers(int(bits), kind == "sym", n_group)
    scales = (steps / 1024).astype(np.float32)
    scheme = ExportScheme(
        "compressed-tensors",
        bits=int(bits),
        group=n_group,
        symmetric=kind == "sym",
        scale_dtype="F16" if dtype == "float16" else "BF16",
    )
    linear = QuantizedLinear(codes, scales, None if kind == "sym" else zeros)
    outs = scheme.tensors("", *SHAPE)
    found = {
        out.name.removeprefix("."): hash_of(array)
        for out, array in zip(outs, scheme.arrays(linear), strict=True)
    }
    want = dict(GOLDENS["cases"][name])
    weights = want.pop("weight")
    assert found == want
    groups = np.arange(SHAPE[1]) // (SHAPE[1] if n_group == -1 else n_group)
    exact = Packed(codes, zeros.astype(np.int32), scales, groups).dequantize()
    if dtype == "float16":
        rounded = exact.astype(np.float16)
    else:  # to nearest, ties to even
        wide = exact.view(np.uint32)
        rounded = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    assert hash_of(rounded) == weights
