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
    llama_perplexity: Path | None = None


def parts(setup: Setup) -> list[Part]:
    """Return the parts that can be measured, in the page's order."""
    threads = ("-t", str(setup.threads))
    found = []
    for model in setup.models:
        words = ("quantcli", "eval", str(model), "--ppl")
        found.append(part(f"half-{model.stem}", "perplexity", (*words, *threads)))
        words = (*words, "--protocol", "full")
        found.append(part(f"full-{model.stem}", "perplexity", (*words, *threads)))
    for model in setup.models if setup.llama_perplexity else ():
        words = ("scripts/bench_perplexity", "--llama-perplexity", str(setup.llama_perplexity))
        found.append(part(f"peer-{model.stem}", "peer", (*words, str(model), *threads)))
    return found
