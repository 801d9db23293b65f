"""Logits a few rows at a time, and kernels run on a model's threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loaded_model import feed, loaded
from tiny import write_tiny

from quantcli.kernels import log_softmax
from quantcli.runtime import sizing
from quantcli.runtime.model import Batch, Model

N_ROWS = 40
TOKENS = [(7 * i) % 200 for i in range(N_ROWS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "qwen3", context=64)


def batch(model: Model, outputs: list[int]) -> Batch:
    model.kv.reserve(0, N_ROWS)
    return Batch(TOKENS, list(range(N_ROWS)), [0] * N_ROWS, outputs)


@pytest.mark.parametrize("backend", ["reference", pytest.param("compiled", marks=pytest.mark.jit)])
def test_slices_are_the_rows_of_forward(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = list(range(3, N_ROWS, 2))
    with loaded(path, backend=backend, context=64) as model:
        whole = feed(model, TOKENS)[outputs]
        n_vocab = model.n_vocab
    monkeypatch.setattr(sizing, "_LOGITS_NBYTES", 5 * 4 * n_vocab)  # room for five rows
    with loaded(path, backend=backend, context=64) as model:
        assert model.is_compiled == (backend == "compiled")
        slices = [part.copy() for part in model.slices(batch(model, outputs))]
        assert [len(part) for part in slices] == ([5, 5, 5, 4] if model.is_compiled else [19])
        assert (np.concatenate(slices) == whole).all()
        assert list(model.slices(batch(model, [])))[1:] == []
        assert (model.forward(batch(model, outputs)) == whole).all()


@pytest.mark.jit
def test_a_kernel_runs_on_the_models_threads(path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float32)
    out = np.zeros(9, log_softmax.SUMS)
    args = np.zeros(1, log_softmax.ARGS)
    args["n_rows"], args["width"], args["stride"] = 9, 300, rows.strides[0]
    args["rows"], args["out"] = rows.ctypes.data, out.ctypes.data
    with loaded(path, context=64) as model:
        before = feed(model, TOKENS)
        model.run_op(log_softmax.log_sum_exp, args)
        assert (feed(model, TOKENS, sequence=0) == before).all()
    expected = log_softmax.reference(rows)
    assert (out["argmax"] == expected["argmax"]).all()
    assert np.allclose(out["total"], expected["total"], rtol=1e-12)
