"""Speed of two programs side by side: run them in turns, parse what they print, render a table.

Both print llama-bench's JSON: a list with one entry a test, which holds `n_prompt`, `n_gen` and
`avg_ts`, the tokens per second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from environment import ROOT, interpreter

# CPU features that decide which kernels run, as /proc/cpuinfo spells them.
RELEVANT_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
)

# Weight formats as bench_formats lists them: floats, plain blocks, k-quants, 4 bits with uneven
# levels, then those whose codebooks quantcli turns into nibbles when it loads them.
FORMATS = (
    *("f32", "f16", "bf16"),
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "nvfp4"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "tq1_0", "tq2_0"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens per second of one test of one model, one value a round."""

    model: str
    test: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Our median over theirs."""
        return median(self.ours) / median(self.theirs)


def add_arguments(
    parser: argparse.ArgumentParser, *, n_prompt: int, n_gen: int, rounds: int, repetitions: int
) -> None:
    """Add the options that say what is measured, with these defaults."""

    def add(*names: str, default: int, what: str) -> None:
        parser.add_argument(*names, type=int, default=default, help=f"{what} ({default})")

    parser.add_argument("--llama-bench", required=True, type=Path, help="llama.cpp's llama-bench")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round here")
    add("--rounds", default=rounds, what="runs of each program")
    add("-p", "--n-prompt", default=n_prompt, what="prompt tokens")
    add("-n", "--n-gen", default=n_gen, what="generated tokens")
    add("-t", "--threads", default=2, what="threads of each program")
    add("-r", "--repetitions", default=repetitions, what="per test and run")


def shared_arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments that both programs understand alike."""
    numbers = {
        "-p": options.n_prompt,
        "-n": options.n_gen,
        "-t": options.threads,
        "-r": options.repetitions,
    }
    return [str(part) for pair in numbers.items() for part in pair]


def take_turns(name: str, model: Path, options: argparse.Namespace) -> list[Comparison]:
    """Measure a model with both programs in turns; one comparison a test."""
    arguments = [*shared_arguments(options), "-o", "json"]
    ours, theirs = [], []
    for number in range(1, options.rounds + 1):
        print(f"{name}: round {number} of {options.rounds}", file=sys.stderr, flush=True)
        ours.append(measure([interpreter(), "-m", "quantcli", "bench", str(model), *arguments]))
        theirs.append(measure([str(options.llama_bench), "-m", str(model), *arguments]))
    return compare(name, ours, theirs)


def measure(command: Sequence[str]) -> dict[str, float]:
    """Run a program once and return its tokens per second by test."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    return parse(done.stdout)


def parse(output: str) -> dict[str, float]:
    """Return tokens per second by test name ("pp512", "tg128") from a program's JSON.

    Raises ValueError, with the start of what was printed, if it is not such JSON.
    """
    try:
        entries = json.loads(output)
        return {test_name(entry): float(entry["avg_ts"]) for entry in entries}
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"no benchmark JSON, but {output[:200]!r} ({e!r})") from e


def test_name(entry: Mapping[str, int]) -> str:
    """Return llama-bench's short name of a test: pp for the prompt, tg for generation, @d depth.

    Ours also says x4 for four sequences at once.
    """
    n_prompt, n_gen, depth = entry["n_prompt"], entry["n_gen"], entry.get("n_depth", 0)
    name = "+".join([f"pp{n_prompt}"] * bool(n_prompt) + [f"tg{n_gen}"] * bool(n_gen))
    if entry.get("n_sequences", 1) > 1:
        name += f" x{entry['n_sequences']}"
    return f"{name} @ d{depth}" if depth else name


def compare(
    model: str, ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> list[Comparison]:
    """Return one comparison a test that both measured in every round."""
    tests = [t for t in ours[0] if all(t in run for run in [*ours, *theirs])]
    return [
        Comparison(model, t, tuple(run[t] for run in ours), tuple(run[t] for run in theirs))
        for t in tests
    ]


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Return the table: medians, in brackets the lowest and highest round, and their ratio."""
    lines = [
        "| model | test | quantcli tok/s | llama.cpp tok/s | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for c in comparisons:
        cells = [c.model, c.test, spread(c.ours), spread(c.theirs), f"{c.ratio:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return the median, and in brackets the lowest and highest."""
    return f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def as_json(comparisons: Sequence[Comparison], setting: Mapping[str, object]) -> str:
    """Return everything as JSON: the setting, every round, and the ratios."""
    rows = [{**asdict(c), "ratio": c.ratio} for c in comparisons]
    return json.dumps({**setting, "results": rows}, indent=2)


def cpu() -> dict[str, object]:
    """Describe the processor: its model, usable cores, and the features that matter here."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    return {**parse_cpuinfo(text), "n_cores": usable_cores(), "system": platform.platform()}


def parse_cpuinfo(text: str) -> dict[str, object]:
    """Return the model and the relevant flags from the text of /proc/cpuinfo."""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    return {
        "model": name.group(1).strip() if name else platform.processor() or platform.machine(),
        "flags": [flag for flag in RELEVANT_FLAGS if flag in present],
    }


def usable_cores() -> int:
    """Return the number of logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
