"""A small model's guesses: the same answers, its own cache in order, vocabularies that differ."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from driving import finish_all, greedy, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_drafting import REQUESTS, repeating, said

from quantcli.engine import drafting
from quantcli.engine.draft_model import check_vocabularies
from quantcli.engine.loop import Engine
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Request, SamplingParams
from quantcli.errors import UsageError


@pytest.fixture(autouse=True)
def the_model_is_always_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "draft_length", lambda rates, n_most, *_: n_most)
    monkeypatch.setattr(drafting, "allot", lambda drafts, *_: [len(d) for d in drafts])


def engine_with(model: FakeModel, draft: FakeModel | None, **options: object) -> Engine:
    return Engine(
        model,
        FakeTokenizer(eog=(63,)),
        options=EngineOptions(**options),  # type: ignore[arg-type]
        draft=draft,
        sampler="reference",
    )


def nearly(history: History) -> F32:
    """Return what `repeating` returns, but for one place in five."""
    row = repeating(history)
    if hash(history) % 5 == 0:
        row[random.Random(repr(history)).randrange(64)] = 9
    return row


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
    max_rows=st.integers(4, 24),
    n_draft_slots=st.sampled_from([64, 128, 192, 400]),
    max_draft=st.integers(1, 6),
    spec=st.sampled_from(["none", "ngram"]),
    overcommit=st.sampled_from([1.0, 3.0]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_answers_are_the_same_with_and_without_a_draft_model(
    requests: list[Request],
    max_rows: int,
    n_draft_slots: int,
    max_draft: int,
    spec: str,
    overcommit: float,
) -> None:
    requests = [
        replace(r, context_shift=r.context_shift and r.params.max_tokens is not None)
        for r in requests
    ]
    answers = []
    for draft in (None, FakeModel(nearly, max_rows=max_rows, n_slots=n_draft_slots)):
        model = FakeModel(repeating, max_rows=max_rows, n_slots=128)
        options = {"max_draft": max_draft, "spec": spec, "overcommit": overcommit}
        engine = engine_with(model, draft, **options)
        numbers = [engine.submit(request) for request in requests]
        events = finish_all(engine)
        answers.append([sorted(said(events[n]), key=lambda e: e[0]) for n in numbers])
        assert is_empty(model)
        assert draft is None or is_empty(draft)
    assert answers[0] == answers[1]


def test_a_model_that_guesses_right_saves_steps() -> None:
    model, draft = FakeModel(context=128), FakeModel(context=128)
    engine = engine_with(model, draft, max_draft=4)
    number = engine.submit(Request((1, 2), greedy(max_tokens=21, ignore_eos=True)))
    stats = finish_all(engine)[number][-1].stats
    assert stats is not None
    assert (stats.n_drafted, stats.n_accepted, len(model.batches)) == (16, 16, 5)


def test_a_long_prompt_is_caught_up_with_a_step_at_a_time() -> None:
    model, draft = FakeModel(context=128, max_rows=32), FakeModel(context=128, max_rows=8)
    engine = engine_with(model, draft, max_draft=2)
    engine.submit(Request(tuple(range(40)), greedy(max_tokens=12, ignore_eos=True)))
    finish_all(engine)
    assert max(draft.n_rows) == 8
    assert engine.status().n_accepted > 0


def test_wrong_guesses_of_a_model_leave_the_answer_alone() -> None:
    answers = []
    for draft in (None, FakeModel(lambda history: 7), FakeModel(lambda h: np.full(64, np.nan))):
        engine = engine_with(FakeModel(), draft)
        number = engine.submit(Request((1, 2), SamplingParams(seed=1, max_tokens=15)))
        answers.append([e.token for e in finish_all(engine)[number]])
    assert answers[0] == answers[1] == answers[2]


def test_a_draft_models_context_may_be_shorter() -> None:
    model, draft = FakeModel(context=48), FakeModel(context=16)
    engine = engine_with(model, draft)
    number = engine.submit(Request((1, 2), greedy(ignore_eos=True)))
    events = finish_all(engine)[number]
    assert len(events) == 47
    assert is_empty(draft)


# Vocabularies -------------------------------------------------------------------------------------


def test_padding_at_the_end_is_no_difference() -> None:
    pieces: list[str | bytes] = ["a", "b", "<end>"]
    short = FakeTokenizer(pieces, eog=(2,))
    long = FakeTokenizer([*pieces, "[PAD3]", "[PAD4]"], eog=(2,))
    check_vocabularies(short, long)
    check_vocabularies(long, short)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (FakeTokenizer(["a", "c", "<end>"], eog=(2,)), "token 1 is 'b' .* and 'c' to the draft"),
        (FakeTokenizer(["a", "b", "<end>"]), "token 2 is '<end>'"),
        (FakeTokenizer(["a", "b", "<end>", "x"], eog=(2, 3)), r"ends with \[2\], the draft model"),
        (FakeTokenizer(["a", "b", "<end>"], bos=2, eog=(2,)), "begins with token None"),
    ],
)
def test_a_real_difference_is_refused(tokenizer: FakeTokenizer, message: str) -> None:
    target = FakeTokenizer(["a", "b", "<end>"], eog=(2,))
    with pytest.raises(UsageError, match=message):
        check_vocabularies(target, tokenizer)


def test_a_text_with_tokens_that_the_draft_model_lacks_is_not_drafted() -> None:
    model, draft = FakeModel(lambda history: 3, n_vocab=64), FakeModel(n_vocab=40)
    engine = engine_with(model, draft)
    number = engine.submit(Request((1, 50), greedy(max_tokens=5)))
    other = engine.submit(Request((1, 2), greedy(max_tokens=5)))
    events = finish_all(engine)
    assert [e.token for e in events[number]] == [e.token for e in events[other]] == [3] * 5
    drafted = [events[n][-1].stats.n_drafted for n in (number, other)]  # type: ignore[union-attr]
    assert drafted[0] == 0 < drafted[1]
    assert is_empty(draft)


def test_tokens_that_the_large_model_lacks_are_never_drafted() -> None:
    model = FakeModel(lambda history: 3, n_vocab=64)
    draft = FakeModel(lambda history: 70, n_vocab=80)
    engine = engine_with(model, draft)
    number = engine.submit(Request((1,), greedy(max_tokens=5)))
    assert [e.token for e in finish_all(engine)[number]] == [3] * 5
