"""Every architecture in the catalog, in every weight format, on either executor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loaded_model import fed, loaded, step
from logit_cases import prompt
from logit_errors import noise, relative_errors, relative_rms
from reference_model import load, logits
from tiny import write_tiny

from quantcli import catalog
from quantcli.arch import get
from quantcli.kernels import matmul

ARCHS = catalog.names("architecture")
FORMATS = (*matmul.names(), "mix", "mix_256")
# One in every format, one with experts in every kind of format, both in every cache. Others share
# their ops and their kernels, and take turns at what is left.
CLOSELY = ("llama", "qwen3moe")
FORMATS_OF = [("llama", name) for name in FORMATS]
FORMATS_OF += [("qwen3moe", name) for name in ("f16", "q4_0", "q8_0", "q6_k", "mxfp4", "mix_256")]
IN_TURN = [(arch, ("mix", "mix_256")[i % 2]) for i, arch in enumerate(ARCHS) if arch not in CLOSELY]
ROUNDING = 2e-4  # of logits of size 10, by order of f32 sums in a few dozen ops


@pytest.mark.parametrize("arch", ARCHS)
def test_an_architecture_bears_its_name(arch: str) -> None:
    assert get(arch).name == arch


@pytest.mark.parametrize(("arch", "weight_format"), [*FORMATS_OF, *IN_TURN])
def test_a_model_runs_in_every_format(arch: str, weight_format: str, tmp_path: Path) -> None:
    executor = load(write_tiny(tmp_path / "m.gguf", arch, weight_format=weight_format))
    found = logits(executor, prompt(executor.plan.logits.width, 8))
    assert np.isfinite(found).all()
    assert 1.0 < found.std() < 30.0


CHUNKS, KV_TYPES = (1, 7, 32), ("f32", "f16", "q8_0")


@pytest.mark.parametrize(
    ("arch", "chunk", "kv_type"),
    [
        *((arch, n, kind) for arch in CLOSELY for n in CHUNKS for kind in KV_TYPES),
        *((arch, CHUNKS[i % 3], "f32") for i, (arch, _) in enumerate(IN_TURN)),
    ],
)
def test_a_prompt_in_chunks_gives_the_same_logits(
    arch: str, chunk: int, kv_type: str, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, weight_format="mix", biases=True, n_layers=3)
    whole = load(path, kv_type=kv_type)
    tokens = prompt(whole.plan.logits.width, 50)
    expected = logits(whole, tokens)
    executor = load(path, kv_type=kv_type)
    parts = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        n = len(part)
        parts.append(executor.forward(part, range(start, start + n), [0] * n, range(n)))
    found = np.concatenate(parts)
    # a value at the edge of two roundings may fall either way
    assert np.median(np.abs(found - expected)) < ROUNDING
    assert np.abs(found - expected).max() < (ROUNDING if kv_type == "f32" else 0.1)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_past_matters_and_the_future_does_not(arch: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, weight_format="f32")
    tokens = prompt(200, 12)
    changed = [*tokens[:5], (tokens[5] + 1) % 200, *tokens[6:]]
    before, after = logits(load(path), tokens), logits(load(path), changed)
    assert np.abs(before[:5] - after[:5]).max() < ROUNDING
    assert (np.abs(before[5:] - after[5:]).max(axis=1) > 0.01).all()


N_SEQUENCES, N_TOKENS = 40, 4


@pytest.mark.jit
@pytest.mark.parametrize(
    ("arch", "weight_format", "kv_type"),
    [
        *((arch, name, "f16") for arch, name in FORMATS_OF),
        *((arch, name, "q8_0") for arch in CLOSELY for name in ("f32", "mix", "mix_256")),
        *((arch, name, ("f16", "q8_0")[i % 3 == 0]) for i, (arch, name) in enumerate(IN_TURN)),
    ],
)
def test_compiled_logits_are_the_references(
    arch: str, weight_format: str, kv_type: str, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, weight_format=weight_format, biases=True, window=3)
    tokens = prompt(200, N_SEQUENCES * N_TOKENS)
    with loaded(path, context=16, n_sequences=N_SEQUENCES, kv_type=kv_type) as model:
        starts = range(0, len(tokens), N_TOKENS)
        parts = [(i, 0, tokens[at : at + N_TOKENS]) for i, at in enumerate(starts)]
        found = step(model, parts)
    rows = range(len(tokens))
    batch = (tokens, [i % N_TOKENS for i in rows], [i // N_TOKENS for i in rows], rows)
    rounded = load(path, kv_type=kv_type, activation="q8").forward(*batch)
    exact = load(path).forward(*batch)
    # See logit_errors: most sequences have no flip, and flips are few among roundings.
    assert np.median(relative_errors(found, rounded)) < noise(n_layers=2)
    assert relative_rms(found, rounded) < 0.5 * relative_rms(rounded, exact)


@pytest.mark.jit
@pytest.mark.parametrize("arch", [*CLOSELY, "gemma3", "gpt-oss"])
def test_a_compiled_prompt_in_a_quantized_model_strays_less_than_rounding_does(
    arch: str, tmp_path: Path
) -> None:
    """In one long sequence, flips reach nearly every row."""
    path = write_tiny(tmp_path / "m.gguf", arch, weight_format="mix_256", biases=True)
    tokens = prompt(200, 150)
    found = fed(path, tokens)
    rounded = logits(load(path, kv_type="f16", activation="q8"), tokens)
    exact = logits(load(path), tokens)
    assert relative_rms(found, rounded) < relative_rms(rounded, exact)
    assert relative_rms(found, exact) < 1.5 * relative_rms(rounded, exact)


@pytest.mark.jit
@pytest.mark.parametrize("arch", ARCHS)
def test_one_token_at_a_time_threads_and_pages_give_the_bytes_of_a_whole_prompt(
    arch: str, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, weight_format="mix", biases=True, window=5)
    tokens = prompt(200, 24)
    whole = fed(path, tokens, n_threads=1, context=32)
    assert np.isfinite(whole).all()
    singly = fed(path, tokens, n_threads=2, context=32, cache="paged", chunk=1)
    assert singly.tobytes() == whole.tobytes()
    assert fed(path, tokens, n_threads=2, context=32, chunk=9).tobytes() == whole.tobytes()
