"""The engine on a real model: company, chunks, caches and sessions change no token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driving import finish_all

from quantcli.checkpoint import open_checkpoint
from quantcli.engine.loop import Engine
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Event, GrammarSpec, Request, SamplingParams
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


def test_drafts_company_pages_and_threads_leave_the_answer_as_it_is(smollm2_path: Path) -> None:
    quoting = "Repeat this: The quick brown fox jumps over the lazy dog. The quick brown fox"
    answers = []
    for spec, options in (
        ("none", {"cache": "contiguous", "n_sequences": 1}),
        ("ngram", {"cache": "paged", "n_sequences": 5}),
    ):
        with engine_on(smollm2_path, **options) as (_, tokenizer, model):
            engine = Engine(model, tokenizer, options=EngineOptions(spec=spec))
            params = SamplingParams(seed=3, temperature=0.3, max_tokens=24, n_logprobs=2)
            request = Request(tuple(tokenizer.encode(quoting)), params)
            if spec == "ngram":
                list(engine.generate(request))  # measures steps, and leaves the prompt cached
                for prompt in PROMPTS:
                    engine.submit(Request(tuple(tokenizer.encode(prompt))))
                    engine.step()
            events = list(engine.generate(request))
            answers.append([(e.token, e.logprobs) for e in events])
            stats = events[-1].stats
            assert stats is not None
            assert (stats.n_reused > 0) == (spec == "ngram")
    assert answers[0] == answers[1]


def test_an_answer_under_a_schema_is_json(smollm2_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    with engine_on(smollm2_path) as (engine, tokenizer, _):
        said = []
        for is_speculated in (True, False):
            request = Request(
                tuple(tokenizer.encode("The capital of France as JSON: ")),
                SamplingParams(temperature=0.0, max_tokens=60),
                grammar=GrammarSpec("json_schema", json.dumps(schema)),
                is_speculated=is_speculated,
            )
            events = list(engine.generate(request))
            assert events[-1].finish == "stop"
            said.append("".join(event.text for event in events))
    assert said[0] == said[1]
    assert set(json.loads(said[0])) == {"city", "large"}
