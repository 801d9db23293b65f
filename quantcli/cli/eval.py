"""quantcli eval: how well models predict."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from quantcli.cli.options import Json, LoadOptions, OutputOptions, expand
from quantcli.errors import UsageError

if TYPE_CHECKING:
    from quantcli.cli.eval_run import Candidate, Outcome, Wanted
    from quantcli.cli.render import StatusLine


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The text and how it is cut into chunks."""

    text: Annotated[
        str | None,
        Option(
            "-f",
            "--text",
            "--file",
            metavar="FILE",
            help="Text to predict; by default State of the Union addresses that come along.",
            show_default=False,
        ),
    ] = None
    protocol: Annotated[
        str,
        Option(
            "--protocol",
            metavar="NAME",
            help="llama.cpp scores the second half of chunks of 512 tokens, full all of 2048.",
        ),
    ] = "llama.cpp"
    chunks: Annotated[
        int | None,
        Option("--chunks", min=1, metavar="N", help="Chunks to use.", show_default="all"),
    ] = None
    bos: Annotated[
        bool | None,
        Option(
            "--bos/--no-bos",
            help="Start every chunk with BOS if the model wants it; full does not by default.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class BaseOptions:
    """What models are compared with, and what is kept of it."""

    against: Annotated[
        str | None,
        Option(
            "--against",
            metavar="BASE",
            help="Compare with this model, or with a file that --logits has written.",
            show_default=False,
        ),
    ] = None
    logits: Annotated[
        Path | None,
        Option(
            "--logits",
            metavar="FILE",
            help="Keep the base's logits here and use them again; without, both models run.",
            show_default=False,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Option("--top-k", min=1, metavar="N", help="Logits that the file keeps a token. [256]"),
    ] = None
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="Write a page with charts.", show_default=False),
    ] = None
    force: Annotated[bool, Option("--force", help="Replace files that exist.")] = False

    def check(self) -> None:
        """Raise UsageError for options that do not go together, or a file in the way."""
        from quantcli.evaluate.logits_file import LogitsFile
        from quantcli.evaluate.output_file import check_free

        for name, value in (("--logits", self.logits), ("--html", self.html)):
            if value is not None and self.against is None:
                raise UsageError(f"{name} is about a comparison. Add --against BASE.")
        if self.top_k is not None and self.logits is None:
            raise UsageError("--top-k is about the file of logits. Add --logits FILE.")
        if self.html is not None:
            check_free(self.html, "--html", force=self.force)
        if self.logits is not None:
            check_free(self.logits, "--logits", force=True)
            if self.logits.exists() and not self.force:
                LogitsFile(self.logits).close()  # refuses what is none before anything slow


@expand
def command(
    models: Annotated[
        list[str], Argument(metavar="MODEL...", help="Names, hf.co/org/repo:QUANT, or GGUF files.")
    ],
    *,
    ppl: Annotated[
        bool, Option("--ppl", help="Measure perplexity; done if nothing else is asked for.")
    ] = False,
    given: TextOptions,
    base: BaseOptions,
    choices: Annotated[
        Path | None,
        Option(
            "--choices",
            metavar="FILE",
            help="Ask multiple-choice questions, JSONL in the style of HellaSwag or ARC.",
            show_default=False,
        ),
    ] = None,
    questions: Annotated[
        int | None,
        Option("--questions", min=1, metavar="N", help="Questions to use.", show_default="all"),
    ] = None,
    load: LoadOptions,
    output: OutputOptions,
    as_json: Json = False,
) -> None:
    """Measure perplexity, KL divergence or multiple-choice accuracy.

    --ctx is the length of a chunk. --lora is applied to every MODEL, not to BASE. Ctrl-C prints
    what was measured until then.
    """
    from quantcli.cli.render import StatusLine

    load.checked()
    base.check()
    if questions is not None and choices is None:
        raise UsageError("--questions is about multiple choice. Add --choices FILE.")
    needs_text = ppl or base.against is not None or choices is None
    wanted = _wanted(given, base, choices, questions, load, needs_text=needs_text)
    status = StatusLine(verbose=output.verbose, quiet=output.quiet)
    with _opened(models, base.against, load.lora, status) as (candidates, reference):
        _evaluate(candidates, reference, wanted, base, status, as_json=as_json)


def _wanted(
    given: TextOptions,
    base: BaseOptions,
    choices: Path | None,
    limit: int | None,
    load: LoadOptions,
    *,
    needs_text: bool,
) -> "Wanted":
    """Read the text and the questions."""
    from quantcli.cli.eval_run import Wanted
    from quantcli.evaluate.corpus import read_text
    from quantcli.evaluate.protocol import protocol
    from quantcli.evaluate.questions import read_questions

    return Wanted(
        text=read_text(given.text) if needs_text else None,
        how=protocol(given.protocol, load.ctx, given.bos),
        n_chunks=given.chunks,
        questions=[] if choices is None else read_questions(choices, limit),
        source="" if choices is None else choices.name,
        against=base.against is not None,
        logits=base.logits,
        k=base.top_k,
        force=base.force,
        load=replace(load, ctx=None),
    )


@contextmanager
def _opened(
    models: list[str], against: str | None, lora: list[str] | None, status: "StatusLine"
) -> "Iterator[tuple[list[Candidate], Candidate | Path | None]]":
    """Hold the models, open but not loaded, and what they are compared with."""
    from quantcli.cli.adapters import resolved

    adapters = resolved(lora, status, status.note)
    with ExitStack() as stack:
        candidates = [_open(name, stack, status, adapters) for name in models]
        names = [candidate.name for candidate in candidates]
        for candidate, name in zip(candidates, models, strict=True):
            if names.count(candidate.name) > 1:  # two files of one name
                candidate.name = name
        reference: Candidate | Path | None = None
        if against is not None:
            path = Path(against)
            reference = path if _is_logits(path) else _open(against, stack, status)
            _check_vocabularies(candidates, reference)
        yield candidates, reference


def _open(
    name: str, stack: "ExitStack", status: "StatusLine", adapters: Sequence[tuple[Path, float]] = ()
) -> "Candidate":
    """Open a model, downloaded first if need be, with adapters."""
    from quantcli.checkpoint.store import resolve
    from quantcli.cli.adapters import described
    from quantcli.cli.eval_run import Candidate
    from quantcli.runtime.adapters import open_adapted
    from quantcli.text import from_metadata

    path = resolve(name, progress=status, notify=status.note)
    checkpoint = stack.enter_context(open_adapted(path, adapters))
    status.clear()
    title = checkpoint.paths[0].stem + (f" + {described(adapters)}" if adapters else "")
    return Candidate(title, checkpoint, from_metadata(checkpoint.metadata))


def _is_logits(path: Path) -> bool:
    """Return whether a path is that of a file of logits."""
    from quantcli.evaluate.logits_file import MAGIC

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _check_vocabularies(candidates: "list[Candidate]", reference: "Candidate | Path") -> None:
    """Raise UsageError unless all models have one vocabulary. Logits files check their own."""
    first = candidates[0] if isinstance(reference, Path) else reference
    for candidate in candidates:
        if (candidate.n_vocab, candidate.vocabulary) != (first.n_vocab, first.vocabulary):
            raise UsageError(
                f"{candidate.name} has a vocabulary of {candidate.n_vocab} tokens and "
                f"{first.name} another of {first.n_vocab}: their probabilities are about other "
                "tokens. Compare models of one vocabulary."
            )


def _evaluate(
    candidates: "list[Candidate]",
    reference: "Candidate | Path | None",
    wanted: "Wanted",
    options: BaseOptions,
    status: "StatusLine",
    *,
    as_json: bool,
) -> None:
    """Run everything and show it; after Ctrl-C show what there is and raise it again."""
    from quantcli.cli.eval_run import Session
    from quantcli.cli.worker import Worker

    interrupted = False
    with Worker() as worker:
        session = Session(wanted, worker, status)
        outcomes = session.prepare(candidates)
        for outcome in outcomes:
            _remark(outcome, wanted, status)
        try:
            session.run(outcomes, reference)
        except KeyboardInterrupt:
            interrupted = True
    _show(outcomes, wanted, _base_name(reference), as_json=as_json)
    if interrupted:
        raise KeyboardInterrupt
    if options.html is not None:
        _write_page(options.html, outcomes, wanted, _base_name(reference), force=options.force)


def _remark(outcome: "Outcome", wanted: "Wanted", status: "StatusLine") -> None:
    """Warn of what makes a model do worse than it could."""
    from quantcli.cli.eval_tables import bos_note

    candidate = outcome.candidate
    trained = candidate.hyper.context
    if outcome.chunks and wanted.how.context > trained:
        status.warn(
            f"{candidate.name} was trained with {trained} tokens, and chunks are "
            f"{wanted.how.context}: expect little beyond. Use --ctx {trained}."
        )
    if outcome.chunks and (note := bos_note(outcome, wanted)):
        status.warn(note)


def _base_name(reference: "Candidate | Path | None") -> str:
    """Return what the base is called, "" without one."""
    if isinstance(reference, Path):
        from quantcli.evaluate.logits_file import LogitsFile

        with LogitsFile(reference) as file:
            return file.origin.model
    return reference.name if reference is not None else ""


def _show(outcomes: "list[Outcome]", wanted: "Wanted", base: str, *, as_json: bool) -> None:
    """Print the results."""
    from quantcli.cli import eval_tables
    from quantcli.cli.render import emit_json

    if as_json:
        emit_json(eval_tables.document(outcomes, wanted, base))
        return
    for line in eval_tables.lines(outcomes, wanted, base):
        print(line)


def _write_page(
    path: Path, outcomes: "list[Outcome]", wanted: "Wanted", base: str, *, force: bool
) -> None:
    from quantcli.cli.eval_tables import page
    from quantcli.evaluate.output_file import draft

    with draft(path, "--html", force=force) as file:
        file.write(page(outcomes, wanted, base).encode())
