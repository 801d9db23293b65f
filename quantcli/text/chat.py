"""Chat templates: messages to the text and ids that a model was trained on.

A template is a Jinja2 program in the model's file. It runs as in Hugging Face's transformers, but
bounded in steps, size and time; see chat_budget. A user's text never becomes a control token, even
if it spells one; see masking. Ordinary text gives exactly the ids that transformers gives for the
whole render.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

from quantcli.errors import CheckpointError, QuantcliError, UsageError
from quantcli.text.masking import Markers, Mask, Message, texts_in
from quantcli.text.tokenizer import Tokenizer, whole_characters
from quantcli.text.vocabulary import PREFIX, TOKENS, Metadata

if TYPE_CHECKING:
    from jinja2 import Template

    from quantcli.text.chat_budget import Budget
    from quantcli.text.chat_sandbox import BoundedEnvironment

KEY = "tokenizer.chat_template"
MAX_CHARACTERS = 1 << 17  # of a template; the longest in use have 17,000
# The spellings that a template may print, by the name that it has for each.
TOKEN_KEYS = (
    ("bos_token", "bos_token_id"),
    ("eos_token", "eos_token_id"),
    ("unk_token", "unknown_token_id"),
    ("pad_token", "padding_token_id"),
)
PROBE = "quartz7vex"  # a text that no template has of its own


class ChatTemplate:
    """A model's chat template.

    source   the program
    tokens   the spellings that it may print, by name, such as "bos_token"

    It is compiled when first used. Rendering may raise CheckpointError if the template is broken or
    does too much work, and UsageError if it refuses the conversation.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """Wrap a template; raise CheckpointError if it is too long."""
        if len(source) > MAX_CHARACTERS:
            raise CheckpointError(
                f"{KEY} has {len(source)} characters; at most {MAX_CHARACTERS} are allowed. "
                "Use the model without a chat template."
            )
        self.source = source
        self.tokens = dict(tokens or {})

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> ChatTemplate | None:
        """Return the template of a file, or None if it has none."""
        source = metadata.get(KEY)
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(f"{KEY} is no text; it should be a Jinja2 template.")
        tokens = metadata.get(TOKENS)
        texts = cast("Sequence[str]", tokens if isinstance(tokens, Sequence) else ())
        ids = ((name, metadata.get(PREFIX + key)) for name, key in TOKEN_KEYS)
        return cls(
            source,
            {name: texts[i] for name, i in ids if isinstance(i, int) and 0 <= i < len(texts)},
        )

    def render(
        self, messages: Iterable[Message], *, add_generation_prompt: bool = True, **extra: object
    ) -> str:
        """Return the text of a conversation. What it holds is trusted: see encode_chat.

        messages   dicts with a role and content: text, or parts {"type": "text", "text": ...};
                   other keys are passed on
        extra      further names that the template may use, such as tools

        Parts become one text, and a text becomes parts, if the template knows only the other. A
        system message goes before the first user's if the template knows none.
        """
        prepared = self._prepared(checked(messages))
        budget = self._budget({"messages": prepared, **extra})
        return self._rendered(
            prepared, budget, add_generation_prompt=add_generation_prompt, **extra
        )

    @cached_property
    def literals(self) -> Collection[str]:
        """The texts and names that stand in the template's program."""
        from jinja2 import nodes

        _ = self._compiled  # so that errors are told in one place
        tree = self._environment.parse(self.source)
        constants = [node.value for node in tree.find_all(nodes.Const)]
        names = [node.attr for node in tree.find_all(nodes.Getattr)]
        return frozenset(text for text in (*constants, *names) if isinstance(text, str) and text)

    # What the template can do with its input, found out by trying.

    @cached_property
    def takes_text(self) -> bool:
        """Whether the content of a message may be a text."""
        return PROBE in self._tried([{"role": "user", "content": PROBE}])

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the content of a message may be a list of parts."""
        parts = [{"type": "text", "text": PROBE}]
        text = self._tried([{"role": "user", "content": parts}])
        quoted = (f"'{PROBE}'", f'"{PROBE}"')  # the list as Python or JSON prints it
        return PROBE in text and not any(form in text for form in quoted)

    @cached_property
    def takes_system(self) -> bool:
        """Whether there may be a system message."""
        messages: list[Message] = [
            {"role": "system", "content": PROBE},
            {"role": "user", "content": "Hello"},
        ]
        if not self.takes_text:
            messages = [_as_parts(message) for message in messages]
        return PROBE in self._tried(messages)

    def _tried(self, messages: list[Message]) -> str:
        budget = self._budget({"messages": messages})
        try:
            return self._rendered(messages, budget, add_generation_prompt=True)
        except QuantcliError:
            if budget.is_spent:
                raise
            return ""

    def _prepared(self, messages: list[Message]) -> list[Message]:
        """Return messages in the form that the template knows."""
        lists = any(isinstance(message.get("content"), list) for message in messages)
        if lists and not self.takes_parts:
            messages = [_as_text(message) for message in messages]
        elif not self.takes_text and self.takes_parts:
            messages = [_as_parts(message) for message in messages]
        if messages[0]["role"] == "system" and len(messages) > 1 and not self.takes_system:
            messages = _without_system(messages)
        return messages

    @cached_property
    def _environment(self) -> BoundedEnvironment:
        from quantcli.text.chat_sandbox import BoundedEnvironment

        return BoundedEnvironment()

    @cached_property
    def _compiled(self) -> Template:
        from jinja2 import TemplateSyntaxError

        environment = self._environment
        try:
            with environment.use(self._budget({})):
                return environment.from_string(self.source)
        except TemplateSyntaxError as error:
            raise CheckpointError(_told(error.lineno, error.message or "")) from error
        except _failures() as error:
            raise CheckpointError(_told(None, error)) from error

    def _budget(self, values: Mapping[str, object]) -> Budget:
        from quantcli.text.chat_budget import Budget

        return Budget(len(self.source) + sum(map(len, texts_in(values))))

    def _rendered(self, messages: list[Message], budget: Budget, **names: object) -> str:
        template = self._compiled
        # Not self._environment, which another thread may have made anew.
        environment = cast("BoundedEnvironment", template.environment)
        values = {"tools": None, "documents": None, **self.tokens, "messages": messages, **names}
        chunks: list[str] = []
        try:
            with environment.use(budget):
                for chunk in template.root_render_func(template.new_context(values)):
                    budget.make(len(chunk))
                    chunks.append(chunk)
                return environment.concat(chunks)
        except _failures() as error:
            raise CheckpointError(_told(_line(error, template), error)) from error


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Iterable[Message],
    *,
    add_generation_prompt: bool = True,
    **extra: object,
) -> list[int]:
    """Return the ids of a conversation, in which only the template makes control tokens.

    Parameters as of ChatTemplate.render, which says what is raised. BOS is added if the model wants
    it and the template does not print it.
    """
    messages = checked(messages)
    markers = Markers(tuple(tokenizer.control_texts), template.literals)
    mask = Mask(markers, [messages, extra])
    try:
        hidden = mask.hide_messages(messages)
        hidden_extra = {name: mask.hide(value) for name, value in extra.items()}
        text = template.render(hidden, add_generation_prompt=add_generation_prompt, **hidden_extra)
        pieces = _revealed(tokenizer, text, mask)
        if not mask.is_empty and mask.is_ordinary:
            text = template.render(messages, add_generation_prompt=add_generation_prompt, **extra)
            pieces = _closer(pieces, list(tokenizer.split_control(whole_characters(text))))
    except RecursionError as error:
        raise UsageError("the messages are nested too deeply.") from error
    return tokenizer.with_bos(tokenizer.encode_pieces(pieces))


Pieces = list[str | int]


def _revealed(tokenizer: Tokenizer, text: str, mask: Mask) -> Pieces:
    """Return the control tokens in a masked text, and the text between them unmasked."""
    pieces = tokenizer.split_control(whole_characters(text))
    return [piece if isinstance(piece, int) else mask.reveal(piece) for piece in pieces]


def _closer(masked: Pieces, plain: Pieces) -> Pieces:
    """Return the pieces of the plain text if it has the same control tokens as the masked one.

    They differ where a template looks at the characters that were hidden, for example to escape
    a "<" for HTML.
    """
    tokens = [piece for piece in masked if isinstance(piece, int)]
    return plain if tokens == [piece for piece in plain if isinstance(piece, int)] else masked


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


def _as_text(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _as_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _without_system(messages: list[Message]) -> list[Message]:
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


def _failures() -> tuple[type[Exception], ...]:
    """Return what may come out of a template that is broken: it is a program that is not ours."""
    from jinja2 import TemplateError

    return (
        TemplateError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        MemoryError,
        NameError,
        RuntimeError,
        SyntaxError,
        TypeError,
        ValueError,
    )


def _line(error: BaseException, template: Template) -> int | None:
    """Return the line of the template in which an error arose."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _told(line: int | None, error: BaseException | str) -> str:
    where = KEY if line is None else f"{KEY}, line {line}"
    if isinstance(error, RecursionError):
        return f"{where}: it is nested or calls itself too deeply."
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{where}: {text[:300].rstrip('.')}."
