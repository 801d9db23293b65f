"""The parts of docs/performance.md: which commands are run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import peers
from measured import Part, part


@dataclass(frozen=True, slots=True)
class Setup:
    """What this machine has to measure with."""

    models: tuple[Path, ...]
    threads: int
    llama_bench: Path | None = None
    llama_bench_avx2: Path | None = None
    llama_server: Path | None = None
    llama_batched_bench: Path | None = None
    llama_quantize: Path | None = None


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
            found.append(part(f"{name}-{model.stem}", name, words, isa=isa))
    found += _formats(setup, threads)
    for model in setup.models:
        words = ("quantcli", "bench", str(model), "--full", "-r", "3", *threads)
        found.append(part(f"bench-{model.stem}", "bench", words))
    if setup.models:
        first = setup.models[0]
        sweep = ",".join(str(n) for n in _powers(setup.threads))
        words = ("quantcli", "bench", str(first), "-t", sweep, "-r", "3")
        found.append(part("threads", "threads", words))
        words = ("quantcli", "bench", str(first), "--kv-type", "f16,q8_0", "-d", "4096", "-r", "3")
        found.append(part("kv", "kv", (*words, *threads)))
        found += _serving(setup, first, threads)
        found.append(part("drafts", "drafts", ("scripts/bench_speculation", str(first), *threads)))
        words = ("scripts/bench_speculation", str(first), "--f32", *threads)
        found.append(part("drafts-model", "draft_model", words))
        found.append(part("pages", "pages", ("scripts/bench_kv_paging",)))
        found.append(part("start", "start", ("scripts/bench_start", str(first), *threads)))
    words = ("scripts/kernel_report", "--random", "q4_0", *threads)
    found.append(part("kernels-random", "kernels", words))
    for model in setup.models:
        words = ("scripts/kernel_report", str(model), *threads)
        found.append(part(f"kernels-{model.stem}", "kernels", words))
    if setup.llama_quantize is not None:
        found += _quantize(setup, (*threads, "--llama-quantize", str(setup.llama_quantize)))
    return found


def _quantize(setup: Setup, words: tuple[str, ...]) -> list[Part]:
    """Return the parts that measure quantizing: encoders, then whole runs of the first model."""
    encoders = ("scripts/bench_encoders", *words)
    fast = "q4_0,q4_1,q5_0,q5_1,q8_0,q3_k,q6_k,tq1_0,tq2_0"
    slow = "q2_k,q4_k,q5_k,iq4_nl,iq4_xs"
    found = [
        part("encoders", "encoders", (*encoders, "--types", fast)),
        part("encoders-slow", "encoders", (*encoders, "--types", slow, "--rounds", "1")),
        part("searches", "searches", (*encoders, "--statistics", "--rounds", "1")),
    ]
    if setup.models:
        run = ("scripts/bench_quantize", str(setup.models[0]), "--types", "q4_k_m", "--rounds", "1")
        for methods in (("calib",), ("gptq",), ("awq",)):
            peer = words if methods == ("calib",) else words[:2]
            command = (*run, "--warm", "--methods", *methods, *peer)
            found.append(part(f"quantize-{methods[0]}", "quantize", command))
    return found


def _formats(setup: Setup, threads: tuple[str, ...]) -> list[Part]:
    """Return a part a format and instruction set; all of one set are shown as one command."""
    found = []
    for name, isa, path in (
        ("formats", "", setup.llama_bench),
        ("formats_avx2", "avx2", setup.llama_bench_avx2),
    ):
        words = ("scripts/bench_formats", "--llama-bench", str(path), *threads)
        shown = part(name, name, words, isa=isa).shown
        for kind in peers.FORMATS if path is not None else ():
            one = part(f"{name}-{kind}", name, (*words, "--formats", kind), isa=isa)
            found.append(replace(one, shown=shown))
    return found


def _serving(setup: Setup, model: Path, threads: tuple[str, ...]) -> list[Part]:
    """Return the parts that measure the server, next to llama.cpp's where it is given."""
    words = ["scripts/bench_serving", str(model)]
    if setup.llama_server is not None:
        words += ["--llama-server", str(setup.llama_server)]
    if setup.llama_batched_bench is not None:
        words += ["--llama-batched-bench", str(setup.llama_batched_bench)]
    return [
        part(f"serving-{model.stem}", "serving", (*words, *threads)),
        part("serving-billion", "serving", (*words, *threads, "--billion")),
    ]


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most`."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*powers, most]
