"""Many at once: choices, priorities, salts, a full queue, making room, and what is counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from driving import answer, engine_of, finish_all, greedy, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Event, FinishReason, Request, SamplingParams
from quantcli.errors import ModelError, QueueFull, UsageError

SAMPLED = SamplingParams(seed=7, max_tokens=8)


def said(events: list[Event], choice: int = 0) -> list[int | None]:
    return [e.token for e in events if e.choice == choice]


# Choices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["paged", "contiguous"])
def test_choice_i_is_the_answer_alone_with_seed_plus_i(cache: str) -> None:
    model = FakeModel(cache=cache, n_sequences=3)
    engine = engine_of(model)
    number = engine.submit(Request(tuple(range(20)), SAMPLED, n=5))
    events = finish_all(engine)[number]
    assert is_empty(model)
    for choice in range(5):
        params = replace(SAMPLED, seed=7 + choice)
        alone = list(engine_of(FakeModel()).generate(Request(tuple(range(20)), params)))
        assert said(events, choice) == said(alone)
        last = [e for e in events if e.choice == choice][-1]
        assert (last.finish, last.stats is not None) == ("length", True)


def test_choices_compute_their_prompt_once() -> None:
    model = FakeModel(n_sequences=8, max_rows=64)
    engine = engine_of(model)
    engine.submit(Request(tuple(range(40)), SAMPLED, n=6))
    finish_all(engine)
    assert sum(model.n_rows) == 40 + 5 + 6 * 7  # the last token of a prompt again, for its logits
    assert engine.status().n_reused == 5 * 39


def test_cancelling_a_request_ends_all_its_choices() -> None:
    model = FakeModel(lambda history: 1)
    engine = engine_of(model)
    number = engine.submit(Request((1, 2), greedy(), n=3))
    engine.step()
    engine.step()
    engine.cancel(number)
    events = [e for e in engine.step() if e.finish is not None]
    assert sorted((e.choice, e.finish) for e in events) == [(i, "cancelled") for i in range(3)]
    assert is_empty(model)
    assert engine.is_idle


def test_generate_yields_all_choices() -> None:
    events = list(engine_of(FakeModel()).generate(Request((1, 2), SAMPLED, n=3)))
    assert sorted({e.choice for e in events}) == [0, 1, 2]
    assert sum(e.finish is not None for e in events) == 3


# Order and room -----------------------------------------------------------------------------------


def test_what_is_more_urgent_goes_first() -> None:
    engine = engine_of(FakeModel(lambda history: 1), options=EngineOptions(max_jobs=1))
    numbers = [
        engine.submit(Request((1,), greedy(max_tokens=2), priority=priority))
        for priority in (0, 5, -1, 0)
    ]
    assert list(finish_all(engine)) == [numbers[i] for i in (2, 0, 3, 1)]


def test_a_full_queue_refuses_and_later_does_not() -> None:
    engine = engine_of(FakeModel(), options=EngineOptions(max_jobs=2, max_waiting=3))
    for _ in range(5):
        engine.submit(Request((1,), greedy(max_tokens=2)))
    with pytest.raises(QueueFull, match="3 requests wait already"):
        engine.submit(Request((1,), greedy(max_tokens=2)))
    finish_all(engine)
    engine.submit(Request((1,), greedy(max_tokens=2)))


@pytest.mark.parametrize("overcommit", [1.0, 4.0])
def test_a_pool_of_two_pages_answers_everybody(overcommit: float) -> None:
    model = FakeModel(n_slots=128, context=128)
    engine = engine_of(model, options=EngineOptions(overcommit=overcommit))
    requests = [
        Request(tuple(range(i, 60 + i)), SamplingParams(seed=i, max_tokens=30)) for i in range(5)
    ]
    numbers = [engine.submit(request) for request in requests]
    events = finish_all(engine)
    assert (engine.status().n_preempted > 0) == (overcommit > 1)
    for number, request in zip(numbers, requests, strict=True):
        assert said(events[number]) == answer(engine_of(FakeModel(context=128)), request)[1]
        stats = events[number][-1].stats
        assert stats is not None
        assert stats.n_generated == 30
    assert is_empty(model)


OPTIONS = st.builds(
    EngineOptions,
    max_jobs=st.sampled_from([None, 1, 3]),
    prefix_caching=st.booleans(),
    overcommit=st.sampled_from([1.0, 2.0, 6.0]),
    target_s=st.sampled_from([None, 1e-9]),
    spec=st.sampled_from(["none", "ngram"]),
)
REQUESTS = st.builds(
    Request,
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=70).map(tuple),
    params=st.builds(
        SamplingParams,
        seed=st.integers(0, 3),
        max_tokens=st.sampled_from([0, 1, 9, 40]),
        n_logprobs=st.sampled_from([None, 1]),
        n_prompt_logprobs=st.sampled_from([None, None, 1]),
    ),
    n=st.sampled_from([1, 1, 2, 3]),
    priority=st.integers(-1, 1),
    cache_salt=st.sampled_from(["", "a"]),
)


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=5),
    options=OPTIONS,
    cache=st.sampled_from(["paged", "contiguous"]),
    max_rows=st.integers(3, 30),
    pauses=st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
@settings(max_examples=40, deadline=None)
def test_every_request_ends_with_its_own_answer(
    requests: list[Request],
    options: EngineOptions,
    cache: str,
    max_rows: int,
    pauses: list[int],
) -> None:
    def hashed(history: History) -> F32:
        return np.random.default_rng(history).standard_normal(64).astype(np.float32)

    model = FakeModel(hashed, max_rows=max_rows, cache=cache, n_slots=240, context=112)
    engine = engine_of(model, options=options)
    events: list[Event] = []
    numbers = []
    for request, n_steps in zip(requests, pauses, strict=False):
        numbers.append(engine.submit(request))
        for _ in range(n_steps):
            events += engine.step()
    events += [event for late in finish_all(engine).values() for event in late]
    for number, request in zip(numbers, requests, strict=True):
        for choice in range(request.n):
            got = [e for e in events if e.request == number and e.choice == choice]
            assert request.params.seed is not None
            params = replace(request.params, seed=request.params.seed + choice)
            if choice:
                params = replace(params, n_prompt_logprobs=None)
            alone = engine_of(FakeModel(hashed, context=112, max_rows=128, n_sequences=1))
            want = list(alone.generate(Request(request.tokens, params)))
            assert [told(e) for e in got] == [told(e) for e in want]
    assert is_empty(model)


def told(event: Event) -> object:
    return (event.token, event.text, event.logprobs, event.finish, event.prompt_logprobs)


# Log-probabilities of the prompt ------------------------------------------------------------------


def test_the_prompts_log_probabilities_come_once_before_the_first_token() -> None:
    def say(history: History) -> F32:
        row = np.zeros(64, np.float32)
        row[history[-1] + 1] = 3
        return row

    prompt = (1, 2, 9, 10)
    zero = math.log(63 + math.exp(3))
    expected = [3 - zero, -zero, 3 - zero]
    for max_tokens in (0, 1, 4):
        engine = engine_of(FakeModel(say, max_rows=3))
        params = greedy(max_tokens=max_tokens, n_prompt_logprobs=2, n_logprobs=1)
        events = list(engine.generate(Request(prompt, params, n=2)))
        first, *others = events
        assert first.choice == 0
        assert first.prompt_logprobs is not None
        assert first.prompt_logprobs[0] is None
        chosen = [p.chosen for p in first.prompt_logprobs[1:] if p is not None]
        assert chosen == pytest.approx(expected, abs=1e-6)
        second = first.prompt_logprobs[2]
        assert second is not None
        assert [token for token, _ in second.top] == [3, 0]
        assert all(e.prompt_logprobs is None for e in others)
        assert len(events) == 2 * max(1, max_tokens)


def test_a_nan_in_the_prompt_ends_its_request_alone() -> None:
    def say(history: History) -> F32:
        row = np.zeros(64, np.float32)
        if len(history) == 2 and history[0] == 9:
            row[5] = math.nan
        return row

    engine = engine_of(FakeModel(say))
    good = engine.submit(Request((1, 2, 3, 4), greedy(max_tokens=3)))
    bad = engine.submit(Request((9, 2, 3, 4), greedy(max_tokens=3, n_prompt_logprobs=0)))
    events = finish_all(engine)
    assert events[good][-1].finish == "length"
    (event,) = events[bad]
    assert isinstance(event.error, ModelError)
    assert "position 1: the logit of token 5 is nan" in str(event.error)
    assert event.prompt_logprobs is None


# Ends ---------------------------------------------------------------------------------------------


def test_stop_tokens_end_the_answer_and_min_tokens_puts_every_end_off() -> None:
    def say(history: History) -> F32:
        row = np.zeros(64, np.float32)
        row[[63, 5, 6]] = 3, 2, 1
        return row

    def said_with(**params: object) -> tuple[list[int], FinishReason | None]:
        engine = engine_of(FakeModel(say), FakeTokenizer(eog=(63,)))
        return answer(engine, Request((1,), greedy(**params)))[1:]

    assert said_with() == ([63], "stop")
    assert said_with(min_tokens=2) == ([5, 5, 63], "stop")
    assert said_with(min_tokens=2, stop_tokens=(5,)) == ([6, 6, 63], "stop")
    assert said_with(ignore_eos=True, stop_tokens=(5,)) == ([5], "stop")
    with pytest.raises(UsageError, match="no token 64; the vocabulary has 64"):
        said_with(stop_tokens=(64,))


# Status -------------------------------------------------------------------------------------------


def test_the_status_says_what_runs_waits_and_was_done() -> None:
    model = FakeModel(lambda history: 1, n_sequences=2, context=64)
    engine = engine_of(model, options=EngineOptions(max_jobs=1))
    for _ in range(2):
        engine.submit(Request((1, 2, 3), greedy(max_tokens=4)))
    before = engine.status()
    assert (before.n_running, before.n_waiting, before.n_requests) == (0, 2, 2)
    engine.step()
    during = engine.status()
    assert (during.n_running, during.n_waiting) == (1, 1)
    assert (during.n_slots, during.n_slots_used) == (128, 64)
    finish_all(engine)
    after = engine.status()
    assert (after.n_running, after.n_waiting, after.n_slots_used) == (0, 0, 0)
    assert after.n_slots_cached > 0
    assert (after.n_prompt, after.n_reused, after.n_generated) == (6, 2, 8)
    assert (after.n_steps, after.n_computed) == (len(model.batches), sum(model.n_rows))
    assert 0 < after.step_s <= after.busy_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_jobs", 0),
        ("max_waiting", 0),
        ("target_s", 0.0),
        ("overcommit", 0.5),
        ("overcommit", math.nan),
        ("max_draft", 65),
        ("spec", "eagle"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match="speculation" if name == "spec" else name):
        EngineOptions(**{name: value})  # type: ignore[arg-type]
