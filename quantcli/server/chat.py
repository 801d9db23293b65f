"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from quantcli.engine.request import Event, GrammarSpec, Logprobs
from quantcli.engine.request import Request as EngineRequest
from quantcli.server import sampling
from quantcli.server.asking import respond
from quantcli.server.body import read_fields
from quantcli.server.choices import ChoiceReader, Delta, finite, timings, usage
from quantcli.server.fields import MAX_INT, Fields, refuse
from quantcli.server.prompts import Conversation, check_length, read_conversation, starts_thinking
from quantcli.server.reasoning import ReasoningSplit
from quantcli.server.served import Served
from quantcli.server.service import Service
from quantcli.server.settings import Limits
from quantcli.server.tool_calls import CallParser
from quantcli.server.tools import read_tools

_MAX_SALT = 256


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = cast("Service", request.app.state.service)
    fields = await read_fields(request, service.settings.limits)
    answer = ChatAnswer(fields, service.served, service.settings.limits, salt_of(service, request))
    return await respond(service, request, answer)


def salt_of(service: Service, request: Request) -> str:
    """Return what keeps the cached prompts of one API key from the holders of others.

    How soon an answer begins tells whether its prompt was cached.
    """
    n_keys = len(service.settings.api_keys)
    return f"key {request.state.key}" if n_keys > 1 else ""


class Stream:
    """What the chunks of a stream have in common.

    is_asked        whether the answer is streamed at all
    with_usage      whether a last chunk tells the number of tokens
    """

    def __init__(self, fields: Fields) -> None:
        """Read what a request says of streaming."""
        self.is_asked = fields.flag("stream")
        options = fields.object("stream_options")
        self.with_usage = options is not None and options.flag("include_usage")


