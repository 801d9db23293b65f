"""Prompts of requests as tokens: conversations through the chat template, or bare texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Never

from quantcli.errors import CheckpointError, RequestError
from quantcli.server.fields import MAX_INT, Fields, refuse, shown
from quantcli.server.reasoning import OPEN
from quantcli.server.served import Served
from quantcli.server.settings import Limits
from quantcli.server.tools import Tools
from quantcli.text.chat import encode_chat
from quantcli.text.tokenizer import whole_characters

Message = dict[str, object]

_MAX_ROLE = 64
_TEXT_PARTS = ("text", "input_text", "output_text")
_PASSED_ON = ("name", "tool_call_id", "reasoning_content")
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
)
_MAX_NAMES = 32  # names that a request may set for the template


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat request says.

    messages   as templates take them
    tools      that the model may call, or None
    extra      further names for the template, and how the prompt ends
    """

    messages: list[Message]
    tools: Tools | None
    extra: Mapping[str, object]

    def tokens(self, served: Served) -> list[int]:
        """Return the prompt. Raises RequestError if the model has no template, or it refuses."""
        if served.template is None:
            refuse(
                f"{served.name} has no chat template. Use /v1/completions, or another model.",
                "messages",
            )
        messages, extra = self._shown(served)
        try:
            return encode_chat(served.tokenizer, served.template, messages, **extra)
        except CheckpointError as first:
            # Templates differ in whether the arguments of calls are an object or its text.
            try:
                texts = [_with_argument_texts(message) for message in messages]
                return encode_chat(served.tokenizer, served.template, texts, **extra)
            except CheckpointError:
                _refuse_by_template(first)

    def rendered(self, served: Served) -> str:
        """Return the text of the prompt, as /apply-template tells it."""
        if served.template is None:
            refuse(f"{served.name} has no chat template.")
        messages, extra = self._shown(served)
        try:
            return served.template.render(messages, **extra)
        except CheckpointError as error:
            _refuse_by_template(error)

    def _shown(self, served: Served) -> tuple[list[Message], dict[str, Any]]:
        """Return the messages and names that the template gets."""
        extra: dict[str, Any] = dict(self.extra)
        if self.tools is None:
            return self.messages, extra
        if served.template_takes_tools:
            return self.messages, {**extra, "tools": list(self.tools.tools)}
        return _with_instructions(self.messages, self.tools.instructions()), extra


def _refuse_by_template(error: CheckpointError) -> Never:
    """Raise RequestError: what a template refuses is the conversation's fault, mostly."""
    raise RequestError(f"the model's chat template refuses: {error}", param="messages") from error


def read_conversation(fields: Fields, limits: Limits, tools: Tools | None) -> Conversation:
    """Return what a chat request says. Raises RequestError for messages that are malformed."""
    if "chat_template" in fields:
        refuse("chat_template: templates come from the model's file only.", "chat_template")
    messages = [_message(m) for m in fields.objects("messages", limits.n_messages)]
    if not messages:
        refuse("messages is empty; give at least one message.", "messages")
    return Conversation(messages, tools, _names(fields) | _ending(fields))


def _ending(fields: Fields) -> dict[str, object]:
    """Return how the prompt ends; fields and defaults are vLLM's."""
    goes_on = fields.flag("continue_final_message")
    asks = fields.flag("add_generation_prompt", default=not goes_on)
    if goes_on and asks:
        refuse(
            "continue_final_message and add_generation_prompt cannot both be true.",
            "continue_final_message",
        )
    return {"continue_final_message": goes_on, "add_generation_prompt": asks}


def _names(fields: Fields) -> dict[str, object]:
    """Return the names that a request sets for the template, numbers and words only."""
    given = fields.object("chat_template_kwargs")
    values = dict(given.values) if given is not None else {}
    effort = fields.text("reasoning_effort", _MAX_ROLE)
    if effort is not None:
        values.setdefault("reasoning_effort", effort)
    if len(values) > _MAX_NAMES:
        refuse(f"chat_template_kwargs has over {_MAX_NAMES} entries.", "chat_template_kwargs")
    for name, value in values.items():
        is_plain = value is None or isinstance(value, str | int | float)
        if name in _RESERVED or not name.isidentifier() or not is_plain:
            refuse(
                f"chat_template_kwargs: {shown(name)} cannot be set to {shown(value)}.",
                "chat_template_kwargs",
            )
    return values


