"""What a run has done: a document for programs, and a page for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod

from quantcli.evaluate import charts
from quantcli.evaluate.report import document as html_document
from quantcli.evaluate.report import fact_table
from quantcli.evaluate.report import table as html_table
from quantcli.quantize.estimate import short_name
from quantcli.quantize.recipe import layer_of
from quantcli.quantize.results import TensorResult
from quantcli.quantize.verify import Verification
from quantcli.runtime.memory import size

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True)
class Report:
    """A run that is over.

    model          what was quantized
    method         how: "plain", "awq + gptq"
    type           the mix
    calibration    what is known about the calibration, by name
    peak_nbytes    most memory held until the file was there, None if it cannot be told
    """

    model: str
    output: str
    method: str
    type: str
    calibration: Mapping[str, str]
    results: Sequence[TensorResult]
    source_nbytes: int
    seconds: float
    peak_nbytes: int | None
    verification: Verification | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the output's tensors."""
        return sum(r.nbytes for r in self.results)

    @property
    def n_weights(self) -> int:
        """Weights of the model."""
        return sum(prod(r.shape) for r in self.results)

    @property
    def bits_per_weight(self) -> float:
        """Bits that the output spends on a weight."""
        return 8 * self.nbytes / max(1, self.n_weights)


@dataclass(frozen=True, slots=True)
class Kind:
    """Tensors of one name in all layers.

    error, worst   mean relative output error of those that were encoded, and the largest
    worst_name     the tensor with it
    """

    name: str
    count: int
    formats: str
    nbytes: int
    n_weights: int
    error: float | None
    worst: float | None
    worst_name: str

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight."""
        return 8 * self.nbytes / max(1, self.n_weights)


def kinds(results: Sequence[TensorResult]) -> list[Kind]:
    """Return what became of each kind of tensor, the largest first."""
    groups: dict[str, list[TensorResult]] = {}
    for result in results:
        groups.setdefault(short_name(result.name), []).append(result)
    found = []
    for name, some in groups.items():
        counts: dict[str, int] = {}
        for result in some:
            counts[result.format] = counts.get(result.format, 0) + 1
        encoded = [(r.error, r.name) for r in some if r.error is not None]
        worst = max(encoded, default=(None, ""))
        found.append(
            Kind(
                name=name,
                count=len(some),
                formats=", ".join(f if len(counts) == 1 else f"{n} {f}" for f, n in counts.items()),
                nbytes=sum(r.nbytes for r in some),
                n_weights=sum(prod(r.shape) for r in some),
                error=sum(e for e, _ in encoded) / len(encoded) if encoded else None,
                worst=worst[0],
                worst_name=worst[1],
            )
        )
    return sorted(found, key=lambda kind: -kind.nbytes)


def document(report: Report) -> Json:
    """Return everything, for --json."""
    verification = report.verification
    return {
        "model": report.model,
        "output": report.output,
        "method": report.method,
        "type": report.type,
        "calibration": dict(report.calibration),
        "source_nbytes": report.source_nbytes,
        "nbytes": report.nbytes,
        "n_weights": report.n_weights,
        "bits_per_weight": report.bits_per_weight,
        "seconds": report.seconds,
        "peak_nbytes": report.peak_nbytes,
        "tensors": [
            {**asdict(r), "layer": layer_of(r.name), "bits_per_weight": r.bits_per_weight}
            for r in report.results
        ],
        "verification": None if verification is None else _verification(verification),
    }


def _verification(found: Verification) -> Json:
    divergence = found.divergence
    return {
        "text": found.text,
        "n_scored": found.n_scored,
        "perplexity": found.perplexity._asdict(),
        "base_perplexity": divergence.base_perplexity._asdict() if divergence else None,
        "kl": divergence.kl._asdict() if divergence else None,
        "same_top": divergence.same_top._asdict() if divergence else None,
        "sample": found.sample,
        "note": found.note,
    }


def page(report: Report) -> str:
    """Return the page: one HTML file that needs nothing else."""
    title = f"{report.model} as {report.type}"
    found = kinds(report.results)
    encoded = [kind for kind in found if kind.error is not None]
    points = [charts.Point(k.name, k.bits_per_weight, k.error or 0.0) for k in encoded]
    sections = [
        ("The file", fact_table(facts(report))),
        ("Kinds of tensors", html_table(kind_rows(found))),
        (
            "Size",
            charts.bars(
                [(k.name, k.nbytes) for k in found], "size by kind", lambda n: size(int(n))
            ),
        ),
    ]
    if points:
        sections += [
            (
                "Error by layer",
                charts.lines(
                    by_layer(report.results, "error"),
                    "layer",
                    "relative output error",
                    "error by layer and kind",
                )
                + f'<p class="note">{_ERROR_NOTE}</p>',
            ),
            (
                "Error against bits",
                charts.scatter(
                    points, "bits per weight", "relative output error", "error and bits by kind"
                ),
            ),
        ]
    sections.append(
        (
            "Bits by layer",
            charts.lines(
                by_layer(report.results, "bits_per_weight"),
                "layer",
                "bits per weight",
                "bits by layer and kind",
            ),
        )
    )
    notes = [(r.name, note) for r in report.results for note in r.notes]
    if notes:
        sections.append(("Remarks", html_table([("tensor", "remark"), *notes])))
    sections.append(("Tensors", html_table(_tensor_rows(report.results))))
    return html_document(title, sections)


_ERROR_NOTE = (
    "Energy of the difference in a matrix's outputs over that of the outputs, as far as the inputs "
    "are known: 0 is no loss, 1 is all of it."
)


def facts(report: Report) -> dict[str, str]:
    """Return what a run has come to, by name."""
    known = {
        "file": report.output,
        "method": report.method,
        "size": f"{size(report.nbytes)}, {report.bits_per_weight:.3f} bits per weight",
        "source": f"{size(report.source_nbytes)}, "
        f"{8 * report.source_nbytes / max(1, report.n_weights):.3f} bits per weight",
        "time": f"{report.seconds:.1f} s",
        **report.calibration,
    }
    if report.peak_nbytes is not None:
        known["peak memory"] = size(report.peak_nbytes)
    return known | verification_facts(report.verification)


def verification_facts(found: Verification | None) -> dict[str, str]:
    """Return what verifying has shown, by name."""
    if found is None:
        return {}
    known = {}
    perplexity = f"{found.perplexity.value:.3f} \u00b1 {found.perplexity.error:.3f}"
    if found.divergence is not None:
        base, kl, same = (
            found.divergence.base_perplexity,
            found.divergence.kl,
            found.divergence.same_top,
        )
        perplexity += f", source {base.value:.3f} \u00b1 {base.error:.3f}"
        known["KL to the source"] = f"{kl.value:.5f} \u00b1 {kl.error:.5f} nats"
        known["same top token"] = f"{100 * same.value:.1f} \u00b1 {100 * same.error:.1f}%"
    known["perplexity"] = perplexity
    known["measured on"] = f"{found.n_scored} tokens of {found.text}"
    if found.note:
        known["remark"] = found.note
    known["sample"] = found.sample
    return known


def kind_rows(found: Sequence[Kind]) -> list[tuple[str, ...]]:
    """Return kinds as a table, its head first."""
    head = ("kind", "tensors", "formats", "size", "bits per weight", "error", "largest", "where")
    rows = [
        (
            kind.name,
            str(kind.count),
            kind.formats,
            size(kind.nbytes),
            f"{kind.bits_per_weight:.3f}",
            "" if kind.error is None else f"{kind.error:.2e}",
            "" if kind.worst is None else f"{kind.worst:.2e}",
            kind.worst_name,
        )
        for kind in found
    ]
    return [head, *rows]


def by_layer(results: Sequence[TensorResult], what: str) -> list[charts.Line]:
    """Return a line for each kind of matrix: a number of its results, layer by layer."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        layer, value = layer_of(result.name), getattr(result, what)
        if layer is not None and value is not None and len(result.shape) > 1:
            lines.setdefault(short_name(result.name), []).append((float(layer), value))
    return [charts.Line(name, points) for name, points in sorted(lines.items())]


def _tensor_rows(results: Sequence[TensorResult]) -> list[tuple[str, ...]]:
    head = ("tensor", "shape", "from", "to", "bits per weight", "error", "search alone", "s")
    return [head, *map(_tensor_row, results)]


def _tensor_row(result: TensorResult) -> tuple[str, ...]:
    return (
        result.name,
        " x ".join(map(str, result.shape)),
        result.source,
        result.format,
        f"{result.bits_per_weight:.3f}",
        "" if result.error is None else f"{result.error:.3e}",
        "" if result.baseline is None else f"{result.baseline:.3e}",
        f"{result.seconds:.2f}",
    )
