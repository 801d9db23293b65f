"""quantcli compare: two models, or one under two settings, on the same prompt."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from quantcli.cli.options import Json, LoadOptions, OutputOptions, PromptOptions, expand

if TYPE_CHECKING:
    from quantcli.cli.compare_view import Found
    from quantcli.cli.generation import Loaded
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.engine.request import Request


@dataclass(frozen=True, slots=True)
class OtherOptions:
    """How the second model is loaded where that is not like the first."""

    threads_b: Annotated[
        int | None,
        Option("--threads-b", min=1, max=1024, metavar="N", help="Threads of B. [as A]"),
    ] = None
    kv_type_b: Annotated[
        str | None, Option("--kv-type-b", metavar="TYPE", help="KV cache type of B. [as A]")
    ] = None
    cache_b: Annotated[
        str | None, Option("--cache-b", metavar="KIND", help="KV cache kind of B. [as A]")
    ] = None
    backend_b: Annotated[
        str | None, Option("--backend-b", metavar="NAME", help="Backend of B. [as A]")
    ] = None
    lora_b: Annotated[
        list[str] | None,
        Option(
            "--lora-b",
            metavar="FILE[:SCALE]",
            help="A LoRA adapter of B, or none. May be repeated. [as A]",
            show_default=False,
        ),
    ] = None

    def applied(self, load: LoadOptions) -> LoadOptions:
        """Return the second model's options: the first one's, with what was given for it."""
        given = {
            "threads": self.threads_b,
            "kv_type": None if self.kv_type_b is None else [self.kv_type_b],
            "cache": self.cache_b,
            "backend": self.backend_b,
            "lora": [name for name in self.lora_b if name != "none"] if self.lora_b else None,
        }
        return replace(load, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How answers are chosen: greedily, unless told otherwise."""

    max_tokens: Annotated[
        int,
        Option(
            "-n", "--max-tokens", "--predict", min=1, metavar="N", help="Most tokens of an answer."
        ),
    ] = 64
    temp: Annotated[
        float,
        Option("--temp", "--temperature", metavar="X", help="Temperature; 0 is greedy."),
    ] = 0.0
    seed: Annotated[
        int, Option("-s", "--seed", min=0, metavar="N", help="Seed of both models' choices.")
    ] = 0
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Go on after the model's end-of-text token.")
    ] = False

    def request(self, tokens: tuple[int, ...]) -> "Request":
        """Return the request, the same for both. Raises UsageError for a value out of range."""
        from quantcli.engine.request import Request, SamplingParams

        params = SamplingParams(
            temperature=self.temp,
            seed=self.seed,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
        )
        return Request(tokens, params)


@expand
def command(
    a: Annotated[str, Argument(metavar="A", help="A model.")],
    b: Annotated[
        str | None,
        Argument(metavar="[B]", help="Another; without it A under other settings."),
    ] = None,
    *,
    given: PromptOptions,
    answers: AnswerOptions,
    load: LoadOptions,
    other: OtherOptions,
    output: OutputOptions,
    as_json: Json = False,
) -> None:
    """Compare two models' answers to a prompt, token by token.

    Both models then read A's answer, and B's from where they part, and each token is shown with the
    probability that either model gives it and the KL divergence there. Ctrl-C shows what there is.
    """
    from quantcli.cli.compare_view import Found, show
    from quantcli.cli.prompt import read_prompt
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.errors import UsageError

    options = (load.checked(), other.applied(load).checked())
    if b is None and _settings(options[0]) == _settings(options[1]):
        raise UsageError(
            "there is nothing to compare A with. Name a second model, or give it another setting, "
            "such as --kv-type-b q8_0."
        )
    answers.request(())
    prompt = read_prompt(given.prompt, given.file)
    if prompt is None:
        raise UsageError("no prompt is given. Add -p TEXT or -f FILE, or pipe the text in.")
    status = StatusLine(verbose=output.verbose, quiet=output.quiet)
    names = _checked((a, a if b is None else b), status)
    with Worker() as worker, ExitStack() as stack:
        loaded = _opened(names, options, worker, status, stack)
        asked = answers.request(_tokens(loaded[0], prompt, given))
        found = Found(_labels(names, options), loaded, asked)
        try:
            _measure(found, worker, status)
        except KeyboardInterrupt:
            for side in loaded:
                side.model.cancel()
            raise
        finally:
            status.clear()
            show(found, as_json=as_json)


