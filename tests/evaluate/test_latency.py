"""The wait for the first token is measured through the engine, whatever the vocabulary."""

from __future__ import annotations

import pytest
from fakes import FakeModel

from quantcli.errors import UsageError
from quantcli.evaluate.latency import first_token_s


def test_a_prompt_is_computed_and_one_token_chosen() -> None:
    model = FakeModel(context=48, max_rows=8)
    assert first_token_s(model, 20, sampler="reference") > 0
    assert model.n_rows == [8, 8, 4]
    assert sum(len(batch.outputs) for batch in model.batches) == 1
    assert model.kv.n_free_pages == model.kv.n_pages


def test_a_prompt_as_long_as_the_context_still_has_a_first_token() -> None:
    assert first_token_s(FakeModel(context=48), 48, sampler="reference") > 0


def test_a_longer_prompt_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="the prompt has 49 tokens, and the context 48"):
        first_token_s(FakeModel(context=48), 49, sampler="reference")
