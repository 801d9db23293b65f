"""QTensor: sizes checked, rows shared, weights decoded."""

from __future__ import annotations

import re

import gguf
import gguf.quants
import numpy as np
import pytest

from quantcli import formats, qtensor
from quantcli.errors import ShapeError
from quantcli.formats import BlockFormat
from quantcli.qtensor import QTensor

EVERY = [pytest.param(f, id=f.name) for f in formats.every()]


def random_tensor(fmt: BlockFormat, shape: tuple[int, ...]) -> QTensor:
    nbytes = int(np.prod(shape[:-1])) * fmt.row_nbytes(shape[-1])
    raw = np.random.default_rng(4).integers(0, 256, (nbytes // fmt.block_nbytes, fmt.block_nbytes))
    blocks = raw.astype(np.uint8).reshape(-1).view(fmt.block)
    for scale in {"d", "m", "dmin", "w", "e"} & set(fmt.block.names or ()):
        blocks[scale] = np.arange(len(blocks))  # finite, so that weights can be compared
    return QTensor("blk.0.attn_q.weight", shape, fmt, blocks.view(np.uint8))


@pytest.mark.parametrize("shape", [(256,), (3, 512), (2, 3, 256)])
@pytest.mark.parametrize("fmt", EVERY)
def test_dequantize_gives_the_weights_in_shape(fmt: BlockFormat, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(fmt, shape)
    weights = tensor.dequantize()
    rows = tensor.data.reshape(tensor.n_rows, -1)
    want = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(fmt.ggml_id))
    assert weights.dtype == np.float32
    assert weights.shape == shape
    np.testing.assert_array_equal(weights, want.reshape(shape))


@pytest.mark.parametrize("fmt", EVERY)
def test_dequantize_is_the_same_in_slabs(fmt: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(fmt, (5, 256))
    whole = tensor.dequantize()
    monkeypatch.setattr(qtensor, "_SLAB", 512)  # two full slabs and a part
    np.testing.assert_array_equal(tensor.dequantize(), whole)


@pytest.mark.parametrize("fmt", EVERY)
def test_dequantize_does_not_share_the_bytes(fmt: BlockFormat) -> None:
    tensor = random_tensor(fmt, (1, 256))
    assert not np.shares_memory(tensor.dequantize(), tensor.data)


def test_rows_shares_the_bytes_of_whole_rows() -> None:
    tensor = random_tensor(formats.get("q4_0"), (6, 64))
    part = tensor.rows(2, 5)
    assert part.shape == (3, 64)
    assert np.shares_memory(part.data, tensor.data)
    np.testing.assert_array_equal(part.dequantize(), tensor.dequantize()[2:5])
    assert tensor.rows(6, 6).dequantize().shape == (0, 64)


def test_rows_counts_all_axes_but_the_last() -> None:
    tensor = random_tensor(formats.get("q8_0"), (2, 3, 32))
    assert tensor.n_rows == 6
    np.testing.assert_array_equal(
        tensor.rows(3, 6).dequantize(), tensor.dequantize().reshape(6, 32)[3:]
    )


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (4, 3)])
def test_rows_outside_the_tensor_are_a_bug(start: int, stop: int) -> None:
    tensor = random_tensor(formats.get("q4_0"), (6, 64))
    with pytest.raises(AssertionError):
        tensor.rows(start, stop)


def test_nbytes_and_rows_of_a_vector() -> None:
    tensor = random_tensor(formats.get("f32"), (7,))
    assert (tensor.n_rows, tensor.nbytes) == (1, 28)


@pytest.mark.parametrize("size", [0, 35, 37, 72])
def test_data_that_does_not_fit_the_shape_is_refused(size: int) -> None:
    message = f"output.weight: {size} bytes of data, but shape (1, 64) in q4_0 takes 36."
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        QTensor("output.weight", (1, 64), formats.get("q4_0"), np.zeros(size, np.uint8))


def test_a_row_that_ends_inside_a_block_is_refused_by_tensor_name() -> None:
    message = "blk.3.ffn_down.weight: row length 4865 is not a multiple of 256, the q4_k block."
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        QTensor("blk.3.ffn_down.weight", (1, 4865), formats.get("q4_k"), np.zeros(1, np.uint8))


def test_data_of_another_dtype_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="float32"):
        QTensor("x", (36,), formats.get("f32"), np.zeros(144, np.float32))  # type: ignore[arg-type]
