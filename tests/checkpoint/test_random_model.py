"""Models of random weights: valid files, the same each time, with weights on a sane scale."""

from __future__ import annotations

import shutil
from math import sqrt
from pathlib import Path

import gguf
import numpy as np
import pytest

from quantcli import formats
from quantcli.checkpoint import open_checkpoint
from quantcli.checkpoint.random_model import (
    SMOLLM2_135M,
    Shape,
    random_rows,
    write_random_model,
)
from quantcli.errors import ResourceError, ShapeError
from quantcli.formats import BlockFormat
from quantcli.kernels import matmul
from quantcli.runtime.model import Batch, Model

SMALL = Shape(
    n_layers=2,
    d_model=256,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    d_ff=512,
    n_vocab=300,
    context=64,
)
RUN = [formats.get(name) for name in matmul.names()]
EVERY = [pytest.param(fmt, id=fmt.name) for fmt in RUN]
# Powers of two, and steps of an eighth at the least: the nearest scale can be this far off.
COARSE = {"mxfp4": 0.42, "nvfp4": 0.07}


@pytest.mark.parametrize("fmt", EVERY)
def test_weights_have_mean_0_and_the_scale_of_a_new_network(fmt: BlockFormat) -> None:
    data = random_rows(fmt, (64, 512), np.random.default_rng(1))
    assert data.shape == (64, fmt.row_nbytes(512))
    weights = gguf.dequantize(data, gguf.GGMLQuantizationType(fmt.ggml_id))
    assert np.isfinite(weights).all()
    assert weights.std() == pytest.approx(1 / sqrt(512), rel=COARSE.get(fmt.name, 0.05))
    assert abs(weights.mean()) < 0.3 / sqrt(512)


def test_a_row_that_is_not_whole_blocks_is_refused() -> None:
    with pytest.raises(ShapeError, match="row length 300 is not a multiple of 256"):
        random_rows(formats.get("q4_k"), (2, 300), np.random.default_rng(1))


@pytest.mark.parametrize("weight_format", ["q4_0", "q4_k"])
def test_a_model_opens_runs_and_says_something(tmp_path: Path, weight_format: str) -> None:
    path = write_random_model(tmp_path / "m.gguf", SMALL, arch="llama", weight_format=weight_format)
    with open_checkpoint(path) as checkpoint:
        found = {info.format.name for info in checkpoint.tensors.values()}
        assert found == {"f32", "q8_0", weight_format}
        model = Model.load(checkpoint, backend="reference")
        model.kv.reserve(0, 3)
        logits = model.forward(Batch([1, 2, 299], [0, 1, 2], [0, 0, 0], [2]))
        assert logits.shape == (1, 300)
        assert np.isfinite(logits).all()
        assert 0.01 < logits.std() < 100
        model.close()


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first = write_random_model(tmp_path / "a.gguf", SMALL, arch="llama").read_bytes()
    assert first == write_random_model(tmp_path / "b.gguf", SMALL, arch="llama").read_bytes()


def test_layers_are_the_same_where_that_is_asked_for(tmp_path: Path) -> None:
    path = write_random_model(tmp_path / "m.gguf", SMALL, arch="llama", same_layers=True)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    assert np.array_equal(tensors["blk.0.attn_q.weight"], tensors["blk.1.attn_q.weight"])
    assert np.array_equal(tensors["blk.0.ffn_up.weight"], tensors["blk.1.ffn_gate.weight"])
    assert not np.array_equal(tensors["blk.0.attn_q.weight"][:8], tensors["token_embd.weight"][:8])


def test_smollm2s_shape_has_its_number_of_weights() -> None:
    n_params = sum(int(np.prod(shape)) for shape in SMOLLM2_135M.tensors().values())
    assert n_params == 134_515_008


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match="not enough disk space for a model of random weights"):
        write_random_model(tmp_path / "m.gguf", SMALL, arch="llama")
    assert not (tmp_path / "m.gguf").exists()
