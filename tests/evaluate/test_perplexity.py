"""Perplexity: exact values on a model of known probabilities, and on tiny models."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from bigram import BigramModel, bigram, text
from loaded_model import feed, loaded
from tiny import write_tiny

from quantcli.errors import ModelError
from quantcli.evaluate.perplexity import score, summarize
from quantcli.evaluate.protocol import PROTOCOLS, Chunk, cut, protocol


def chunks_of(model: BigramModel, name: str, n_tokens: int = 100, context: int = 32) -> list[Chunk]:
    return cut(text(n_tokens, model.n_vocab), protocol(name, context), bos=5)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_target_is_scored_by_the_row_before_it(name: str) -> None:
    model = bigram()
    chunks = chunks_of(model, name)
    found = list(score(model, chunks, name="m"))
    for chunk, nlls in zip(chunks, found, strict=True):
        rows = chunk.tokens[chunk.first_row : -1]
        expected = [-model.log_p[t, u] for t, u in zip(rows, chunk.targets, strict=True)]
        assert nlls == pytest.approx(expected, rel=1e-12)


def test_the_last_token_of_a_chunk_is_not_computed() -> None:
    model = bigram()
    (chunk,) = chunks_of(model, "full", n_tokens=32)
    list(score(model, [chunk], name="m"))
    assert [t for batch in model.batches for t in batch.tokens] == list(chunk.tokens[:-1])


def test_chunks_start_in_an_empty_cache() -> None:
    model = bigram()
    list(score(model, chunks_of(model, "llama.cpp"), name="m"))
    starts = [batch.positions[0] for batch in model.batches]
    assert starts == [0, 8, 16, 24] * 3


def test_a_summary_is_the_definition() -> None:
    nlls = np.random.default_rng(0).gamma(2.0, size=500)
    found = summarize([nlls[:200], nlls[200:]], n_bytes=1700)
    assert found.n_tokens == 500
    assert found.value.value == pytest.approx(math.exp(nlls.mean()))
    assert found.value.error == pytest.approx(math.exp(nlls.mean()) * nlls.std() / math.sqrt(499))
    assert found.bits_per_byte == pytest.approx(nlls.sum() / math.log(2) / 1700)
    assert summarize([nlls]).bits_per_byte is None


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    model = BigramModel(np.zeros((40, 40), np.float32))
    found = summarize(list(score(model, chunks_of(model, "full"), name="m")))
    assert found.value.value == pytest.approx(40, rel=1e-12)
    assert found.value.error == pytest.approx(0, abs=1e-9)


def test_progress_counts_tokens_to_their_total() -> None:
    model = bigram()
    seen: list[tuple[str, int, int]] = []
    list(score(model, chunks_of(model, "full"), name="m", progress=lambda *x: seen.append(x)))
    assert {(stage, total) for stage, _, total in seen} == {("perplexity of m", 93)}
    done = [n for _, n, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 93)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused_with_their_place(value: float) -> None:
    model = bigram()
    chunk = chunks_of(model, "full")[1]
    model.table[:] = 0
    model.table[chunk.tokens[10], 3] = value
    place = chunk.tokens.index(chunk.tokens[10]) + 1
    with pytest.raises(ModelError, match=f"bad: logits after token {place} of chunk 2 are not"):
        list(score(model, [chunk], name="bad"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "qwen3", context=64)


@pytest.mark.parametrize("backend", ["reference", pytest.param("compiled", marks=pytest.mark.jit)])
def test_a_tiny_model_is_scored_as_its_logits_say(tiny: Path, backend: str) -> None:
    tokens = text(130, 200)
    chunks = cut(tokens, protocol("llama.cpp", 48), bos=3)
    with loaded(tiny, backend=backend, context=48) as model:
        found = list(score(model, chunks, name="tiny"))
        for chunk, nlls in zip(chunks, found, strict=True):
            logits = feed(model, chunk.tokens[:-1])[chunk.first_row :].astype(np.float64)
            total = np.log(np.exp(logits).sum(axis=1))
            expected = total - logits[np.arange(len(logits)), list(chunk.targets)]
            assert nlls == pytest.approx(expected, abs=1e-12)


@pytest.mark.jit
def test_threads_and_kinds_of_cache_change_no_bit(tiny: Path) -> None:
    chunks = cut(text(100, 200), protocol("full", 48), bos=None)
    results = []
    for options in ({"n_threads": 1}, {"n_threads": 3}, {"cache": "paged"}):
        with loaded(tiny, context=48, **options) as model:
            results.append(np.concatenate(list(score(model, chunks, name="tiny"))))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()
