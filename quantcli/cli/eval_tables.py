"""How the results of `quantcli eval` are shown: tables, JSON, and the page of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from quantcli.cli.eval_run import Candidate, Outcome, Wanted
from quantcli.cli.render import JsonValue, table
from quantcli.evaluate import divergence, report
from quantcli.evaluate.estimates import Estimate
from quantcli.evaluate.protocol import FULL
from quantcli.runtime.memory import size

if TYPE_CHECKING:
    from quantcli.evaluate.divergence import Divergence

PM = "\u00b1"


def lines(outcomes: Sequence[Outcome], wanted: Wanted, base: str) -> Iterator[str]:
    """Yield what to print: a table for each kind of measurement, and what it is about.

    base   the name of what models are compared with, or ""
    """
    shown = [o for o in outcomes if o.nlls]
    if shown:
        yield table(_PPL_HEADS, map(_ppl_row, shown), right="lrrrr")
    if any(o.positions for o in outcomes):
        head, *rows = divergence_rows(outcomes)
        yield table(head, rows, right="l" + "r" * len(rows[0]))
    asked = [o for o in outcomes if o.choices]
    if asked:
        yield table(_CHOICE_HEADS, map(_choice_row, asked), right="lrrrr")
    for name, value in facts(outcomes, wanted, base).items():
        yield f"{name}: {value}"
    for outcome in outcomes:
        if not outcome.is_complete:
            yield _unfinished(outcome)


_PPL_HEADS = ("model", "size", "bits/weight", "perplexity", "bits/byte")


def _ppl_row(outcome: Outcome) -> tuple[str, ...]:
    found = outcome.perplexity()
    assert found is not None
    bits = "" if found.bits_per_byte is None else f"{found.bits_per_byte:.4f}"
    return (*_model_cells(outcome.candidate), _estimate(found.value, 4), bits)


_CHOICE_HEADS = ("model", "size", "bits/weight", "acc, %", "acc_norm, %")


def _choice_row(outcome: Outcome) -> tuple[str, ...]:
    found = outcome.accuracy()
    assert found is not None
    return (*_model_cells(outcome.candidate), _percent(found.acc), _percent(found.acc_norm))


def _model_cells(candidate: Candidate) -> tuple[str, str, str]:
    return candidate.name, size(candidate.checkpoint.nbytes), f"{candidate.bits_per_weight:.3f}"


def divergence_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return a table with a column for each model that was compared, its head first."""
    columns = [["", "size", "bits per weight", *_METRICS]]
    for outcome in outcomes:
        found = outcome.divergence()
        if found is not None:
            columns.append([*_model_cells(outcome.candidate), *_metrics(found)])
    return [list(row) for row in zip(*columns, strict=True)]


_METRICS = (
    "KL divergence, mean",
    "median",
    *(f"{p:g}%" for p in divergence.PERCENTILES),
    "max",
    "same top token, %",
    "RMS of change in p, %",
    "mean change in p, %",
    "perplexity",
    "perplexity of base",
    "ratio of perplexities",
    "ln of ratio",
)


def _metrics(found: Divergence) -> list[str]:
    bound = "" if found.is_exact else ">= "
    kl = (found.kl_median, *found.kl_percentiles.values(), found.kl_max)
    return [
        f"{bound}{_estimate(found.kl, 6)}",
        *(f"{value:.6f}" for value in kl),
        _percent(found.same_top),
        _percent(found.delta_p_rms),
        _percent(found.delta_p),
        _estimate(found.perplexity, 4),
        _estimate(found.base_perplexity, 4),
        _estimate(found.ratio, 5),
        _estimate(found.log_ratio, 5),
    ]


def _estimate(found: Estimate, digits: int) -> str:
    return f"{found.value:.{digits}f} {PM} {found.error:.{digits}f}"


def _percent(found: Estimate) -> str:
    return f"{100 * found.value:.3f} {PM} {100 * found.error:.3f}"


