"""POST /v1/completions: bare prompts continued, with OpenAI's legacy shape of log-probabilities."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from quantcli.engine.request import Event, Logprobs
from quantcli.engine.request import Request as EngineRequest
from quantcli.server import sampling
from quantcli.server.asking import respond
from quantcli.server.body import read_fields
from quantcli.server.chat import Stream, salt_of
from quantcli.server.choices import ChoiceReader, finite, timings, usage
from quantcli.server.fields import MAX_INT, Fields, refuse
from quantcli.server.prompts import check_length, prompt_tokens, read_prompts
from quantcli.server.served import Served
from quantcli.server.service import Service
from quantcli.server.settings import Limits
from quantcli.text.stream import TextStream
from quantcli.text.tokenizer import whole_characters

_DEFAULT_TOKENS = 16  # OpenAI's
_MAX_SALT = 256

Entry = tuple[int, Logprobs | None]


async def completions(request: Request) -> Response:
    """Continue prompts."""
    service = cast("Service", request.app.state.service)
    limits = service.settings.limits
    fields = await read_fields(request, limits)
    answer = CompletionAnswer(fields, service.served, limits, salt_of(service, request))
    return await respond(service, request, answer)


class LegacyLogprobs:
    """OpenAI's legacy shape of one answer's log-probabilities: four lists, one entry a token."""

    def __init__(self, served: Served, n_top: int) -> None:
        """Start before the first token of the answer's text."""
        self._served = served
        self._n_top = n_top
        self._stream = TextStream(served.tokenizer)
        self._offset = 0

    def shape(self, entries: Iterable[Entry]) -> dict[str, object]:
        """Return the lists of the tokens that come next; an entry without values gets nulls."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token, logprobs in entries:
            name = self._name(token)
            tokens.append(name)
            offsets.append(self._offset)
            self._offset += len(self._stream.push(token))
            if logprobs is None:
                values.append(None)
                tops.append(None)
                continue
            values.append(finite(logprobs.chosen))
            top = {self._name(t): finite(p) for t, p in reversed(logprobs.top[: self._n_top])}
            # The token itself is always there: readers ask whether it was the likeliest.
            tops.append({name: finite(logprobs.chosen), **top} if self._n_top else {})
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        r"""Return a token's text, or for part of a character `bytes:\xe2`, as OpenAI does."""
        data = self._served.tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class _Choice:
    """One answer: its events, its prompt if that is echoed, and its log-probabilities."""

    def __init__(self, served: Served, n_top: int | None, echo: str, prompt: list[int]) -> None:
        self.reader = ChoiceReader(served)
        self.echo = echo
        self.prompt = prompt  # whose log-probabilities are told; empty if they are not
        self.prompt_logprobs: Sequence[Logprobs | None] = ()
        self.logprobs = None if n_top is None else LegacyLogprobs(served, n_top)
        self.has_begun = False
        self.has_ended = False

    def piece(self) -> tuple[str, object, bool]:
        """Return the text and log-probabilities that are new, and whether there are any."""
        delta = self.reader.taken()
        text, entries = delta.text, list(delta.tokens)
        is_first = not self.has_begun and (bool(delta.tokens) or self.reader.finish is not None)
        if is_first:
            self.has_begun = True
            text = self.echo + text
            logprobs = self.prompt_logprobs or [None] * len(self.prompt)
            entries = [*zip(self.prompt, logprobs, strict=True), *entries]
        shape = None if self.logprobs is None else self.logprobs.shape(entries)
        is_new = bool(text) or (shape is not None and bool(entries))
        return text, shape, is_new


