"""Requests that answer with an embedding of their prompt."""

from __future__ import annotations

import numpy as np
import pytest
from driving import engine_of, finish_all, greedy, is_empty
from fakes import F32, FakeModel

from quantcli.engine.request import Event, Request
from quantcli.errors import ModelError, UsageError
from quantcli.runtime.step import Batch

PROMPT = tuple(range(3, 33))


@pytest.mark.parametrize("max_rows", [3, 8, 64])
@pytest.mark.parametrize(
    ("pooling", "expected"), [("mean", (17.5, 14.5, 1.0)), ("last", (32.0, 29.0, 1.0))]
)
def test_an_embedding_is_the_mean_or_the_last_of_the_states(
    max_rows: int, pooling: str, expected: tuple[float, ...]
) -> None:
    model = FakeModel(max_rows=max_rows)
    engine = engine_of(model)
    for _ in range(2):  # the second time, the prompt is cached
        number = engine.submit(Request(PROMPT, greedy(max_tokens=0), pooling=pooling))
        (event,) = finish_all(engine)[number]
        assert event.embedding == expected
        assert (event.token, event.text, event.finish) == (None, "", "length")
    assert event.stats is not None
    assert (event.stats.n_prompt, event.stats.n_reused > 0) == (30, pooling == "last")
    assert is_empty(model)


def test_embeddings_and_answers_go_through_one_engine() -> None:
    model = FakeModel()
    engine = engine_of(model)
    answers: list[list[Event]] = []
    for together in (False, True):
        number = engine.submit(Request((1, 2), greedy(max_tokens=9)))
        pooled = engine.submit(Request(PROMPT, pooling="mean")) if together else 0
        events = finish_all(engine)
        answers.append(events[number])
        assert not together or events[pooled][-1].embedding == (17.5, 14.5, 1.0)
    assert [e.token for e in answers[0]] == [e.token for e in answers[1]]


class Damaged(FakeModel):
    def hidden(self, batch: Batch) -> F32:
        states = super().hidden(batch)
        states[batch.outputs[0] : 1] = np.nan
        return states


def test_an_embedding_that_is_not_finite_ends_its_request_alone() -> None:
    engine = engine_of(Damaged())
    good = engine.submit(Request((1, 2), greedy(max_tokens=3)))
    bad = engine.submit(Request(PROMPT, pooling="mean"))
    events = finish_all(engine)
    assert events[good][-1].finish == "length"
    assert isinstance(events[bad][-1].error, ModelError)
    assert events[bad][-1].embedding is None


def test_what_makes_no_sense_for_an_embedding_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown pooling 'max'"):
        Request((1,), pooling="max")
    with pytest.raises(UsageError, match="an embedding is one"):
        Request((1,), pooling="mean", n=2)
