"""Drafts change how fast an answer comes, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from driving import engine_of, finish_all, greedy, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_grammar import PIECES, TOKENIZER, schema

from quantcli.engine import drafting
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Event, GrammarSpec, Request, SamplingParams

NGRAM = EngineOptions(spec="ngram")


@pytest.fixture(autouse=True)
def everything_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft whatever can be guessed, so that no clock decides what is tested."""

    def all_of_them(drafts: list[list[float]], n_rows: int, max_rows: int, _: object) -> list[int]:
        return [len(draft) for draft in drafts]

    monkeypatch.setattr(drafting, "allot", all_of_them)


def repeating(history: History) -> F32:
    """Return logits that make texts that repeat themselves, but not for ever."""
    row = np.zeros(64, np.float32)
    row[(sum(history[-2:]) + len(history) // 13) % 9] = 4
    row[(7 * history[-1]) % 64] = 2
    return row


def said(events: list[Event]) -> list[object]:
    return [(e.choice, e.token, e.text, e.logprobs, e.finish) for e in events]


REQUESTS = st.builds(
    Request,
    tokens=st.lists(st.integers(0, 8), min_size=1, max_size=30).map(tuple),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.5, 1.0]),
        repeat_penalty=st.sampled_from([1.0, 1.3]),
        repeat_last_n=st.sampled_from([3, 64]),
        frequency_penalty=st.sampled_from([0.0, 0.2]),
        seed=st.integers(0, 3),
        max_tokens=st.sampled_from([1, 2, 9, 30, None]),
        min_tokens=st.sampled_from([0, 4]),
        stop=st.sampled_from([(), ("<1", "2>"), ("4><8",)]),
        n_logprobs=st.sampled_from([None, 2]),
    ),
    context_shift=st.booleans(),
    n_keep=st.sampled_from([0, 2]),
    n=st.sampled_from([1, 1, 2]),
)


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
    max_rows=st.integers(4, 24),
    cache=st.sampled_from(["paged", "contiguous"]),
    max_draft=st.integers(1, 9),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_answers_are_the_same_with_and_without_drafts(
    requests: list[Request], max_rows: int, cache: str, max_draft: int
) -> None:
    requests = [
        replace(r, context_shift=r.context_shift and r.params.max_tokens is not None)
        for r in requests
    ]
    answers = []
    for spec in ("none", "ngram"):
        model = FakeModel(repeating, max_rows=max_rows, cache=cache)
        options = EngineOptions(spec=spec, max_draft=max_draft)
        engine = engine_of(model, FakeTokenizer(eog=(8,)), options)
        numbers = [engine.submit(request) for request in requests]
        events = finish_all(engine)
        answers.append([sorted(said(events[n]), key=lambda e: e[0]) for n in numbers])
        assert is_empty(model)
    assert answers[0] == answers[1]


def test_right_guesses_take_fewer_steps_and_are_counted() -> None:
    model = FakeModel(lambda history: (1, 2, 3, 4)[len(history) % 4])
    engine = engine_of(model, options=NGRAM)
    number = engine.submit(Request((1, 2, 3, 4, 1, 2, 3, 4), greedy(max_tokens=20)))
    events = finish_all(engine)[number]
    stats = events[-1].stats
    assert stats is not None
    assert (stats.n_generated, stats.n_accepted) == (20, stats.n_drafted)
    assert len(model.batches) == 1 + stats.n_generated - stats.n_accepted - 1
    status = engine.status()
    assert (status.n_drafted, status.n_accepted) == (stats.n_drafted, stats.n_accepted)
    assert status.n_generated == 20


def test_wrong_guesses_are_dropped() -> None:
    model = FakeModel(lambda history: 9 if len(history) == 7 else 5 + len(history))
    engine = engine_of(model, options=NGRAM)
    number = engine.submit(Request((1, 2, 3, 9, 1, 2, 3), greedy(max_tokens=3)))
    stats = finish_all(engine)[number][-1].stats
    assert stats is not None
    assert (stats.n_drafted > 0, stats.n_accepted, stats.n_generated) == (True, 0, 3)


def test_no_draft_reaches_beyond_the_tokens_asked_for_or_the_context() -> None:
    for context, max_tokens in ((48, 5), (16, None)):
        model = FakeModel(lambda history: 1, context=context)
        engine = engine_of(model, options=NGRAM)
        number = engine.submit(Request((1,) * 9, greedy(max_tokens=max_tokens)))
        events = finish_all(engine)[number]
        n = max_tokens or 8
        assert [e.token for e in events] == [1] * n
        assert max(max(batch.positions) for batch in model.batches) < 9 + n


def test_a_request_may_ask_not_to_be_drafted() -> None:
    engine = engine_of(FakeModel(lambda history: 1), options=NGRAM)
    engine.submit(Request((1,) * 9, greedy(max_tokens=9), is_speculated=False))
    finish_all(engine)
    assert engine.status().n_drafted == 0


def test_nothing_is_drafted_while_a_prompt_is_computed() -> None:
    model = FakeModel(lambda history: 1, max_rows=4)
    engine = engine_of(model, options=NGRAM)
    engine.submit(Request((1,) * 5, greedy(max_tokens=9)))
    engine.step()
    engine.step()
    engine.submit(Request(tuple(range(30)), greedy(max_tokens=1)))
    engine.step()
    n_drafted = engine.status().n_drafted
    for _ in range(5):
        engine.step()
    assert engine.status().n_drafted == n_drafted


NUMBERED = {
    "type": "object",
    "properties": {"first_name": {"enum": ["Ann", "Bob"]}, "second_name": {"type": "boolean"}},
    "required": ["first_name", "second_name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("spec", ["none", "ngram"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forced_text_is_drafted_and_the_answer_stays(spec: str, temperature: float) -> None:
    def noisy(history: History) -> F32:
        row = np.random.default_rng([len(history), *history[-2:]]).standard_normal(len(PIECES))
        return row.astype(np.float32)

    answers = []
    for is_speculated in (False, True):
        model = FakeModel(noisy, n_vocab=len(PIECES), context=128)
        engine = engine_of(model, TOKENIZER, EngineOptions(spec=spec))
        params = SamplingParams(seed=3, temperature=temperature, repeat_penalty=1.1)
        request = Request((1,), params, grammar=schema(NUMBERED), is_speculated=is_speculated)
        events = list(engine.generate(request))
        answers.append(said(events))
        stats = events[-1].stats
        assert stats is not None
        assert (stats.n_accepted > 10) == is_speculated
        assert stats.n_accepted >= 0.9 * stats.n_drafted
    assert answers[0] == answers[1]


def test_a_draft_ends_where_the_grammar_does_not_allow_it() -> None:
    model = FakeModel(lambda history: ord("a"), n_vocab=len(PIECES), context=64)
    engine = engine_of(model, TOKENIZER, NGRAM)
    prompt = tuple(b"aaab aaa")
    spec = GrammarSpec("regex", "a{2}c?")
    number = engine.submit(Request(prompt, greedy(max_tokens=9), grammar=spec))
    events = finish_all(engine)[number]
    assert "".join(e.text for e in events) == "aa" + events[-1].text.removeprefix("a")
