"""The parts of docs/performance.md: which commands are run, and how their output becomes the page.

A part is one command. What it printed is kept as JSON, with the machine and the version, so that
parts can be measured at different times and the page be made from all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import peers

Record = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Part:
    """One command.

    name      what it is called on the command line
    section   the section of the page that it belongs to
    command   its words; the first is a script or "quantcli"
    shown     the same, as readers see it: without this machine's paths
    isa       what QUANTCLI_ISA is set to, "" for the best
    """

    name: str
    section: str
    command: tuple[str, ...]
    shown: str
    isa: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """What this machine has to measure with."""

    models: tuple[Path, ...]
    threads: int
    llama_bench: Path | None = None
    llama_bench_avx2: Path | None = None


def parts(setup: Setup) -> list[Part]:
    """Return the parts that can be measured, in the page's order."""
    threads = ("-t", str(setup.threads))
    found = []
    for name, isa, path in (
        ("peers", "", setup.llama_bench),
        ("avx2", "avx2", setup.llama_bench_avx2),
    ):
        for model in setup.models if path is not None else ():
            words = ("scripts/bench_peers", "--llama-bench", str(path), str(model), *threads)
            found.append(_part(f"{name}-{model.stem}", name, words, isa=isa))
    for model in setup.models:
        words = ("quantcli", "bench", str(model), "--full", "-r", "3", *threads)
        found.append(_part(f"bench-{model.stem}", "bench", words))
    if setup.models:
        first = setup.models[0]
        sweep = ",".join(str(n) for n in _powers(setup.threads))
        words = ("quantcli", "bench", str(first), "-t", sweep, "-r", "3")
        found.append(_part("threads", "threads", words))
        words = ("quantcli", "bench", str(first), "--kv-type", "f16,q8_0", "-d", "4096", "-r", "3")
        found.append(_part("kv", "kv", (*words, *threads)))
        found.append(_part("start", "start", ("scripts/bench_start", str(first), *threads)))
    words = ("scripts/kernel_report", "--random", "q4_0", *threads)
    found.append(_part("kernels-random", "kernels", words))
    for model in setup.models:
        words = ("scripts/kernel_report", str(model), *threads)
        found.append(_part(f"kernels-{model.stem}", "kernels", words))
    return found


def _part(name: str, section: str, words: tuple[str, ...], isa: str = "") -> Part:
    shown = " ".join(Path(word).name if "/" in word and i else word for i, word in enumerate(words))
    return Part(name, section, words, f"QUANTCLI_ISA={isa} {shown}" if isa else shown, isa)


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most`."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*powers, most]


def chosen(every: Sequence[Part], words: Sequence[str]) -> list[Part]:
    """Return the parts that words mean: a part's name, or a section for all of its parts.

    Raises ValueError for a word that means none.
    """
    for word in words:
        if not any(word in (part.name, part.section) for part in every):
            names = ", ".join(part.name for part in every)
            raise ValueError(f"no part {word!r}; there are {names}")
    return [part for part in every if not words or {part.name, part.section} & set(words)]


def record(part: Part, output: str, *, date: str, revision: str, peer: str = "") -> Record:
    """Return what is kept of a part that was measured."""
    return {
        "part": part.name,
        "section": part.section,
        "command": part.shown,
        "date": date,
        "quantcli": revision,
        "peer": peer,
        "cpu": peers.cpu(),
        "output": output,
    }


def records(folder: Path) -> dict[str, Record]:
    """Return everything that was kept in a folder, by part."""
    found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.json"))]
    return {kept["part"]: kept for kept in found}


def tables(output: str) -> str:
    """Return a program's output without the lines that repeat the command and the processor."""
    kept = []
    for line in output.splitlines():
        if line.startswith(("    scripts/", "- cpu:", "- quantcli:", "- llama.cpp:", "- python:")):
            continue
        kept.append(re.sub(r"; cpu: \{.*\}$", "", line).rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def render(template: str, kept: Mapping[str, Record]) -> str:
    """Return the page: a line `<!-- parts: SECTION -->` becomes what was measured for it."""

    def fill(match: re.Match[str]) -> str:
        blocks = [_block(r) for r in kept.values() if r["section"] == match[1]]
        missing = f"Not measured on this machine; `scripts/make_performance_docs {match[1]}` does."
        return "\n\n".join(blocks) or missing

    return re.sub(r"<!-- parts: (\w+) -->", fill, template).rstrip() + "\n"


def _block(kept: Record) -> str:
    """Return one part's command, where and when it ran, and its tables."""
    cpu = kept["cpu"]
    assert isinstance(cpu, Mapping)
    where = f"{cpu['model']}, {cpu['n_cores']} logical cores ({', '.join(cpu['flags'])})"
    peer = f", {kept['peer']}" if kept.get("peer") else ""
    note = f"{kept['date']}, quantcli {kept['quantcli']}{peer}, {where}, {cpu['system']}"
    return f"    {kept['command']}\n\n{note}\n\n{tables(str(kept['output']))}"
