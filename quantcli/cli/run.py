"""quantcli run: one answer on standard output, or a chat on a terminal."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.constraint import ConstraintOptions
from quantcli.cli.options import (
    Json,
    LoadOptions,
    ModelArgument,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    SamplingOptions,
    expand,
)
from quantcli.cli.speculation import SpeculationOptions
from quantcli.cli.templating import TemplateOptions
from quantcli.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from quantcli.cli.generation import Answer, Loaded
    from quantcli.cli.render import JsonValue, StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.engine.request import GrammarSpec, Request


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Many prompts at once."""

    output: Annotated[
        str | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Answer every line of the JSONL file -f, in JSONL. Run again to go on.",
            show_default=False,
        ),
    ] = None
    parallel: Annotated[
        int,
        Option("--parallel", "-np", min=1, max=256, metavar="N", help="With -o, answers at once."),
    ] = 8
    force: Annotated[bool, Option("--force", help="With -o, write over what is there.")] = False


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    given: PromptOptions,
    templating: TemplateOptions,
    many: BatchOptions,
    sampling: SamplingOptions,
    constraint: ConstraintOptions,
    speculation: SpeculationOptions,
    load: LoadOptions,
    output: OutputOptions,
    as_json: Json = False,
) -> None:
    """Generate text from a prompt, or chat.

    The prompt comes from -p, -f or standard input; on a terminal without one a chat opens. The
    answer alone goes to standard output, everything else to standard error. With -o every line of
    the JSONL file -f is a prompt, and all are answered together.
    """
    from quantcli.cli.prompt import checked_text
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker

    name = named.choose(model)
    load.checked()
    speculation.checked()
    sampling.params()
    templating.names()
    grammar = constraint.spec()
    checked_text(given.system or "", "the system message")
    status = StatusLine(verbose=output.verbose, quiet=output.quiet)
    asked = _Asked(name, given, templating, sampling, load, speculation, grammar)
    with Worker() as worker:
        if many.output is not None:
            _answer_many(asked, many, worker, status, as_json=as_json)
        else:
            _answer_one(asked, worker, status, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a command line asks for."""

    name: str
    given: PromptOptions
    templating: TemplateOptions
    sampling: SamplingOptions
    load: LoadOptions
    speculation: SpeculationOptions
    grammar: "GrammarSpec | None"

    def opened(
        self, worker: "Worker", status: "StatusLine", n_parallel: int = 1
    ) -> "AbstractContextManager[Loaded]":
        """Hold the model that is asked for, loaded."""
        from functools import partial

        from quantcli.cli.generation import opened

        choose = partial(self.templating.template, is_needed=self.given.chat is True)
        return opened(self.name, self.load, worker, status, self.speculation, n_parallel, choose)


def _answer_one(asked: _Asked, worker: "Worker", status: "StatusLine", *, as_json: bool) -> None:
    """Answer the prompt, or chat where there is none."""
    from quantcli.cli import generation
    from quantcli.cli.chat import converse
    from quantcli.cli.prompt import read_prompt

    given, sampling = asked.given, asked.sampling
    prompt = read_prompt(given.prompt, given.file)
    if prompt is None:
        _require_terminal(as_json=as_json)
        if asked.grammar is not None:
            raise UsageError("a grammar is for one answer. Add a prompt with -p or -f.")
    with asked.opened(worker, status) as loaded:
        if prompt is None:
            converse(loaded, worker, status, given, sampling)
            return
        if given.chat is None and loaded.template is None:
            status.note(
                f"{asked.name} has no chat template: it continues the text, as --no-chat. "
                "--chat-template NAME gives it one."
            )
        request = _request(loaded, prompt, given, sampling, asked.grammar)
        _answer(generation.Answer(loaded.engine, request, worker), loaded, status, as_json)


def _answer_many(
    asked: _Asked, many: BatchOptions, worker: "Worker", status: "StatusLine", *, as_json: bool
) -> None:
    """Answer every line of a file."""
    from quantcli.cli.batch import answer_all, open_batch

    given, sampling = asked.given, asked.sampling
    if given.file is None or given.file == "-" or given.prompt is not None or as_json:
        raise UsageError(
            "-o needs the prompts in a JSONL file, -f FILE, and neither -p nor --json."
        )
    assert many.output is not None
    settings = {
        "model": asked.name,
        "options": {**asdict(sampling), **asdict(given), "ctx": asked.load.ctx}
        | {name: value for name, value in asdict(asked.templating).items() if value is not None}
        | ({"lora": asked.load.lora} if asked.load.lora else {}),
        "grammar": asdict(asked.grammar) if asked.grammar else None,
    }
    batch = open_batch(
        given.file, many.output, settings, given, sampling, asked.grammar, force=many.force
    )
    n = many.parallel
    with asked.opened(worker, status, n) as loaded:
        answer_all(batch, loaded, worker, status, n)


def _require_terminal(*, as_json: bool) -> None:
    """Raise UsageError unless a chat can be held: it needs a terminal on both sides."""
    import sys

    if as_json or sys.stdin is None or not sys.stdout.isatty():
        raise UsageError("no prompt is given. Add -p TEXT or -f FILE, or pipe the text in.")


def _request(
    loaded: "Loaded",
    prompt: str,
    given: PromptOptions,
    sampling: SamplingOptions,
    grammar: "GrammarSpec | None" = None,
) -> "Request":
    """Return the request for a prompt: a chat of one turn, or the bare text to continue."""
    from quantcli.cli.generation import request

    params = sampling.params(loaded.metadata)
    if loaded.uses_chat(given.chat):
        system = [{"role": "system", "content": given.system}] if given.system else []
        tokens = loaded.chat_tokens([*system, {"role": "user", "content": prompt}])
    elif given.system:
        raise UsageError("--system is part of a chat. Leave it out, or use a model with a chat.")
    else:
        tokens = tuple(loaded.tokenizer.encode(prompt, parse_special=given.special))
    return request(tokens, sampling, params, grammar=grammar)


def _answer(answer: "Answer", loaded: "Loaded", status: "StatusLine", as_json: bool) -> None:
    """Print an answer as it comes, or with --json at its end, and then what it took.

    Ctrl-C ends the answer and is raised again once what there is has been printed.
    """
    from quantcli.cli import generation, render

    interrupted = generation.collect(answer, None if as_json else generation.write)
    if as_json:
        render.emit_json(_document(answer, loaded))
    elif not answer.text.endswith("\n"):
        generation.write("\n")
    generation.note_finish(answer, loaded, status)
    if answer.stats is not None:
        status.note(generation.timings(loaded, answer.stats))
    if interrupted:
        raise KeyboardInterrupt


def _document(answer: "Answer", loaded: "Loaded") -> "JsonValue":
    """Return everything about an answer."""
    from quantcli.cli import generation

    params = asdict(answer.asked.params)
    params["logit_bias"] = {str(token): x for token, x in params["logit_bias"].items()}
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish": answer.finish,
        "model": loaded.name,
        "settings": {
            **params,
            "context": loaded.model.context,
            "threads": loaded.model.n_threads,
            "context_shift": answer.asked.context_shift,
            "keep": answer.asked.n_keep,
            "lora": loaded.adapters,
        },
        "prompt_tokens": list(answer.asked.tokens),
        "timings": generation.timings_json(loaded, answer.stats) if answer.stats else None,
    }
