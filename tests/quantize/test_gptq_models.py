"""Whole models through AWQ and GPTQ: files that run, and answer closer to the original."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from loaded_model import fed
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.formats import F32
from quantcli.quantize.calibrate import Calibration
from quantcli.quantize.method import method
from quantcli.quantize.mixes import mix
from quantcli.quantize.pipeline import run
from quantcli.quantize.recipe import Recipe
from quantcli.quantize.results import TensorResult

pytestmark = pytest.mark.jit

_RANDOM = np.random.default_rng(0)
CHUNKS = tuple(tuple(_RANDOM.integers(0, 60, 64).tolist()) for _ in range(10))
PROMPT = _RANDOM.integers(0, 60, 64).tolist()


def quantized(
    source: Path, path: Path, names: Sequence[str], type_name: str = "q4_0", n_threads: int = 2
) -> list[TensorResult]:
    """Quantize a file by some methods, with tokens of its own to learn from."""
    with open_checkpoint(source) as checkpoint:
        chosen = method(
            checkpoint,
            Recipe(mix(type_name)),
            names=names,
            calibration=Calibration("random tokens", CHUNKS),
            n_threads=n_threads,
        )
        from quantcli.quantize.job import prepare

        return run(prepare(checkpoint, chosen.settings), path, n_threads=n_threads)


def divergence(base: F32, other: F32) -> float:
    """Return the mean KL divergence of two models' rows of logits."""

    def log_softmax(x: F32) -> np.ndarray:
        x = np.float64(x) - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = log_softmax(base), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_each_method_comes_closer_than_the_one_before(arch: str, tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "m.gguf", arch, weight_format="bf16", n_layers=3)
    base = fed(source, PROMPT)
    kl = {}
    for names in ((), ("gptq",), ("awq", "gptq")):
        path = tmp_path / f"{'-'.join(names)}.gguf"
        results = quantized(source, path, names)
        kl[names] = divergence(base, fed(path, PROMPT))
        for result in results:
            if result.baseline is not None and result.error is not None:
                assert result.error <= result.baseline * (1 + 1e-6), result.name
    assert kl["gptq",] < 0.7 * kl[()]
    assert kl["awq", "gptq"] < 0.7 * kl[()]


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen2moe", "gptneox", "phi3"])
def test_experts_fused_and_parallel_layers_go_through(arch: str, tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "m.gguf", arch, weight_format="bf16")
    results = quantized(source, tmp_path / "q.gguf", ("awq", "gptq"))
    with open_checkpoint(tmp_path / "q.gguf") as checkpoint:
        formats = {name: info.format.name for name, info in checkpoint.tensors.items()}
    changed = [r for r in results if formats[r.name] in ("q4_0", "q4_1")]
    assert len(changed) >= 8
    assert all(r.error is not None for r in changed)
    base, other = fed(source, PROMPT), fed(tmp_path / "q.gguf", PROMPT)
    assert divergence(base, other) < 0.3
    notes = " ".join(note for r in results for note in r.notes)
    if arch == "qwen3moe":
        assert "read by more than matrices" in notes


def test_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "m.gguf", "llama", weight_format="bf16")
    files = []
    for n_threads in (1, 3):
        path = tmp_path / f"{n_threads}.gguf"
        quantized(source, path, ("gptq",), n_threads=n_threads)
        files.append(path.read_bytes())
    assert files[0] == files[1]