def _message(fields: Fields) -> Message:
    role = fields.text("role", _MAX_ROLE)
    if not role:
        fields.wrong("role", "system, user, assistant or tool")
    message: Message = {
        "role": "system" if role == "developer" else role,
        "content": _content(fields),
    }
    for name in _PASSED_ON:
        if (value := fields.text(name)) is not None:
            message[name] = value
    if calls := [_call(call) for call in fields.objects("tool_calls", MAX_INT)]:
        message["tool_calls"] = calls
    return message


def _content(fields: Fields) -> str:
    """Return the text of a message; parts become lines, as templates without parts get them."""
    value = fields.raw("content")
    if value is None:
        return ""  # as when an assistant only calls tools
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        fields.wrong("content", "a string or a list of parts")
    parts: list[str] = []
    for part in fields.objects("content", MAX_INT):
        kind = part.text("type")
        if kind not in _TEXT_PARTS:
            part.wrong("type", "text, the only kind of part that this model reads")
        text = part.text("text")
        if text is None:
            part.wrong("text", "a string")
        parts.append(text)
    return "\n".join(parts)


def _call(fields: Fields) -> dict[str, object]:
    """Return a call of an earlier answer, its arguments as an object where they are one."""
    function = fields.object("function")
    name = function.text("name") if function is not None else None
    if function is None or name is None:
        fields.wrong("function", "an object with name and arguments")
    arguments = function.raw("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = function.text("arguments")
    return {
        "id": fields.text("id") or "",
        "type": "function",
        "function": {"name": name, "arguments": {} if arguments is None else arguments},
    }


def _with_argument_texts(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    texts = []
    for call in calls:
        function = call["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        texts.append({**call, "function": {**function, "arguments": text}})
    return {**message, "tool_calls": texts}


def _with_instructions(messages: list[Message], instructions: str) -> list[Message]:
    """Return a conversation for a template without tools: all that it shows is text."""
    told = [_as_plain(message) for message in messages]
    first = told[0]
    if first["role"] == "system" and isinstance(first["content"], str):
        first["content"] = f"{first['content']}\n\n{instructions}"
        return told
    return [{"role": "system", "content": instructions}, *told]


def _as_plain(message: Message) -> Message:
    """Return a message without what only templates with tools know."""
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": content}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        content = "\n".join(json.dumps(call["function"]) for call in calls)
    return {"role": message["role"], "content": content}


def starts_thinking(served: Served, tokens: list[int]) -> bool:
    """Return whether a prompt ends in <think>, so that the answer begins with thoughts."""
    if not served.template_thinks:
        return False
    return served.tokenizer.decode(tokens[-12:], special=True).rstrip().endswith(OPEN)


def read_prompts(fields: Fields, name: str, most: int) -> list[str | list[int]]:
    """Return the texts or token lists of a field: one or a list of either.

    Raises RequestError if it holds anything else, nothing, or too many.
    """
    value = fields.raw(name)
    if value is None:
        refuse(f"{name} is missing; give a string, or a list of strings or token ids.", name)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        fields.wrong(name, "a string, or a list of strings or token ids")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return [_ids(value, name)]
    if len(value) > most:
        refuse(f"{name} has {len(value)} items; at most {most} are allowed.", name)
    prompts: list[str | list[int]] = []
    for item in value:
        if isinstance(item, str):
            prompts.append(item)
        elif isinstance(item, list):
            prompts.append(_ids(item, name))
        else:
            refuse(f"{name} has {shown(item)}; it should be strings or lists of token ids.", name)
    return prompts


def _ids(value: list[object], name: str) -> list[int]:
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_INT:
            refuse(f"{name} has {shown(token)} among its token ids.", name)
    return [token for token in value if isinstance(token, int)]


def prompt_tokens(served: Served, prompt: str | list[int], *, parse_special: bool) -> list[int]:
    """Return a bare prompt as tokens; a list of ids is taken as it is."""
    if isinstance(prompt, list):
        return prompt
    text = whole_characters(prompt)
    return served.tokenizer.encode(text, parse_special=parse_special)


def check_length(served: Served, tokens: list[int], param: str) -> None:
    """Raise RequestError with OpenAI's code if a prompt does not fit the context."""
    most = min(served.context, served.n_slots)
    if len(tokens) > most:
        raise RequestError(
            # Clients look for OpenAI's words, up to the number.
            f"this model's maximum context length is {most} tokens, and the prompt has "
            f"{len(tokens)}. Shorten it, or start the server with a larger --ctx.",
            param=param,
            code="context_length_exceeded",
            kind="exceed_context_size_error",
            n_prompt_tokens=len(tokens),
            n_ctx=most,
        )
