"""The smallest whole: a file is written, opened, tokenized, computed, and answered from.

Run this first. The answer was computed once and is the same on either executor and either cache:
each of its tokens leads by 0.5 or more, where rounding moves logits by 0.05.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.engine.loop import Engine
from quantcli.engine.request import FinishReason, Request, SamplingParams
from quantcli.runtime.model import Model
from quantcli.text import from_metadata

PROMPT = "Hello, world"
ANSWER = [66, 249, 117, 111, 99, 249, 219, 165, 249, 219, 123, 99]
TEXT = "B\ufffduoc\ufffd\u06e5\ufffd\ufffd{c"  # random weights make bytes, few of them characters


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
@pytest.mark.parametrize("backend", [pytest.param("compiled", marks=pytest.mark.jit), "reference"])
def test_a_tiny_model_answers_as_ever(backend: str, cache: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="q4_0", seed=658)
    with open_checkpoint(path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
        model = Model.load(checkpoint, backend=backend, cache=cache, n_threads=2, context=64)
        sampler = "reference" if backend == "reference" else "compiled"
        engine = Engine(model, tokenizer, sampler=sampler)
        params = SamplingParams(temperature=0.0, max_tokens=len(ANSWER))
        events = list(engine.generate(Request(tuple(tokenizer.encode(PROMPT)), params)))
        model.close()
    assert [event.token for event in events if event.token is not None] == ANSWER
    assert "".join(event.text for event in events) == TEXT
    assert events[-1].finish == FinishReason.LENGTH
    assert engine.is_idle
    model.kv.check()
    assert model.kv.n_free_pages == model.kv.n_pages
