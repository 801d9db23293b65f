"""The compiled model against stored answers of llama.cpp, and against the NumPy executor.

The goldens are made by scripts/make_goldens_logits.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded_model import feed, loaded, step
from logit_cases import CASES, ROWS, prompt
from logit_errors import divergence, noise, relative_errors, relative_rms
from reference_model import load, logits
from tiny import Tiny, write_model

from quantcli.runtime.model import Model

pytestmark = pytest.mark.jit

GOLDENS = Path(__file__).parent.parent / "goldens" / "logits"

# Keys and values are rounded to halves, whose relative error is 2**-11 / sqrt(3) at most (RMS) and
# which llama.cpp's goldens keep in f32. Layers add up as noise does.
HALF = 2.0**-11
# llama.cpp looks GELU up in a table of halves: another such error, in every MLP.
GELU_TABLE = 2.0**-11


def tolerance(tiny: Tiny) -> float:
    """Return the relative RMS error that halves leave in logits of an F32 model."""
    return float((HALF + GELU_TABLE * tiny.has_gelu) * np.sqrt(tiny.n_layers))


@pytest.mark.parametrize("name", CASES)
def test_logits_of_a_tiny_model_are_llama_cpps(name: str, tmp_path: Path) -> None:
    tiny = CASES[name]
    path, theirs = write_model(tmp_path / "m.gguf", tiny), np.load(GOLDENS / "tiny.npz")[name]
    with loaded(path) as model:
        tokens = prompt(model.n_vocab)
        ours = feed(model, tokens)
    assert relative_rms(ours[list(ROWS)], theirs) < tolerance(tiny)
    assert np.array_equal(ours[list(ROWS)].argmax(-1), theirs.argmax(-1))
    # Of the same roundings only few fall the other way; 62 layers leave none unmoved.
    rounded = logits(load(path, kv_type="f16"), tokens)
    assert relative_rms(ours, rounded) < 0.5 * HALF * np.sqrt(tiny.n_layers)
    assert relative_errors(ours, rounded)[0] < max(noise(tiny.n_layers), 0.1 * tolerance(tiny))


def test_an_8_bit_cache_is_rounded_as_the_reference_rounds_it(tmp_path: Path) -> None:
    for name in ("llama_biases", "qwen3_yarn", "gemma3_pattern"):
        path = write_model(tmp_path / f"{name}.gguf", CASES[name])
        with loaded(path, kv_type="q8_0") as model:
            tokens = prompt(model.n_vocab)
            found = feed(model, tokens)
        rounded, exact = logits(load(path, kv_type="q8_0"), tokens), logits(load(path), tokens)
        assert relative_rms(found, rounded) < 0.5 * relative_rms(rounded, exact)
        assert relative_rms(found, exact) < 0.02 * CASES[name].n_layers ** 0.5


def golden(name: str) -> dict[str, Any]:
    """Return what llama.cpp says about a real model."""
    return json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["smollm2", "gemma3"])
def real_model(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    """A real model's file and its golden."""
    return request.getfixturevalue(f"{request.param}_path"), golden(request.param)


@pytest.mark.model
@pytest.mark.slow
def test_a_real_model_is_as_close_to_the_f32_reference_as_llama_cpp(
    real_model: tuple[Path, dict[str, Any]],
) -> None:
    """Held to llama.cpp's own distance on the same text, by the same measure, and 10% more."""
    path, stored = real_model
    tokens, positions = stored["tokens"], stored["positions"]
    with loaded(path, context=1024) as model:
        found = np.concatenate(
            [
                step(
                    model,
                    [(0, start, tokens[start : start + 200])],
                    [p - start for p in positions if start <= p < start + 200],
                )
                for start in range(0, len(tokens), 200)
            ]
        )
    exact = logits(load(path, context=1024), tokens, positions)
    divergences = divergence(exact, found)
    assert divergences.mean() <= 1.1 * stored["kl_to_f32_mean"]
    assert divergences.max() <= 2 * stored["kl_to_f32_max"]
    same_top = float((found.argmax(-1) == exact.argmax(-1)).mean())
    assert same_top >= stored["same_top"] - 0.03  # of 128 positions: 4 more


@pytest.mark.model
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_greedy_tokens_of_a_real_model_are_llama_cpps(
    kv_type: str, real_model: tuple[Path, dict[str, Any]]
) -> None:
    path, stored = real_model
    with loaded(path, context=512, kv_type=kv_type, cache="paged", n_sequences=3) as model:
        for sequence, answer in enumerate(stored["greedy"]):
            ids = greedy(model, answer["prompt"], len(answer["ids"]), sequence)
            decided = np.array(answer["leads"]) > 0.5  # by how much the token led in llama.cpp
            n_sure = len(ids) if decided.all() else int(np.argmin(decided))
            assert ids[:n_sure] == answer["ids"][:n_sure]
            assert n_sure == len(ids) or sequence == len(stored["greedy"]) - 1


def greedy(model: Model, tokens: list[int], n: int, sequence: int) -> list[int]:
    """Return n tokens, each the likeliest after those before it."""
    row = step(model, [(sequence, 0, tokens)], [len(tokens) - 1])
    ids = [int(row.argmax())]
    while len(ids) < n:
        row = step(model, [(sequence, len(tokens) + len(ids) - 1, ids[-1:])])
        ids.append(int(row.argmax()))
    return ids
