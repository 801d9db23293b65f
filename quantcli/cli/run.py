"""quantcli run: one answer on standard output, or a chat on a terminal."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from quantcli.cli.generation import Answer, Loaded
    from quantcli.cli.render import JsonValue, StatusLine
    from quantcli.engine.request import Request


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    given: PromptOptions,
    sampling: SamplingOptions,
    load: LoadOptions,
    output: OutputOptions,
    as_json: Json = False,
) -> None:
    """Generate text from a prompt, or chat.

    The prompt comes from -p, -f or standard input; on a terminal without one a chat opens. The
    answer alone goes to standard output, everything else to standard error.
    """
    from quantcli.cli import generation
    from quantcli.cli.chat import converse
    from quantcli.cli.prompt import checked_text, read_prompt
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker

    name = named.choose(model)
    load.checked()
    sampling.params()
    prompt = read_prompt(given.prompt, given.file)
    checked_text(given.system or "", "the system message")
    if prompt is None:
        _require_terminal(as_json=as_json)
    status = StatusLine(verbose=output.verbose, quiet=output.quiet)
    with Worker() as worker, generation.opened(name, load, worker, status) as loaded:
        if prompt is None:
            converse(loaded, worker, status, given, sampling)
        else:
            if given.chat is None and loaded.template is None:
                status.note(f"{name} has no chat template: it continues the text, as --no-chat.")
            asked = _request(loaded, prompt, given, sampling)
            _answer(generation.Answer(loaded.engine, asked, worker), loaded, status, as_json)


def _require_terminal(*, as_json: bool) -> None:
    """Raise UsageError unless a chat can be held: it needs a terminal on both sides."""
    import sys

    from quantcli.errors import UsageError

    if as_json or sys.stdin is None or not sys.stdout.isatty():
        raise UsageError("no prompt is given. Add -p TEXT or -f FILE, or pipe the text in.")


def _request(
    loaded: "Loaded", prompt: str, given: PromptOptions, sampling: SamplingOptions
) -> "Request":
    """Return the request for a prompt: a chat of one turn, or the bare text to continue."""
    from quantcli.cli.generation import request
    from quantcli.errors import UsageError

    params = sampling.params(loaded.metadata)
    if loaded.uses_chat(given.chat):
        system = [{"role": "system", "content": given.system}] if given.system else []
        tokens = loaded.chat_tokens([*system, {"role": "user", "content": prompt}])
    elif given.system:
        raise UsageError("--system is part of a chat. Leave it out, or use a model with a chat.")
    else:
        tokens = tuple(loaded.tokenizer.encode(prompt, parse_special=given.special))
    return request(tokens, sampling, params)


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
    from dataclasses import asdict

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
        },
        "prompt_tokens": list(answer.asked.tokens),
        "timings": generation.timings_json(loaded, answer.stats) if answer.stats else None,
    }
