"""The engine on a real model: company, chunks, caches and sessions change no token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driving import finish_all

from quantcli.checkpoint import open_checkpoint
from quantcli.engine.loop import Engine
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Event, Request, SamplingParams
from quantcli.runtime.model import Model
from quantcli.text import Tokenizer, from_metadata

pytestmark = [pytest.mark.model, pytest.mark.jit]

PROMPTS = ("The capital of France is", "Once upon a time", "1, 2, 3, 4, 5, 6,", "def add(a, b):\n")


@contextmanager
def engine_on(path: Path, **options: object) -> Iterator[tuple[Engine, Tokenizer, Model]]:
    with open_checkpoint(path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
        model = Model.load(checkpoint, context=256, n_threads=2, **options)  # type: ignore[arg-type]
    try:
        yield Engine(model, tokenizer), tokenizer, model
    finally:
        model.close()


def tokens_of(events: list[Event]) -> list[int]:
    return [event.token for event in events if event.token is not None]


def test_requests_together_answer_as_alone_on_either_cache(smollm2_path: Path) -> None:
    answers = []
    for cache, together in (("contiguous", False), ("paged", True)):
        with engine_on(smollm2_path, cache=cache, n_sequences=4) as (engine, tokenizer, model):
            requests = [
                Request(tuple(tokenizer.encode(prompt)), SamplingParams(seed=seed, max_tokens=20))
                for seed, prompt in enumerate(PROMPTS)
            ]
            if together:
                numbers = [engine.submit(request) for request in requests]
                events = finish_all(engine)
                answers.append([tokens_of(events[number]) for number in numbers])
            else:
                answers.append([tokens_of(list(engine.generate(r))) for r in requests])
            model.kv.check()
            assert model.kv.n_free_pages == model.kv.n_pages
    assert answers[0] == answers[1]


def test_a_chats_second_turn_is_the_same_with_and_without_its_cache(smollm2_path: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    said = []
    with engine_on(smollm2_path) as (_, tokenizer, model):
        for is_cached in (True, False):
            engine = Engine(model, tokenizer, options=EngineOptions(prefix_caching=is_cached))
            tokens = tokenizer.encode(PROMPTS[0])
            for text in ("", " And what about Spain?"):
                tokens += tokenizer.encode(text, add_special=False)
                events = list(engine.generate(Request(tuple(tokens), params)))
                tokens += tokens_of(events)
            assert events[-1].stats is not None
            assert (events[-1].stats.n_reused > 0) == is_cached
            said.append(tokens)
    assert said[0] == said[1]
