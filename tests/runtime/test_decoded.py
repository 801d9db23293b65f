"""Decoded weights: whatever is kept or decoded in parts, the numbers are the file's."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli import formats
from quantcli.plan import Plan
from quantcli.qtensor import QTensor
from quantcli.runtime.decoded import DecodedWeights


def matrix(name: str, n_out: int, n_in: int) -> QTensor:
    """Return a random matrix in q8_0."""
    fmt = formats.get("q8_0")
    assert fmt.encode is not None
    values = np.random.RandomState(n_out).standard_normal((n_out, n_in)).astype(np.float32)
    blocks = fmt.encode(values.reshape(-1, fmt.weights_per_block))
    return QTensor(name, (n_out, n_in), fmt, np.ascontiguousarray(blocks).view(np.uint8).ravel())


@pytest.fixture
def tensors() -> dict[str, QTensor]:
    return {name: matrix(name, n, 64) for name, n in (("a", 40), ("b", 100), ("c", 7))}


@pytest.fixture
def plan(tensors: dict[str, QTensor]) -> Plan:
    plan = Plan()
    plan.weights = {name: tensor.shape for name, tensor in tensors.items()}
    return plan


def test_the_least_recently_used_are_dropped(plan: Plan, tensors: dict[str, QTensor]) -> None:
    nbytes = 4 * 64 * 147
    weights = DecodedWeights(plan, tensors.__getitem__, nbytes - 1)
    first = weights.array("a")
    weights.array("b")
    assert weights.array("a") is first
    weights.array("c")  # "b" goes: "a" was used since
    assert weights.array("a") is first
    assert np.array_equal(weights.array("b"), tensors["b"].dequantize())


def test_a_matrix_too_large_to_keep_comes_in_parts(plan: Plan, tensors: dict[str, QTensor]) -> None:
    weights = DecodedWeights(plan, tensors.__getitem__, 4 * 64 * 150, chunk_nbytes=4 * 64 * 30)
    parts = list(weights.chunks("b"))
    assert [len(part) for part in parts] == [30, 30, 30, 10]
    assert np.array_equal(np.concatenate(parts), tensors["b"].dequantize())
    assert [len(part) for part in weights.chunks("a")] == [40]


def test_rows_are_decoded_alone(plan: Plan, tensors: dict[str, QTensor]) -> None:
    weights = DecodedWeights(plan, tensors.__getitem__, 0)
    ids = np.array([5, 5, 99, 0])
    assert np.array_equal(weights.rows("b", ids), tensors["b"].dequantize()[ids])


def test_plain_arrays_serve_as_weights(plan: Plan) -> None:
    arrays = {"c": np.arange(7 * 64, dtype=np.float32)}
    weights = DecodedWeights(plan, arrays.__getitem__, 1 << 20)
    assert weights.array("c").shape == (7, 64)
    assert not weights.is_quantized("c")
