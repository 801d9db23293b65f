"""Many prompts from a file, answered together: `run -f prompts.jsonl -o answers.jsonl`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quantcli.cli.batch_file import Answers, Document, Prompt, read_prompts
from quantcli.errors import QuantcliError, UsageError

if TYPE_CHECKING:
    from quantcli.cli.generation import Loaded, Message
    from quantcli.cli.options import PromptOptions, SamplingOptions
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.engine.request import Event, GrammarSpec, Request

_AHEAD = 2  # requests submitted for each that runs, so that none waits for a prompt to be read


@dataclass
class Batch:
    """A file of prompts, how to answer them, and the answers that are there."""

    prompts: list[Prompt]
    answers: Answers
    given: PromptOptions
    sampling: SamplingOptions
    grammar: GrammarSpec | None = None
    n_failed: int = 0
    n_generated: int = 0
    _open: dict[int, _Asked] = field(default_factory=dict)  # by the number of the request

    @property
    def left(self) -> list[Prompt]:
        """The prompts without an answer."""
        return [prompt for prompt in self.prompts if prompt.line not in self.answers.done]

    def run(self, loaded: Loaded, n_parallel: int) -> Iterator[int]:
        """Answer what is left; yield how many prompts are answered, after each step. On the worker.

        An error of one prompt is its answer. The engine's requests are cancelled at the end.
        """
        waiting = iter(self.left)
        try:
            while True:
                while len(self._open) < n_parallel * _AHEAD:
                    prompt = next(waiting, None)
                    if prompt is None:
                        break
                    self._ask(loaded, prompt)
                if not self._open:
                    yield len(self.answers.done)
                    return
                for event in loaded.engine.step():
                    self._take(loaded, event)
                yield len(self.answers.done)
        finally:
            for number in self._open:
                loaded.engine.cancel(number)

    def _ask(self, loaded: Loaded, prompt: Prompt) -> None:
        try:
            asked = _Asked(prompt, request(loaded, prompt, self))
            self._open[loaded.engine.submit(asked.request)] = asked
        except QuantcliError as error:
            self._fail(prompt, error)

    def _take(self, loaded: Loaded, event: Event) -> None:
        """Take one event over; write the answer if it was the last."""
        asked = self._open[event.request]
        asked.text += event.text
        if event.token is not None:
            asked.n_tokens += 1
            self.n_generated += 1
        if event.finish is None:
            return
        del self._open[event.request]
        if event.error is not None:
            if not isinstance(event.error, QuantcliError):
                raise event.error
            self._fail(asked.prompt, event.error)
            return
        assert event.stats is not None
        self.answers.add(
            {
                **_name(asked.prompt),
                "text": asked.text,
                "finish": str(event.finish),
                "n_prompt": event.stats.n_prompt,
                "n_generated": asked.n_tokens,
                "seed": event.stats.seed,
            }
        )

    def _fail(self, prompt: Prompt, error: QuantcliError) -> None:
        self.n_failed += 1
        self.answers.add({**_name(prompt), "error": str(error)})


@dataclass
class _Asked:
    prompt: Prompt
    request: Request
    text: str = ""
    n_tokens: int = 0


def _name(prompt: Prompt) -> Document:
    return {"line": prompt.line} | ({} if prompt.id is None else {"id": prompt.id})


def request(loaded: Loaded, prompt: Prompt, batch: Batch) -> Request:
    """Return the request of a prompt: its own parameters, then the command line's.

    Its seed is the run's plus its line, so that no two prompts draw the same numbers.
    """
    from dataclasses import replace

    from quantcli.cli.generation import request as engine_request

    params = batch.sampling.params(loaded.metadata)
    seed = {"seed": (batch.answers.seed + prompt.line) % 2**64}
    params = replace(params, **{**seed, **prompt.params})  # type: ignore[arg-type]
    tokens = _tokens(loaded, prompt, batch.given)
    return engine_request(tokens, batch.sampling, params, grammar=batch.grammar)


def _tokens(loaded: Loaded, prompt: Prompt, given: PromptOptions) -> tuple[int, ...]:
    if prompt.messages and loaded.template is None:
        raise UsageError(f"{loaded.name} has no chat template. Give a prompt instead of messages.")
    if prompt.messages or loaded.uses_chat(given.chat):
        system: list[Message] = []
        if given.system and not any(m["role"] == "system" for m in prompt.messages):
            system = [{"role": "system", "content": given.system}]
        asked = list(prompt.messages) or [{"role": "user", "content": prompt.text or ""}]
        return loaded.chat_tokens([*system, *asked])
    return tuple(loaded.tokenizer.encode(prompt.text or "", parse_special=given.special))


def open_batch(
    file: str,
    output: str,
    settings: Mapping[str, object],
    given: PromptOptions,
    sampling: SamplingOptions,
    grammar: GrammarSpec | None,
    *,
    force: bool,
) -> Batch:
    """Read the prompts and open the answers, before anything slow begins.

    settings   what the answers depend on besides the prompts

    Raises UsageError for a line that is wrong and for answers that are of something else.
    """
    from quantcli.engine.request import SamplingParams

    prompts, digest = read_prompts(Path(file))
    for prompt in prompts:
        try:
            SamplingParams(**prompt.params)  # type: ignore[arg-type]
        except UsageError as error:
            raise UsageError(f"{file}, line {prompt.line}: {error}") from None
    is_seeded = sampling.seed is not None and sampling.seed >= 0
    asked: Document = {
        "prompts_sha256": digest,
        **settings,
        "is_seeded": is_seeded,
        "seed": sampling.seed if is_seeded else secrets.randbits(32),
    }
    return Batch(prompts, Answers(Path(output), asked, force=force), given, sampling, grammar)


def answer_all(
    batch: Batch, loaded: Loaded, worker: Worker, status: StatusLine, n_parallel: int
) -> None:
    """Answer a batch, and say how it went.

    Ctrl-C stops at the end of a step and is raised again: what is answered is kept. Raises
    UsageError in the end if prompts could not be answered.
    """
    start = time.perf_counter()
    n_before = len(batch.answers.done)
    n_all = len(batch.prompts)
    if n_before:
        status.note(f"going on: {n_before} of {n_all} prompts are answered already.")
    try:
        for n_done in worker.stream(lambda: batch.run(loaded, n_parallel)):
            status("answering", n_done, n_all)
    except KeyboardInterrupt:
        worker.stop()
        status.clear()
        status.note(f"{len(batch.answers.done)} of {n_all} answered. Run the same again to go on.")
        raise
    status.clear()
    batch.answers.finish()
    seconds = time.perf_counter() - start
    speed = batch.n_generated / seconds if seconds else 0.0
    status.note(
        f"{n_all - n_before} answers, {batch.n_generated} tokens in {seconds:.1f} s, "
        f"{speed:.1f} tokens/s"
    )
    n_failed = sum("error" in document for document in batch.answers.done.values())
    if n_failed:
        raise UsageError(f"{n_failed} of {n_all} prompts have an error instead of an answer.")