def _checked(models: tuple[str, str], status: "StatusLine") -> tuple[str, str]:
    """Return both models' paths, downloaded if need be, after comparing their vocabularies."""
    from quantcli.checkpoint import open_checkpoint
    from quantcli.checkpoint.store import resolve
    from quantcli.evaluate.comparison import check_vocabularies

    paths = [resolve(model, progress=status, notify=status.note) for model in models]
    status.clear()
    if models[0] != models[1]:
        vocabularies = []
        for path in paths:
            with open_checkpoint(path) as checkpoint:
                tokens = checkpoint.metadata.get("tokenizer.ggml.tokens", ())
                vocabularies.append([str(token) for token in tokens])  # type: ignore[union-attr]
        check_vocabularies((paths[0].name, paths[1].name), *vocabularies)
    return str(paths[0]), str(paths[1])


def _opened(
    names: tuple[str, str],
    options: tuple[LoadOptions, LoadOptions],
    worker: "Worker",
    status: "StatusLine",
    stack: ExitStack,
) -> "tuple[Loaded, Loaded]":
    """Load both models; they are closed with the stack."""
    from quantcli.cli.generation import opened

    sides = [
        stack.enter_context(opened(name, chosen, worker, status))
        for name, chosen in zip(names, options, strict=True)
    ]
    return sides[0], sides[1]


def _tokens(loaded: "Loaded", prompt: str, given: PromptOptions) -> tuple[int, ...]:
    """Return the prompt for both: a chat of one turn in A's template, or the bare text."""
    from quantcli.errors import UsageError

    if loaded.uses_chat(given.chat):
        system = [{"role": "system", "content": given.system}] if given.system else []
        return loaded.chat_tokens([*system, {"role": "user", "content": prompt}])
    if given.system:
        raise UsageError("--system is part of a chat. Leave it out, or use a model with a chat.")
    tokens = tuple(loaded.tokenizer.encode(prompt, parse_special=given.special))
    if not tokens:
        raise UsageError("the prompt is no token at all. Give some text.")
    return tokens


def _labels(names: tuple[str, str], options: tuple[LoadOptions, LoadOptions]) -> tuple[str, str]:
    """Return what to call the two sides: the file, and the settings that differ."""
    from pathlib import Path

    a, b = map(_settings, options)
    differ = [what for what in a if a[what] != b[what]]
    labels = []
    for name, settings in zip(names, (a, b), strict=True):
        shown = ", ".join(f"{what} {settings[what]}" for what in differ)
        labels.append(Path(name).name + (f" ({shown})" if shown else ""))
    return labels[0], labels[1]


def _settings(options: LoadOptions) -> dict[str, str]:
    """Return what the options come to, by name."""
    return {
        "kv": options.chosen_kv_type(),
        "cache": options.cache,
        "backend": options.chosen_backend(),
        "threads": str(options.threads or "default"),
        "context": str(options.ctx or "default"),
        "lora": " + ".join(options.lora or ()) or "none",
    }


def _measure(found: "Found", worker: "Worker", status: "StatusLine") -> None:
    """Let both models answer, then read each other's answers; `found` grows as it comes."""
    from quantcli.cli.generation import Answer
    from quantcli.evaluate.comparison import follow

    most = found.asked.params.max_tokens or 0
    for name, loaded in zip("AB", found.loaded, strict=True):
        answer = Answer(loaded.engine, found.asked, worker)
        found.answers.append(answer)
        for _ in answer:
            status(f"{name} answers", len(answer.tokens), most)
    check = worker.checked(status)

    def report(done: int) -> None:
        check("comparing", done, most)

    a, b = (loaded.model for loaded in found.loaded)
    ways = ((found.tokens[0], 0, found.along_a), (found.tokens[1], found.n_common, found.along_b))
    for tokens, first, positions in ways:
        if first < len(tokens):
            run = partial(
                follow,
                a,
                b,
                found.asked.tokens,
                tokens,
                n_vocab=found.n_vocab,
                names=found.labels,
                first=first,
                step=report,
            )
            positions.extend(worker.stream(run))