class CompletionAnswer:
    """One request to continue prompts, and the answers."""

    def __init__(self, fields: Fields, served: Served, limits: Limits, salt: str) -> None:
        """Read and check a request's fields."""
        self._served = served
        self._stream = Stream(fields)
        self.is_streamed = self._stream.is_asked
        self._id = "cmpl-" + secrets.token_hex(12)
        self._created = int(time.time())
        fields.text("model")
        if fields.text("suffix"):
            refuse("suffix is not supported. Put the model's own markers in the prompt.", "suffix")
        self._prompts = read_prompts(fields, "prompt", limits.n_prompts)
        self._n = sampling.n_choices(fields, limits, len(self._prompts))
        self._n_top = fields.integer("logprobs", 0, limits.n_top_logprobs)
        self._echo = fields.flag("echo")
        self._parse_special = fields.flag("parse_special", default=True)
        self._params = sampling.sampling_params(
            fields,
            limits,
            served.metadata,
            max_tokens=_DEFAULT_TOKENS,
            n_logprobs=self._n_top,
            n_prompt_logprobs=self._n_top if self._echo else None,
        )
        self._grammar = sampling.grammar_spec(fields, limits)
        self._priority = fields.integer("priority", -MAX_INT) or 0
        self._salt = salt + (fields.text("cache_salt", _MAX_SALT) or "")
        self._choices: list[_Choice] = []

    def requests(self) -> Sequence[EngineRequest]:
        """Return the engine's requests, one a prompt."""
        requests = []
        for prompt in self._prompts:
            tokens = prompt_tokens(self._served, prompt, parse_special=self._parse_special)
            check_length(self._served, tokens, "prompt")
            self._choices += self._choices_of(prompt, tokens)
            requests.append(
                EngineRequest(
                    tuple(tokens),
                    self._params,
                    n=self._n,
                    priority=self._priority,
                    cache_salt=self._salt,
                    grammar=self._grammar,
                )
            )
        return requests

    def _choices_of(self, prompt: str | list[int], tokens: list[int]) -> list[_Choice]:
        echo, told = "", []
        if self._echo:
            bad = [t for t in tokens if t >= self._served.tokenizer.n_vocab]
            if bad:
                refuse(f"no token {bad[0]}; the vocabulary has {self._served.tokenizer.n_vocab}.")
            if isinstance(prompt, str):
                echo = whole_characters(prompt)
            else:
                echo = self._served.tokenizer.decode(tokens)
            told = tokens if self._n_top is not None else []
        return [_Choice(self._served, self._n_top, echo, told) for _ in range(self._n)]

    def take(self, key: int, event: Event) -> None:
        """Take an event of a prompt."""
        choices = self._choices[key * self._n : (key + 1) * self._n]
        if event.prompt_logprobs is not None:
            for choice in choices:
                choice.prompt_logprobs = event.prompt_logprobs
        choices[event.choice].reader.take(event)

    def chunks(self) -> Sequence[object]:
        """Return the chunks of what was taken since the last call."""
        chunks = []
        for index, choice in enumerate(self._choices):
            text, logprobs, is_new = choice.piece()
            finish = choice.reader.finish_reason
            ends = finish is not None and not choice.has_ended
            if is_new or ends:
                choice.has_ended = choice.has_ended or ends
                shape = _shape(index, text, logprobs, finish if ends else None)
                chunks.append({**self._head(), "choices": [shape]})
        return chunks

    def last_chunks(self) -> Sequence[object]:
        """Return the chunk that tells usage, if it is wanted."""
        if not self._stream.with_usage:
            return ()
        return ({**self._head(), "choices": [], **self._counts()},)

    def body(self) -> object:
        """Return the whole response."""
        shapes = []
        for index, choice in enumerate(self._choices):
            text, logprobs, _ = choice.piece()
            shapes.append(_shape(index, text, logprobs, choice.reader.finish_reason))
        return {**self._head(), "choices": shapes, **self._counts()}

    def noted(self) -> dict[str, object]:
        """Return numbers for the log."""
        readers = [choice.reader for choice in self._choices]
        finish = [reader.finish_reason for reader in readers]
        return {**usage(readers, len(self._prompts)), "finish": finish}

    def _head(self) -> dict[str, object]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._served.name,
            "system_fingerprint": None,
        }

    def _counts(self) -> dict[str, object]:
        readers = [choice.reader for choice in self._choices]
        counts: dict[str, object] = {"usage": usage(readers, len(self._prompts))}
        if readers[0].stats is not None:
            counts["timings"] = timings(readers[0].stats)
        return counts


def _shape(index: int, text: str, logprobs: object, finish: str | None) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
