"""The messages of a conversation: checked, and in the form that a chat template knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quantcli.errors import UsageError
from quantcli.text.masking import Message

# Follows the text of a message that is to go on, to find where it ends. Its last character tells
# whether the template strips texts.
FINAL = "quartz7vex-goes-on "


def checked(messages: Iterable[Message]) -> list[Message]:
    """Return messages as a list; raise UsageError if they are not what a template can take."""
    messages = list(messages)
    if not messages:
        raise UsageError("there are no messages. Give at least one.")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f"message {number} has no role. Give it a role and content.")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise UsageError(
                f"the content of message {number} is {type(content).__name__}; it should be text "
                "or a list of parts."
            )
        for part in content if isinstance(content, list) else ():
            is_text = isinstance(part, Mapping) and part.get("type") == "text"
            if not is_text or not isinstance(part.get("text"), str):
                raise UsageError(
                    f"message {number} has a part that is not text; only "
                    '{"type": "text", "text": "..."} is supported.'
                )
    return messages


def as_text(message: Message) -> Message:
    """Return a message whose parts are joined to one text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def as_parts(message: Message) -> Message:
    """Return a message whose text is a list of one part."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def without_system(messages: list[Message]) -> list[Message]:
    """Return messages with the system's text at the head of the first user's."""
    system, *rest = messages
    for i, message in enumerate(rest):
        if message["role"] == "user":
            first, second = system.get("content"), message.get("content")
            if isinstance(first, str) and isinstance(second, str):
                content: object = first + "\n\n" + second
            else:
                content = [*_parts(first), {"type": "text", "text": "\n\n"}, *_parts(second)]
            rest[i] = {**message, "content": content}
            return rest
    return messages


def _parts(content: object) -> list[object]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def to_go_on(messages: list[Message]) -> list[Message]:
    """Return messages with FINAL behind the last one's text.

    Raises UsageError if that one is not the assistant's, or has no text.
    """
    *before, last = messages
    content = last.get("content")
    if last["role"] != "assistant" or not content:
        raise UsageError(
            "only a text of the assistant can go on, but the last message is "
            f"{'empty' if last['role'] == 'assistant' else 'of another role'}."
        )
    if isinstance(content, str):
        return [*before, {**last, "content": content + FINAL}]
    assert isinstance(content, list)
    part = {**content[-1], "text": content[-1]["text"] + FINAL}
    return [*before, {**last, "content": [*content[:-1], part]}]


def before_final(text: str) -> str:
    """Return what a template made up to the end of the text that is to go on.

    Raises UsageError if the template does not show that text.
    """
    at = text.rfind(FINAL.rstrip())
    if at < 0:
        raise UsageError("the chat template does not show the message that is to go on.")
    return text[:at] if text.startswith(FINAL, at) else text[:at].rstrip()
