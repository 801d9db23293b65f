"""Driving the engine with a fake model, as tests of the engine and the server do."""

from __future__ import annotations

from fakes import FakeModel, FakeTokenizer

from quantcli.engine.loop import Engine
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Event, FinishReason, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def greedy(**params: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **params)  # type: ignore[arg-type]


def engine_of(
    model: FakeModel, tokenizer: FakeTokenizer | None = None, options: EngineOptions | None = None
) -> Engine:
    return Engine(model, tokenizer or FakeTokenizer(), options=options, sampler="reference")


def finish_all(engine: Engine) -> dict[int, list[Event]]:
    """Step until idle; return the events of each request."""
    events: dict[int, list[Event]] = {}
    for _ in range(10_000):
        if engine.is_idle:
            return events
        for event in engine.step():
            events.setdefault(event.request, []).append(event)
    raise AssertionError("the engine never becomes idle")


def answer(engine: Engine, request: Request) -> tuple[str, list[int], FinishReason | None]:
    """Return text, tokens and finish reason of one request alone."""
    number = engine.submit(request)
    events = finish_all(engine)[number]
    assert [e.finish for e in events[:-1]] == [None] * (len(events) - 1)
    assert all((e.stats is None) == (e.finish is None) for e in events)
    tokens = [e.token for e in events if e.token is not None]
    return "".join(e.text for e in events), tokens, events[-1].finish


def is_empty(model: FakeModel) -> bool:
    model.kv.check()
    return model.kv.n_free_pages == model.kv.n_pages
