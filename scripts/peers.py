"""Speed of two programs side by side: parse what they print, take medians, render a table.

Both print llama-bench's JSON: a list with one entry a test, which holds `n_prompt`, `n_gen` and
`avg_ts`, the tokens per second.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

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
        cells = [c.model, c.test, _spread(c.ours), _spread(c.theirs), f"{c.ratio:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
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
