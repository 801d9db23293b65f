"""How `quantcli quantize` shows what it would do, and what it has done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from quantcli.cli.render import JsonValue, emit_json, pairs, table
from quantcli.quantize import estimate
from quantcli.quantize.bpw import nominal_bits
from quantcli.quantize.fallback import fits
from quantcli.quantize.job import Job
from quantcli.quantize.recipe import Choice, Facts, assign
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
            _because(row, job),
        )
        for row in estimate.table(job)
    ]
    heads = ("kind", "shape", "tensors", "from", "to", "bits", "size", "because")
    yield table(heads, rows, right="llrllrrl")
    yield ""
    yield pairs(
        (
            (
                "model",
                f"{source.paths[0].name}, {job.hyper.arch}, {job.n_weights / 1e6:.1f} M weights",
            ),
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
        "nominal_bits_per_weight": nominal_bits(job),
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
    odd = [c for c in job.choices if not fits(c.wanted, c.shape[-1])]
    if odd and not job.settings.recipe.pure and job.settings.recipe.bits is None:
        yield _width_remark(job, odd)


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


def _width_remark(job: Job, odd: list[Choice]) -> str:
    """Say what rows that fit no block of 256 change, and what llama-quantize makes of them."""
    widths = sorted({c.shape[-1] for c in odd})
    name = job.settings.recipe.mix.name
    count = f"{len(odd)} of {len(job.choices)} tensors"
    text = f"rows of {_listed(widths)}, in {count}, fit no block"
    theirs = assign(
        job.checkpoint.tensors,
        Facts.from_metadata(job.checkpoint.metadata),
        replace(job.settings.recipe, exact=None, policy="llama.cpp"),
        has_imatrix=job.settings.has_statistics,
    )
    llama_cpp = _bits(sum(c.nbytes for c in theirs.values()), job)
    if job.settings.recipe.policy == "llama.cpp":
        return (
            f"{text} of 256: {name} grows from {nominal_bits(job):.3f} to {llama_cpp:.3f} bits per "
            "weight. --fallback size finds the best mix of formats of the size it stands for."
        )
    if any(c.reason == "size" for c in job.choices):
        return (
            f"{text} of 256: formats were chosen for the size that was asked for. llama-quantize "
            f"makes {name} {llama_cpp:.3f} bits per weight, as --fallback llama.cpp does."
        )
    return (
        f"{text} small enough for {name}, which stands for {nominal_bits(job):.3f} bits per "
        f"weight: it is {job.bits_per_weight:.3f}."
    )


def _because(row: estimate.Row, job: Job) -> str:
    width = row.shape[-1]
    if row.reason == "size" and job.settings.recipe.bits is not None:
        return "for the size"
    if row.wanted and not fits(row.wanted, width):
        return f"{width} is no multiple of 256 for {row.wanted}"
    if row.wanted:
        return f"for the size, {row.wanted} in the type"
    return {"kept": "stays as it is", "override": "as asked"}.get(row.reason, "")


def _nominal(job: Job) -> str:
    nominal = nominal_bits(job)
    if (
        job.settings.recipe.exact is not None
        or abs(job.bits_per_weight - nominal) < _MANY_BITS * nominal
    ):
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
