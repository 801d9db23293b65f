"""Perplexity and divergence next to what llama-perplexity printed for the same files and text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from loaded_model import loaded
from perplexity_cases import CASES, CONTEXT, N_CHUNKS
from source_tree import ROOT

from quantcli.checkpoint import open_checkpoint
from quantcli.evaluate import divergence, perplexity
from quantcli.evaluate.corpus import read_text
from quantcli.evaluate.divergence import Positions
from quantcli.evaluate.estimates import Estimate
from quantcli.evaluate.protocol import Chunk, cut, protocol
from quantcli.text import from_metadata

GOLDENS = ROOT / "tests" / "goldens" / "perplexity"
TINY = json.loads((GOLDENS / "tiny.json").read_text(encoding="utf-8"))
BACKENDS = ["reference", pytest.param("compiled", marks=pytest.mark.jit)]

# llama.cpp rounds queries to f16 before it multiplies them with keys, and some activations' GELU:
# an error of 2**-11 each, at random over many. Measured: 1.1e-4 at most.
F32_ROUNDING = 2.0**-12
STEP = 16 / 65535  # of log-probabilities in its file of logits, in nats


def chunks_of(path: Path, context: int, n_chunks: int) -> list[Chunk]:
    text = read_text()
    with open_checkpoint(path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
    bos = tokenizer.bos if tokenizer.add_bos else None
    return cut(tokenizer.encode(text.content), protocol(context=context), bos, n_chunks=n_chunks)


def test_the_text_is_the_one_that_was_measured() -> None:
    for path in GOLDENS.glob("*.json"):
        golden = json.loads(path.read_text(encoding="utf-8"))
        assert golden["text_sha256"] == read_text().sha256


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_tiny_models_agree_chunk_by_chunk(tmp_path: Path, name: str, backend: str) -> None:
    golden = TINY["cases"][name]
    base_path, near_path = CASES[name].write(tmp_path)
    chunks = chunks_of(base_path, CONTEXT, N_CHUNKS)
    with (
        loaded(base_path, backend=backend, context=CONTEXT) as base,
        loaded(near_path, backend=backend, context=CONTEXT) as near,
    ):
        nlls = list(perplexity.score(base, chunks, name="base"))
        parts = list(divergence.measure(base, near, chunks, names=("base", "near")))
    running = [perplexity.summarize(nlls[: i + 1]).value.value for i in range(N_CHUNKS)]
    found = perplexity.summarize(nlls).value
    assert running == pytest.approx(golden["base"]["running"], rel=F32_ROUNDING)
    assert found.error == pytest.approx(golden["base"]["error"], rel=1e-3)
    check(divergence.summarize(Positions.join(parts), is_exact=True), golden["near"])


def check(found: divergence.Divergence, golden: dict[str, list[float]]) -> None:
    """Compare statistics with printed ones, whose shares are in percent."""
    kl = {
        "kl": found.kl.value,
        "kl_median": found.kl_median,
        "kl_max": found.kl_max,
        **{f"kl_{p}": value for p, value in found.kl_percentiles.items()},
    }
    for name, value in kl.items():
        # Each base log-probability is off by half a step, at random; a few add up.
        assert value == pytest.approx(golden[name][0], rel=0.02, abs=STEP / 8), name
    rel = STEP / 4 + F32_ROUNDING
    for name, estimate in (("perplexity", found.perplexity), ("ratio", found.ratio)):
        assert estimate.value == pytest.approx(golden[name][0], rel=rel), name
        assert estimate.error == pytest.approx(golden[name][1], rel=0.01), name
    assert found.base_perplexity.value == pytest.approx(golden["base_perplexity"][0], rel=rel)
    for name in ("delta_p", "delta_p_rms", "same_top"):
        estimate = getattr(found, name)
        shown = Estimate(100 * estimate.value, 100 * estimate.error)
        assert shown == pytest.approx(tuple(golden[name]), abs=2e-3), name


@pytest.mark.jit
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_real_model_agrees_as_far_as_its_activations_let_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(f"{name}_path")
    golden = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    n = 4
    chunks = chunks_of(path, 512, n)
    with loaded(path, context=512) as model:
        nlls = list(perplexity.score(model, chunks, name=name))
    found = [perplexity.summarize(nlls[: i + 1]).value.value for i in range(n)]
    ours, theirs, exact = (
        np.log(values)
        for values in (found, golden["file"]["running"][:n], golden["f32"]["running"][:n])
    )
    # Both round activations to 8 bits, each in its own way, which moves a token's likelihood by
    # some 0.08 nats at random: a mean over n tokens by 0.08 / sqrt(n), and all of them up a little.
    spread = 0.08 / np.sqrt(255 * np.arange(1, n + 1))
    assert (np.abs(ours - exact) <= 4 * spread + 0.005).all()
    assert (np.abs(ours - theirs) <= 6 * spread + 0.005).all()
