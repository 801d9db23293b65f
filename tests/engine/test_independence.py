"""The promise: what a request answers depends on nothing but the request."""

from __future__ import annotations

from driving import engine_of, finish_all, is_empty
from fakes import FakeModel, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.request import Event, Request, SamplingParams

REQUESTS = st.builds(
    Request,
    tokens=st.lists(st.integers(0, 63), min_size=1, max_size=40).map(tuple),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.8]),
        repeat_penalty=st.sampled_from([1.0, 1.2]),
        seed=st.integers(0, 3),
        max_tokens=st.sampled_from([1, 5, 20, None]),
        stop=st.sampled_from([(), ("<1", "2>")]),
    ),
    session=st.sampled_from([None, None, 1, 2]),
    context_shift=st.just(False),
)

TOKENIZER = FakeTokenizer(eog=(63,))


def said(events: list[Event]) -> list[tuple[int | None, str]]:
    return [(event.token, event.text) for event in events]


def alone(request: Request) -> list[Event]:
    """Return the events of a request with an engine to itself, the prompt in one piece."""
    model = FakeModel(max_rows=64, cache="contiguous", n_sequences=1)
    return list(engine_of(model, TOKENIZER).generate(Request(request.tokens, request.params)))


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=7),
    max_rows=st.integers(1, 20),
    cache=st.sampled_from(["paged", "contiguous"]),
    n_sequences=st.integers(1, 4),
    cancelled=st.sets(st.integers(0, 6), max_size=2),
    pauses=st.lists(st.integers(0, 5), min_size=7, max_size=7),
)
@settings(max_examples=60, deadline=None)
def test_an_answer_does_not_depend_on_company_chunks_or_cache(
    requests: list[Request],
    max_rows: int,
    cache: str,
    n_sequences: int,
    cancelled: set[int],
    pauses: list[int],
) -> None:
    model = FakeModel(max_rows=max_rows, cache=cache, n_sequences=n_sequences)
    engine = engine_of(model, TOKENIZER)
    events: list[Event] = []
    numbers = []
    for request, n_steps in zip(requests, pauses, strict=False):
        numbers.append(engine.submit(request))
        for _ in range(n_steps):
            events += engine.step()
    for i in cancelled & set(range(len(requests))):
        engine.cancel(numbers[i])
    events += [event for late in finish_all(engine).values() for event in late]

    for number, request in zip(numbers, requests, strict=True):
        got = [event for event in events if event.request == number]
        want = alone(request)
        if got[-1].finish == "cancelled":
            assert said(got[:-1]) == said(want[: len(got) - 1])
        else:
            assert said(got) == said(want)
            assert got[-1].finish == want[-1].finish
    assert is_empty(model)
