"""A loaded model and its answers, computed on the worker; what `run` and `chat` share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from quantcli.errors import UsageError

if TYPE_CHECKING:
    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.options import LoadOptions, SamplingOptions
    from quantcli.cli.render import JsonValue, StatusLine
    from quantcli.cli.speculation import Draft, SpeculationOptions
    from quantcli.cli.worker import Stream, Worker
    from quantcli.engine.loop import Engine
    from quantcli.engine.request import (
        Event,
        FinishReason,
        GrammarSpec,
        Request,
        SamplingParams,
        Stats,
    )
    from quantcli.runtime.model import Model
    from quantcli.text import Tokenizer
    from quantcli.text.chat import ChatTemplate

    Choice = Callable[[Mapping[str, object], Tokenizer], tuple[ChatTemplate | None, str | None]]

Progress = Callable[[str, int, int], None]
Message = Mapping[str, str]


@dataclass
class Loaded:
    """A model ready to answer."""

    name: str
    checkpoint: Checkpoint  # open as long as the model: the reference backend reads on demand
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model: Model
    engine: Engine
    load_s: float
    draft: Draft | None = None
    template_note: str | None = None  # what is to be said about the template

    def close(self) -> None:
        """Stop the model's threads and close its file, and the draft model's after it."""
        self.model.close()
        self.checkpoint.close()
        if self.draft is not None:
            self.draft.close()

    @property
    def metadata(self) -> Mapping[str, object]:
        """The file's keys and values."""
        return self.checkpoint.metadata

    @property
    def adapters(self) -> list[JsonValue]:
        """The LoRA adapters that the model wears, as `GET /lora-adapters` lists them."""
        return [
            {"id": number, "path": str(adapter.path), "scale": adapter.scale}
            for number, adapter in enumerate(self.checkpoint.adapters)
        ]

    def uses_chat(self, asked: bool | None) -> bool:
        """Return whether to apply the chat template; raise UsageError if it lacks one."""
        if asked and self.template is None:
            raise UsageError(f"{self.name} has no chat template. Name one with --chat-template.")
        return self.template is not None if asked is None else asked

    def chat_tokens(self, messages: list[Message]) -> tuple[int, ...]:
        """Return a conversation as the prompt for its next answer."""
        from quantcli.text.chat import encode_chat

        assert self.template is not None
        return tuple(encode_chat(self.tokenizer, self.template, messages))


@contextmanager
def opened(
    name: str,
    options: LoadOptions,
    worker: Worker,
    status: StatusLine,
    speculation: SpeculationOptions | None = None,
    n_parallel: int = 1,
    choose: Choice | None = None,
) -> Iterator[Loaded]:
    """Hold a loaded model, downloaded first if need be; close it on the worker in the end.

    n_parallel   answers that may be under way at once
    choose       finds the chat template and, if it is a guess, a sentence about it; None takes the
                 file's
    """
    try:
        loaded = load(name, options, worker, status, speculation, n_parallel, choose)
    finally:
        status.clear()
    try:
        if loaded.template_note is not None:
            status.warn(loaded.template_note)
        for line in notes(loaded):
            status.note(line)
        yield loaded
    finally:
        if worker.stop():
            worker.call(loaded.close)


def notes(loaded: Loaded) -> Iterator[str]:
    """Yield remarks on a file that is odd but works."""
    from quantcli.engine.request import ignored_file_keys
    from quantcli.runtime.weights import repacking_notes

    yield from loaded.checkpoint.notes
    yield from repacking_notes(loaded.checkpoint)
    ignored = ignored_file_keys(loaded.metadata)
    if ignored:
        yield f"the file's {', '.join(ignored)} have no counterpart here and are ignored."
    trained = loaded.metadata.get(f"{loaded.metadata.get('general.architecture')}.context_length")
    if isinstance(trained, int) and loaded.model.context > trained:
        yield (
            f"the context of {loaded.model.context} tokens is longer than the {trained} that this "
            "model was trained on; beyond them answers may be poor."
        )


def load(
    name: str,
    options: LoadOptions,
    worker: Worker,
    status: StatusLine,
    speculation: SpeculationOptions | None = None,
    n_parallel: int = 1,
    choose: Choice | None = None,
) -> Loaded:
    """Find, download if need be, open and load a model, and its draft model, on the worker."""
    from quantcli.checkpoint.store import resolve
    from quantcli.cli.adapters import resolved
    from quantcli.cli.speculation import SpeculationOptions, load_draft

    drafting = speculation or SpeculationOptions()
    path = resolve(name, progress=status, notify=status.note)
    adapters = resolved(options.lora, status, status.note)
    draft_path = None
    if drafting.draft is not None:
        draft_path = resolve(drafting.draft, progress=status, notify=status.note)

    def work() -> Loaded:
        from quantcli.engine.loop import Engine
        from quantcli.runtime.adapters import open_adapted
        from quantcli.text import from_metadata
        from quantcli.text.chat import ChatTemplate

        report = worker.checked(status)
        start = time.perf_counter()
        with ExitStack() as undo:
            checkpoint = undo.enter_context(open_adapted(path, adapters))
            report("reading the vocabulary", 0, 0)
            tokenizer = from_metadata(checkpoint.metadata)
            if choose is None:
                template, note = ChatTemplate.from_metadata(checkpoint.metadata), None
            else:
                template, note = choose(checkpoint.metadata, tokenizer)
            draft = None
            if draft_path is not None:
                draft = load_draft(draft_path, tokenizer, options, n_parallel, report)
                undo.callback(draft.close)
            beside = draft.model if draft else None
            model = load_model(checkpoint, options, report, n_parallel, beside)
            undo.callback(model.close)
            engine = Engine(
                model, tokenizer, options=drafting.engine_options(n_parallel), draft=beside
            )
            undo.pop_all()
        load_s = time.perf_counter() - start
        return Loaded(name, checkpoint, tokenizer, template, model, engine, load_s, draft, note)

    return worker.call(work)