class ChatAnswer:
    """One request for answers to a conversation, and the answers."""

    def __init__(self, fields: Fields, served: Served, limits: Limits, salt: str) -> None:
        """Read and check a request's fields."""
        self._served = served
        self._stream = Stream(fields)
        self.is_streamed = self._stream.is_asked
        self._id = "chatcmpl-" + secrets.token_hex(12)
        self._created = int(time.time())
        fields.text("model")
        self._tools = read_tools(
            fields, limits, served.source, takes_tools=served.template_takes_tools
        )
        self._conversation: Conversation = read_conversation(fields, limits, self._tools)
        self._n = sampling.n_choices(fields, limits)
        self._n_logprobs = _n_logprobs(fields, limits)
        self._params = sampling.sampling_params(
            fields, limits, served.metadata, max_tokens=None, n_logprobs=self._n_logprobs
        )
        self._grammar = self._form(fields, limits)
        self._splits = fields.one_of("reasoning_format", ("auto", "deepseek", "none"), "auto")
        self._priority = fields.integer("priority", -MAX_INT) or 0
        self._salt = salt + (fields.text("cache_salt", _MAX_SALT) or "")
        self._readers: list[ChoiceReader] = []
        self._roles_sent: set[int] = set()
        self._ends_sent: set[int] = set()

    def _form(self, fields: Fields, limits: Limits) -> GrammarSpec | None:
        grammar = sampling.grammar_spec(fields, limits)
        if self._tools is None or not self._tools.is_demanded:
            return grammar
        if grammar is not None:
            refuse("a call of a tool is demanded, and so is another form; ask for one.")
        return self._tools.grammar()

    def requests(self) -> Sequence[EngineRequest]:
        """Return the engine's request. Raises RequestError if the prompt is too long."""
        tokens = self._conversation.tokens(self._served)
        check_length(self._served, tokens, "messages")
        thinks = self._grammar is None and starts_thinking(self._served, tokens)
        self._readers = [self._reader(is_inside=thinks) for _ in range(self._n)]
        request = EngineRequest(
            tuple(tokens),
            self._params,
            n=self._n,
            priority=self._priority,
            cache_salt=self._salt,
            grammar=self._grammar,
        )
        return [request]

    def _reader(self, *, is_inside: bool) -> ChoiceReader:
        split = parser = None
        if self._served.template_thinks and self._splits != "none":
            split = ReasoningSplit(is_inside=is_inside)
        if self._tools is not None:
            most = None if self._tools.is_parallel else 1
            parser = CallParser(self._tools.style, self._tools.parameters, most)
        return ChoiceReader(self._served, stops=self._params.stop, split=split, parser=parser)

    def take(self, key: int, event: Event) -> None:
        """Take an event."""
        self._readers[event.choice].take(event)

    def chunks(self) -> Sequence[object]:
        """Return the chunks of what was taken since the last call."""
        chunks = []
        for index, reader in enumerate(self._readers):
            delta = reader.taken()
            if index not in self._roles_sent:
                if not delta.tokens and reader.finish is None:
                    continue
                self._roles_sent.add(index)
                chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
            if delta or (self._n_logprobs is not None and delta.tokens):
                logprobs = self._logprobs(delta.tokens)
                chunks.append(self._chunk(index, _shape(delta), logprobs=logprobs))
            if reader.finish is not None and index not in self._ends_sent:
                self._ends_sent.add(index)
                chunks.append(self._chunk(index, {}, finish=reader.finish_reason))
        return chunks

    def last_chunks(self) -> Sequence[object]:
        """Return the chunk that tells usage, if it is wanted."""
        if not self._stream.with_usage:
            return ()
        return ({**self._head("chat.completion.chunk"), "choices": [], **self._counts()},)

    def body(self) -> object:
        """Return the whole response."""
        choices = []
        for index, reader in enumerate(self._readers):
            reader.taken()
            choices.append(
                {
                    "index": index,
                    "message": self._message(reader),
                    "logprobs": self._logprobs(reader.tokens),
                    "finish_reason": reader.finish_reason,
                }
            )
        return {**self._head("chat.completion"), "choices": choices, **self._counts()}

    def noted(self) -> dict[str, object]:
        """Return numbers for the log."""
        return {**usage(self._readers), "finish": [r.finish_reason for r in self._readers]}

    def _message(self, reader: ChoiceReader) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": reader.text, "refusal": None}
        if reader.thoughts:
            message["reasoning_content"] = reader.thoughts
        if reader.calls:
            message["content"] = reader.text or None
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in reader.calls
            ]
        return message

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._served.name,
            "system_fingerprint": None,
        }

    def _chunk(
        self, index: int, delta: object, *, logprobs: object = None, finish: str | None = None
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _counts(self) -> dict[str, object]:
        counts: dict[str, object] = {"usage": usage(self._readers)}
        stats = self._readers[0].stats
        if stats is not None:
            counts["timings"] = timings(stats)
        return counts

    def _logprobs(self, tokens: Sequence[tuple[int, Logprobs | None]]) -> object:
        """Return the log-probabilities of tokens; those that show no text are left out."""
        if self._n_logprobs is None:
            return None
        hidden = self._served.tokenizer.is_hidden
        content = []
        for token, logprobs in tokens:
            if logprobs is not None and not hidden(token):
                top = [self._entry(t, p) for t, p in logprobs.top[: self._n_logprobs]]
                content.append({**self._entry(token, logprobs.chosen), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, object]:
        data = self._served.tokenizer.token_bytes(token)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": finite(logprob),
            "bytes": list(data),
        }


def _n_logprobs(fields: Fields, limits: Limits) -> int | None:
    n = fields.integer("top_logprobs", 0, limits.n_top_logprobs)
    if not fields.flag("logprobs"):
        if n:
            refuse("top_logprobs is given, but logprobs is not true.", "top_logprobs")
        return None
    return n or 0


def _shape(delta: Delta) -> dict[str, object]:
    """Return what a delta adds to the message."""
    shape: dict[str, object] = {}
    if delta.text or not delta:
        shape["content"] = delta.text
    if delta.thoughts:
        shape["reasoning_content"] = delta.thoughts
    if delta.calls:
        shape["tool_calls"] = [call.shape() for call in delta.calls]
    return shape