def facts(outcomes: Sequence[Outcome], wanted: Wanted, base: str) -> dict[str, str]:
    """Return what was measured on and how, by name."""
    known: dict[str, str] = {}
    first = outcomes[0]
    if base:
        known["base"] = base
    if wanted.text is not None:
        n_scored = sum(len(chunk.targets) for chunk in first.chunks)
        known["text"] = wanted.text.title
        known["protocol"] = (
            f"{wanted.how.name}, {len(first.chunks)} chunks of {wanted.how.context} tokens, "
            f"{n_scored} scored"
        )
    found = first.divergence()
    if found is not None and not found.is_exact:
        known["exactness"] = (
            "KL from a file is a lower bound: the tokens it does not list, "
            f"{100 * found.rest:.2g}% of the base's probability, count as one"
        )
    if wanted.questions:
        accuracy = first.accuracy()
        guessed = f", {100 * accuracy.chance:.1f}% by guessing" if accuracy else ""
        known["questions"] = f"{len(wanted.questions)} of {wanted.source}{guessed}"
    return known


def _unfinished(outcome: Outcome) -> str:
    """Say how far an interrupted evaluation got."""
    parts = []
    if outcome.chunks:
        parts.append(f"{outcome.n_done} of {len(outcome.chunks)} chunks")
    if outcome.tasks:
        parts.append(f"{len(outcome.choices)} of {len(outcome.tasks)} questions")
    return f"{outcome.candidate.name}: interrupted after {' and '.join(parts)}"


def document(outcomes: Sequence[Outcome], wanted: Wanted, base: str) -> JsonValue:
    """Return everything, for --json."""
    from quantcli import __version__
    from quantcli.kernels.isa import select

    text = wanted.text
    how = asdict(wanted.how) | {"first_row": wanted.how.first_row, "n_scored": wanted.how.n_scored}
    return {
        "quantcli": __version__,
        "settings": {
            "backend": wanted.load.chosen_backend(),
            "instruction_set": select().name,
            "kv_type": wanted.load.chosen_kv_type(),
        },
        "text": None if text is None else {"name": text.name, "sha256": text.sha256},
        "protocol": None if text is None else how,
        "base": base or None,
        "questions": wanted.source if wanted.questions else None,
        "models": [_model_document(outcome) for outcome in outcomes],
    }


def _model_document(outcome: Outcome) -> JsonValue:
    checkpoint = outcome.candidate.checkpoint
    results = {
        "perplexity": outcome.perplexity(),
        "divergence": outcome.divergence(),
        "multiple_choice": outcome.accuracy(),
    }
    return {
        "name": outcome.candidate.name,
        "file": checkpoint.paths[0].name,
        "nbytes": checkpoint.nbytes,
        "n_params": checkpoint.n_params,
        "bits_per_weight": outcome.candidate.bits_per_weight,
        "n_chunks": len(outcome.chunks),
        "n_chunks_done": outcome.n_done,
        "n_questions": len(outcome.tasks),
        "is_complete": outcome.is_complete,
        **{
            name: None if found is None else _json(asdict(found)) for name, found in results.items()
        },
    }


def _json(value: object) -> JsonValue:
    """Return a value with estimates as objects of value and error."""
    if isinstance(value, Estimate):
        return {"value": value.value, "error": value.error}
    if isinstance(value, dict):
        return {name: _json(inner) for name, inner in value.items()}
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def page(outcomes: Sequence[Outcome], wanted: Wanted, base: str) -> str:
    """Return the page of HTML about models that were compared."""
    entries = []
    for outcome in outcomes:
        found = outcome.divergence()
        assert found is not None
        positions = divergence.Positions.join(outcome.positions)
        candidate = outcome.candidate
        entries.append(report.Entry(candidate.name, candidate.bits_per_weight, found, positions))
    return report.page(
        entries,
        base=base,
        rows=divergence_rows(outcomes),
        facts=facts(outcomes, wanted, base),
        n_scored=wanted.how.n_scored,
    )


def bos_note(outcome: Outcome, wanted: Wanted) -> str:
    """Return a remark on a model that may do badly without BOS, or ""."""
    if wanted.how.name != FULL or wanted.how.replaces or not outcome.candidate.tokenizer.add_bos:
        return ""
    return (
        f"{outcome.candidate.name} wants BOS at the start of every text, and by the protocol only "
        "the first chunk has it. --bos gives it to every chunk."
    )
