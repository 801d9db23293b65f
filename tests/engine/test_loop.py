"""Many requests on one engine: errors, cancelling, threads; nothing is left behind."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
from driving import GREEDY, answer, engine_of, finish_all, greedy, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History, script

from quantcli.engine.loop import Engine
from quantcli.engine.request import Event, FinishReason, Request, SamplingParams
from quantcli.errors import ModelError, ResourceError
from quantcli.runtime.step import Batch

# Errors -------------------------------------------------------------------------------------------


def test_bad_logits_end_one_request_and_say_where() -> None:
    def say(history: History) -> F32:
        row = np.zeros(64, np.float32)
        row[3] = 1
        if history[0] == 9 and len(history) == 4:
            row[17] = math.nan
        return row

    model = FakeModel(say)
    engine = engine_of(model)
    good = engine.submit(Request((1, 2), greedy(max_tokens=6)))
    bad = engine.submit(Request((9, 2), greedy(max_tokens=6)))
    events = finish_all(engine)
    assert [e.token for e in events[good]] == [3] * 6
    last = events[bad][-1]
    assert last.finish is FinishReason.ERROR
    assert isinstance(last.error, ModelError)
    assert f"request {bad}, position 3: the logit of token 17 is nan" in str(last.error)
    assert last.stats is not None
    assert last.stats.n_generated == 2
    assert is_empty(model)


def fail_at(step: int, error: BaseException) -> Callable[[Batch], None]:
    count = 0

    def before(batch: Batch) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise error

    return before


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("error", [RuntimeError("bug"), ResourceError("full"), KeyboardInterrupt()])
def test_an_error_of_the_model_leaves_no_slots_and_no_request(
    step: int, error: BaseException
) -> None:
    model = FakeModel(lambda history: 1, before=fail_at(step, error))
    engine = engine_of(model)
    engine.submit(Request((1,) * 10, greedy(max_tokens=5)))
    engine.submit(Request((2,) * 3, greedy(max_tokens=5), session=1))
    with pytest.raises(type(error)):
        finish_all(engine)
    finish_all(engine)
    assert is_empty(model)
    assert answer(engine, Request((1, 2), greedy(max_tokens=2)))[1] == [1, 1]


def test_a_session_that_failed_starts_anew() -> None:
    model = FakeModel(lambda history: 1, before=fail_at(2, RuntimeError("bug")))
    engine = engine_of(model)
    request = Request((2, 3, 4), greedy(max_tokens=5), session=1)
    engine.submit(request)
    with pytest.raises(RuntimeError):
        finish_all(engine)
    assert is_empty(model)  # half a step may lie in its slots
    number = engine.submit(request)
    stats = finish_all(engine)[number][-1].stats
    assert stats is not None
    assert stats.n_reused == 0


# Cancelling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", range(6))
def test_cancelling_frees_the_slots_by_the_next_step(n_steps: int) -> None:
    model = FakeModel(lambda history: 1, max_rows=4)
    engine = engine_of(model)
    number = engine.submit(Request((1,) * 10, GREEDY))
    for _ in range(n_steps):
        engine.step()
    n_batches = len(model.batches)
    engine.cancel(number)
    events = engine.step()
    assert [(e.request, e.finish) for e in events] == [(number, "cancelled")]
    assert len(model.batches) == n_batches
    assert is_empty(model)
    assert engine.is_idle


def test_cancelling_what_is_over_or_unknown_is_ignored() -> None:
    model = FakeModel(script(3, after=1))
    engine = engine_of(model)
    number = engine.submit(Request((1,), greedy(max_tokens=1)))
    engine.step()
    engine.cancel(number)
    engine.cancel(999)
    assert engine.step() == []


def test_cancelling_during_a_forward_breaks_it_off_if_it_is_in_vain() -> None:
    engine: Engine
    cancels = []

    def before(batch: Batch) -> None:
        if cancels:
            engine.cancel(cancels.pop())

    model = FakeModel(lambda history: 1, before=before)
    engine = engine_of(model)
    one, other = (engine.submit(Request((n,) * 3, greedy(max_tokens=4))) for n in (1, 2))
    engine.step()
    cancels.append(one)  # another goes on: the step is finished
    assert [(e.request, e.finish) for e in engine.step()] == [(one, "cancelled"), (other, None)]
    assert len(model.batches) == 2
    cancels.append(other)  # nobody wants this step
    assert [(e.request, e.finish) for e in engine.step()] == [(other, "cancelled")]
    assert len(model.batches) == 2
    assert is_empty(model)


def test_a_forward_broken_off_by_mistake_is_computed_again() -> None:
    model = FakeModel(script(3, 4, after=2))
    engine = engine_of(model)
    engine.submit(Request((1, 2), greedy(max_tokens=2)))
    model.cancel()
    assert engine.step() == []
    assert [e.token for e in engine.step()] == [3]


def test_requests_may_come_and_go_from_other_threads() -> None:
    model = FakeModel(lambda history: 1)
    engine = engine_of(model)
    numbers: list[int] = []

    def submit() -> None:
        for _ in range(50):
            numbers.append(engine.submit(Request((1, 2), greedy(max_tokens=5))))
            if len(numbers) % 3 == 0:
                engine.cancel(numbers[-1])

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    events: dict[int, list[Event]] = {}
    while any(thread.is_alive() for thread in threads) or not engine.is_idle:
        for event in engine.step():
            events.setdefault(event.request, []).append(event)
    assert sorted(events) == sorted(numbers) == list(range(1, 201))
    assert all(e[-1].finish in ("length", "cancelled") for e in events.values())
    assert is_empty(model)


def test_generate_yields_one_requests_events_and_keeps_the_others() -> None:
    model = FakeModel(lambda history: 1)
    engine = engine_of(model)
    other = engine.submit(Request((1, 2), greedy(max_tokens=3)))
    events = list(engine.generate(Request((3,), greedy(max_tokens=2))))
    assert [e.token for e in events] == [1, 1]
    assert [e.token for e in finish_all(engine)[other]] == [1, 1, 1]


def test_closing_a_generator_frees_its_slots() -> None:
    model = FakeModel(lambda history: 1)
    engine = engine_of(model)
    events = engine.generate(Request((1, 2), GREEDY))
    next(events)
    events.close()
    assert is_empty(model)
    assert engine.is_idle


def test_generate_raises_a_requests_error() -> None:
    model = FakeModel(lambda history: np.full(64, math.nan, np.float32))
    with pytest.raises(ModelError, match="token 0 is nan, and 64 of 64"):
        list(engine_of(model).generate(Request((1,), GREEDY)))
    assert is_empty(model)


@pytest.mark.jit
def test_the_compiled_sampler_answers_as_the_reference_does() -> None:
    answers = []
    told: list[str] = []
    for sampler in ("compiled", "reference"):
        engine = Engine(
            FakeModel(),
            FakeTokenizer(),
            sampler=sampler,
            progress=lambda what, done, total: told.append(what),
        )
        for seed in range(5):
            params = SamplingParams(seed=seed, n_logprobs=3, presence_penalty=0.5)
            engine.submit(Request((seed, 1), params))
        answers.append(
            {
                number: [(e.token, e.text, e.logprobs, e.finish) for e in events]
                for number, events in finish_all(engine).items()
            }
        )
    assert answers[0] == answers[1]
    assert told == ["preparing the sampler for this CPU, slow only once"] * 2
