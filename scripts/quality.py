"""The parts of docs/quality.md: which commands are run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from measured import Part, part


@dataclass(frozen=True, slots=True)
class Setup:
    """What this machine has to measure with."""

    models: tuple[Path, ...]
    threads: int
    llama_bin: Path | None = None
    llm_compressor: Path | None = None


def parts(setup: Setup) -> list[Part]:
    """Return the parts that can be measured, in the page's order."""
    threads = ("-t", str(setup.threads))
    found = []
    for model in setup.models:
        words = ("quantcli", "eval", str(model), "--ppl")
        found.append(part(f"half-{model.stem}", "perplexity", (*words, *threads)))
        words = (*words, "--protocol", "full")
        found.append(part(f"full-{model.stem}", "perplexity", (*words, *threads)))
    if setup.llama_bin:
        program = ("--llama-perplexity", str(setup.llama_bin / "llama-perplexity"))
        for model in setup.models:
            words = ("scripts/bench_perplexity", *program, str(model), *threads)
            found.append(part(f"peer-{model.stem}", "peer", words))
        found += _files(setup, ("--llama-bin", str(setup.llama_bin), *threads))
    if setup.llm_compressor:
        words = ("scripts/bench_int4", "tiny", "--llm-compressor", str(setup.llm_compressor))
        found.append(part("int4", "int4", (*words, *threads)))
    return found


def _files(setup: Setup, words: tuple[str, ...]) -> list[Part]:
    """Return the parts that compare files with llama-quantize's."""
    bench = "scripts/bench_quality"
    found = [
        part(f"files-{kind}", "files", (bench, "tiny", *words, "--types", kind))
        for kind in ("q4_0", "q3_k_m", "q4_k_m", "q5_k_m")
    ]
    more = ("--types", "q4_0", "--methods", "imatrix,gptq", "--chunks", "4")
    for model in setup.models:
        if not _is_exact(model):
            command = (bench, str(model), *words, *more, "--calib-tokens", "4096")
            found.append(part(f"rounded-{model.stem}", "rounded", command))
    for model in setup.models:
        if _is_exact(model):
            command = ("scripts/bench_plain", str(model), *words)
            found.append(part(f"plain-{model.stem}", "plain", command))
    return found


def _is_exact(model: Path) -> bool:
    """Return whether a file holds a model as it was trained, by its name."""
    return model.stem.lower().endswith(("bf16", "f16", "f32"))
