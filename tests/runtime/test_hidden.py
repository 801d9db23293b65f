"""Last hidden states: what the output matrix turns into logits, the same in any company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loaded_model import batch_of, loaded
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import UnsupportedModel
from quantcli.plan import Plan
from quantcli.runtime.hidden import final_norm

TOKENS = [5, 9, 70, 3, 100, 8]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden")
    return write_tiny(folder / "m.gguf", request.param, weight_format="f32", context=64)


@pytest.mark.jit
def test_they_are_what_the_output_matrix_reads(path: Path) -> None:
    with loaded(path, context=64) as model, open_checkpoint(path) as checkpoint:
        model.kv.reserve(0, len(TOKENS))
        batch = batch_of([(0, 0, TOKENS)])
        logits = model.forward(batch).copy()
        hidden = model.hidden(batch)
        matrix = checkpoint.tensor("output.weight").dequantize().reshape(model.n_vocab, -1)
    np.testing.assert_allclose(hidden @ matrix.T, logits, rtol=2e-4, atol=2e-4)


@pytest.mark.jit
def test_they_are_the_same_bytes_alone_and_in_chunks(path: Path) -> None:
    with loaded(path, context=64, n_sequences=2) as model:
        for sequence in (0, 1):
            model.kv.reserve(sequence, len(TOKENS))
        whole = model.hidden(batch_of([(0, 0, TOKENS), (1, 0, TOKENS[::-1])]))
        parts = [model.hidden(batch_of([(0, i, [token])])) for i, token in enumerate(TOKENS)]
    assert whole[: len(TOKENS)].tobytes() == np.concatenate(parts).tobytes()


@pytest.mark.jit
def test_the_reference_finds_the_same(path: Path) -> None:
    found = []
    for backend in ("compiled", "reference"):
        with loaded(path, context=64, backend=backend) as model:
            model.kv.reserve(0, len(TOKENS))
            found.append(model.hidden(batch_of([(0, 0, TOKENS)])))
    np.testing.assert_allclose(found[0], found[1], rtol=0.02, atol=0.02)


def test_a_plan_that_ends_otherwise_has_none() -> None:
    plan = Plan()
    x = plan.embed("token_embd.weight", 32, 16)
    x = plan.select(x)
    plan.linear(x, "output.weight", 32)
    with pytest.raises(UnsupportedModel, match="no norm"):
        final_norm(plan)