def load_model(
    checkpoint: Checkpoint,
    options: LoadOptions,
    progress: Progress,
    n_parallel: int = 1,
    beside: Model | None = None,
) -> Model:
    """Load the weights of an open checkpoint.

    beside   a model to compute in turns with, on its threads
    """
    from quantcli.runtime.model import Model

    return Model.load(
        checkpoint,
        context=options.ctx or None,
        n_threads=options.threads,
        kv_type=options.chosen_kv_type(),
        cache=options.cache,
        n_sequences=n_parallel,
        backend=options.chosen_backend(),
        progress=progress,
        beside=beside,
    )


def request(
    tokens: tuple[int, ...],
    sampling: SamplingOptions,
    params: SamplingParams,
    session: int | None = None,
    grammar: GrammarSpec | None = None,
) -> Request:
    """Return the engine's request for a prompt."""
    from quantcli.engine.request import Request

    return Request(
        tokens,
        params,
        session=session,
        context_shift=sampling.context_shift,
        n_keep=sampling.keep,
        grammar=grammar,
    )


@dataclass
class Answer:
    """One answer as it comes: iterate for its pieces of text, then read the rest.

    Ctrl-C while waiting reaches whoever iterates; `cancel` and iterate on for the end.
    """

    engine: Engine
    asked: Request
    worker: Worker
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: Stats | None = None
    _number: int | None = None
    _is_cancelled: bool = False
    _events: Stream[Event] | None = None

    def __iter__(self) -> Iterator[str]:
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Return the next piece of text that is certain, which may be empty."""
        if self._events is None:
            self._events = self.worker.stream(self._produce)
        event = next(self._events)
        if event.error is not None:
            raise event.error
        if event.token is not None:
            self.tokens.append(event.token)
        self.text += event.text
        self.finish, self.stats = event.finish, event.stats
        return event.text

    def cancel(self) -> None:
        """End the answer, breaking off the step at hand."""
        self._is_cancelled = True
        if self._number is not None:
            self.engine.cancel(self._number)

    def _produce(self) -> Iterator[Event]:
        """Drive the engine until this request ends. Runs on the worker."""
        self._number = number = self.engine.submit(self.asked)
        if self._is_cancelled:  # before there was a number
            self.engine.cancel(number)
        while True:
            for event in self.engine.step():
                yield event
                if event.finish is not None:
                    return


def collect(answer: Answer, show: Callable[[str], None] | None) -> bool:
    """Follow an answer to its end and return whether Ctrl-C ended it.

    show   receives each piece of text as it comes

    The first Ctrl-C ends the answer; a second one, while it is still ending, is raised.
    """
    interrupted = False
    while True:
        try:
            for piece in answer:
                if show is not None and piece:
                    show(piece)
            return interrupted
        except KeyboardInterrupt:
            answer.cancel()
            if interrupted:
                raise
            interrupted = True
        except BaseException:
            answer.cancel()
            raise


def write(text: str) -> None:
    """Write a piece of an answer to standard output at once.

    A terminal gets control characters as escapes: an answer must not move the cursor, set the
    title or fill the clipboard.
    """
    if sys.stdout.isatty():
        from quantcli.cli.render import harmless

        text = harmless(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def timings(loaded: Loaded, stats: Stats) -> str:
    """Return what an answer took, one line each for the prompt, the answer and the rest."""
    from quantcli.runtime.memory import peak_memory, size

    n_new = stats.n_prompt - stats.n_reused
    reused = f", {stats.n_reused} reused" if stats.n_reused else ""
    lines = [
        f"prompt     {_rate(n_new, stats.prompt_s)}{reused}",
        f"generated  {_rate(max(0, stats.n_generated - 1), stats.decode_s)}",
        *_drafted(loaded, stats),
        f"load {loaded.load_s:.2f} s, {loaded.model.n_threads} threads, "
        f"context {loaded.model.context}, peak memory {size(peak_memory())}, seed {stats.seed}",
    ]
    return "\n".join(lines)


def _drafted(loaded: Loaded, stats: Stats) -> Iterator[str]:
    """Yield how many guesses were right and what they won, if there were any."""
    if not stats.n_drafted:
        return
    share = stats.n_accepted / stats.n_drafted
    speedup = loaded.engine.speedup(stats)
    won = f", {speedup:.2f} times as fast as without" if speedup else ""
    yield f"drafted    {stats.n_drafted:6d} tokens, {stats.n_accepted} right ({share:.0%}){won}"


def timings_json(loaded: Loaded, stats: Stats) -> JsonValue:
    """Return what an answer took, for --json."""
    from quantcli.runtime.memory import peak_memory

    return {
        **asdict(stats),
        "speedup": loaded.engine.speedup(stats) if stats.n_drafted else None,
        "load_s": loaded.load_s,
        "peak_memory_nbytes": peak_memory(),
    }


def note_finish(answer: Answer, loaded: Loaded, status: StatusLine) -> None:
    """Say why an answer ended early if it was the context."""
    from quantcli.engine.request import FinishReason

    if answer.finish is FinishReason.CONTEXT:
        status.warn(
            f"the context of {loaded.model.context} tokens is full. "
            "Use a larger --ctx, or --context-shift to drop the oldest text."
        )


def _rate(n_tokens: int, seconds: float) -> str:
    speed = f"{n_tokens / seconds:9.1f} tokens/s" if seconds > 0 and n_tokens else ""
    return f"{n_tokens:6d} tokens {seconds:8.2f} s {speed}".rstrip()
