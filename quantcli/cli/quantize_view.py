"""How `quantcli quantize` shows what it would do, and what it has done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from quantcli.cli.render import JsonValue, emit_json, pairs, table
from quantcli.quantize import estimate
from quantcli.quantize.fallback import LLAMA_CPP
from quantcli.quantize.job import Job
from quantcli.quantize.recipe import Choice
from quantcli.quantize.report import Report, document, facts, kind_rows, kinds
from quantcli.runtime.memory import size

_MANY_BITS = 0.02  # a size this much above what the type stands for is worth a remark


@dataclass(frozen=True)
class Plan:
    """What would be done, and what it would take."""

    job: Job
    output: str
    memory_nbytes: int
    available_nbytes: int
    seconds: float
    n_threads: int


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        emit_json(plan_document(plan))
        return
    for line in plan_lines(plan):
        print(line)


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines for people."""
    job = plan.job
    source = job.checkpoint
    rows = [
        (
            row.kind,
            " x ".join(map(str, row.shape)),
            str(row.count),
            row.source,
            row.format,
            f"{row.bits_per_weight:.3f}",
            size(row.nbytes),
            _because(row),
        )
        for row in estimate.table(job)
    ]
    heads = ("kind", "shape", "tensors", "from", "to", "bits", "size", "because")
    yield table(heads, rows, right="llrllrrl")
    yield ""
    yield pairs(
        (
            ("model", f"{source.paths[0].name}, {job.hyper.arch}, {job.n_weights / 1e6:.1f} M"),
            ("source", f"{size(source.nbytes)}, {_bits(source.nbytes, job):.3f} bits per weight"),
            ("output", f"{plan.output}, {size(job.nbytes)}"),
            ("bits per weight", f"{job.bits_per_weight:.3f}{_nominal(job)}"),
            ("method", job.settings.method),
            ("memory", f"{size(plan.memory_nbytes)} of {size(plan.available_nbytes)} available"),
            ("time", f"about {_duration(plan.seconds)} with {plan.n_threads} threads"),
        ),
        indent="",
    )
    yield from remarks(job)


def plan_document(plan: Plan) -> JsonValue:
    """Return a plan for --json."""
    job = plan.job
    return {
        "model": job.checkpoint.paths[0].name,
        "architecture": job.hyper.arch,
        "output": plan.output,
        "type": job.settings.recipe.mix.name,
        "method": job.settings.method,
        "n_weights": job.n_weights,
        "source_nbytes": job.checkpoint.nbytes,
        "nbytes": job.nbytes,
        "bits_per_weight": job.bits_per_weight,
        "nominal_bits_per_weight": estimate.nominal_bits(job),
        "memory_nbytes": plan.memory_nbytes,
        "available_nbytes": plan.available_nbytes,
        "seconds": plan.seconds,
        "n_threads": plan.n_threads,
        "kinds": [asdict(row) for row in estimate.table(job)],
        "tensors": [
            {
                "name": c.name,
                "shape": c.shape,
                "source": c.source.name,
                "format": c.format.name,
                "wanted": c.wanted,
                "reason": c.reason,
                "nbytes": c.nbytes,
            }
            for c in job.choices
        ],
        "remarks": list(remarks(job)),
    }


def remarks(job: Job) -> Iterator[str]:
    """Yield what a user should know before the work begins, a line each."""
    twice = [c for c in job.choices if c.loses_twice]
    if twice:
        names = ", ".join(sorted({c.source.name for c in twice}))
        yield (
            f"{len(twice)} tensors are rounded for the second time ({names}), as "
            "--allow-requantize says; quantizing the original loses less."
        )
    fallen = [c for c in job.choices if c.reason == "fallback"]
    if fallen:
        yield _fallback_remark(job, fallen)


def show_report(report: Report, *, as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        emit_json(document(report))
        return
    head, *rows = kind_rows(kinds(report.results))
    print(table(head, rows, right="lrlrrrrl"))
    print()
    print(pairs(facts(report).items(), indent=""))
    for result in report.results:
        for note in result.notes:
            print(f"{result.name}: {note}")


def _fallback_remark(job: Job, fallen: list[Choice]) -> str:
    """Return what becomes of rows that do not fit, and what llama-quantize would do."""
    widths = sorted({c.shape[-1] for c in fallen})
    ours = sorted({(c.wanted, c.format.name) for c in fallen})
    text = (
        f"{len(fallen)} of {len(job.choices)} tensors have rows of {_listed(widths)}, which are no "
        f"multiple of 256: {', '.join(f'{a} becomes {b}' for a, b in ours)}."
    )
    if job.settings.recipe.policy == "llama.cpp":
        return f"{text} --fallback size keeps the size that was asked for."
    theirs = sorted({(a, LLAMA_CPP.get(a, a)) for a, _ in ours})
    return (
        f"{text} llama-quantize takes {', '.join(f'{b} for {a}' for a, b in theirs)}, which is "
        "larger: --fallback llama.cpp."
    )


def _because(row: estimate.Row) -> str:
    if row.reason == "fallback":
        return f"{row.shape[-1]} is no multiple of 256 for {row.wanted}"
    return {"mix": "", "kept": "stays as it is", "override": "as asked"}[row.reason]


def _nominal(job: Job) -> str:
    nominal = estimate.nominal_bits(job)
    if abs(job.bits_per_weight - nominal) < _MANY_BITS * nominal:
        return ""
    return f" ({job.settings.recipe.mix.name} would be {nominal:.3f} if all rows fitted)"


def _bits(nbytes: int, job: Job) -> float:
    return 8 * nbytes / max(1, job.n_weights)


def _listed(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers)) if len(numbers) < 4 else f"{len(numbers)} lengths"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
