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
from quantcli.text.chat_messages import (
    as_parts,
    as_text,
    before_final,
    checked,
    to_go_on,
    without_system,
)
from quantcli.text.masking import MESSAGE, NAMES, Markers, Mask, Message, Shape, texts_in
from quantcli.text.tokenizer import Tokenizer, whole_characters
from quantcli.text.vocabulary import PREFIX, TOKENS, Metadata

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Node

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
_SELECTING = ("reject", "rejectattr", "select", "selectattr")
PROBE = "quartz7vex"  # a text that no template has of its own


class ChatTemplate:
    """A model's chat template.

    source     the program
    tokens     the spellings that it may print, by name, such as "bos_token"
    defaults   further names that it may use, unless a conversation comes with its own
    for_tools  the template for conversations with tools, if that is another

    It is compiled when first used. Rendering may raise CheckpointError if the template is broken or
    does too much work, and UsageError if it refuses the conversation.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, object] | None = None,
        for_tools: str | None = None,
    ) -> None:
        """Wrap a template; raise CheckpointError if it is too long."""
        if len(source) > MAX_CHARACTERS:
            raise CheckpointError(
                f"{KEY} has {len(source)} characters; at most {MAX_CHARACTERS} are allowed. "
                "Use the model without a chat template."
            )
        self.source = source
        self.tokens = dict(tokens or {})
        self.defaults = dict(defaults or {})
        self.for_tools: ChatTemplate | None = None
        if for_tools is not None:
            self.for_tools = ChatTemplate(for_tools, tokens, defaults=defaults)

    @classmethod
    def from_metadata(
        cls, metadata: Metadata, *, defaults: Mapping[str, object] | None = None
    ) -> ChatTemplate | None:
        """Return the template of a file, or None if it has none.

        Where there are several, that is the default one, with that for tools beside it.
        """
        source = _source(metadata, KEY)
        if source is None:
            return None
        for_tools = _source(metadata, f"{KEY}.tool_use")
        return cls(source, spellings(metadata), defaults=defaults, for_tools=for_tools)

    def render(
        self,
        messages: Iterable[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **extra: object,
    ) -> str:
        """Return the text of a conversation. What it holds is trusted: see encode_chat.

        messages                 dicts with a role and content: text, or parts
                                 {"type": "text", "text": ...}; other keys are passed on
        continue_final_message   end in the text of the last message, an assistant's, to go on with
        extra                    further names that the template may use, such as tools

        Parts become one text, and a text becomes parts, if the template knows only the other. A
        system message goes before the first user's if the template knows none.
        """
        template = self.suited(extra)
        prepared = template.prepared(messages, continue_final_message=continue_final_message)
        names = {"add_generation_prompt": add_generation_prompt, **template.defaults, **extra}
        return template.text_of(prepared, names, continue_final_message=continue_final_message)

    def suited(self, extra: Mapping[str, object]) -> ChatTemplate:
        """Return the template for a conversation that has these further names."""
        return self.for_tools if self.for_tools is not None and extra.get("tools") else self

    def prepared(
        self, messages: Iterable[Message], *, continue_final_message: bool = False
    ) -> list[Message]:
        """Return messages in the form that the template knows; see render for what is raised."""
        messages = checked(messages)
        if continue_final_message:
            messages = to_go_on(messages)
        lists = any(isinstance(message.get("content"), list) for message in messages)
        if lists and not self.takes_parts:
            messages = [as_text(message) for message in messages]
        elif not self.takes_text and self.takes_parts:
            messages = [as_parts(message) for message in messages]
        if messages[0]["role"] == "system" and len(messages) > 1 and not self.takes_system:
            messages = without_system(messages)
        return messages

    def text_of(
        self,
        prepared: list[Message],
        names: Mapping[str, object],
        *,
        continue_final_message: bool = False,
    ) -> str:
        """Return the text of messages that `prepared` returned, with all further names."""
        names = {**names, "continue_final_message": continue_final_message}
        if continue_final_message:
            names["add_generation_prompt"] = False
        budget = self._budget({"messages": prepared, **names})
        text = self._rendered(prepared, budget, **names)
        return before_final(text) if continue_final_message else text

    @cached_property
    def literals(self) -> Collection[str]:
        """The texts and names that stand in the template's program."""
        from jinja2 import nodes

        _ = self._compiled  # so that errors are told in one place
        tree = self._environment.parse(self.source)
        names = [node.attr for node in tree.find_all(nodes.Getattr)]
        return frozenset(names) | _constants(tree)

    @cached_property
    def compared(self) -> Collection[str]:
        """Those of the literals that may be compared with a text: also items of lists and keys."""
        from jinja2 import nodes

        kinds = (nodes.Compare, nodes.Test, nodes.Literal, nodes.Filter)
        places = self._environment.parse(self.source).find_all(kinds)
        found = [
            _constants(place)
            for place in places
            if not isinstance(place, nodes.Const | nodes.TemplateData)
            and (not isinstance(place, nodes.Filter) or place.name in _SELECTING)
        ]
        return frozenset().union(*found)

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
            messages = [as_parts(message) for message in messages]
        return PROBE in self._tried(messages)

    def _tried(self, messages: list[Message]) -> str:
        budget = self._budget({"messages": messages})
        try:
            return self._rendered(messages, budget, add_generation_prompt=True)
        except QuantcliError:
            if budget.is_spent:
                raise
            return ""

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
    continue_final_message: bool = False,
    **extra: object,
) -> list[int]:
    """Return the ids of a conversation, in which only the template makes control tokens.

    Parameters as of ChatTemplate.render, which says what is raised. BOS is added if the model wants
    it and the template does not print it.
    """
    template = template.suited(extra)

    def rendered(prepared: list[Message], names: Mapping[str, object]) -> str:
        text = template.text_of(prepared, names, continue_final_message=continue_final_message)
        return whole_characters(text)

    try:
        prepared = template.prepared(messages, continue_final_message=continue_final_message)
        names = {"add_generation_prompt": add_generation_prompt, **template.defaults, **extra}
        texts = tuple(tokenizer.control_texts)
        markers = Markers(texts, template.literals, template.compared)
        mask = Mask(markers, [prepared, names])
        hidden = cast("list[Message]", mask.hide(prepared, MESSAGE))
        hidden_names = {
            name: mask.hide(value, NAMES.get(name, Shape())) for name, value in names.items()
        }
        pieces = _revealed(tokenizer, rendered(hidden, hidden_names), mask)
        if not mask.is_empty and mask.is_ordinary:
            plain = tokenizer.split_control(rendered(prepared, names))
            pieces = _closer(pieces, list(plain))
    except RecursionError as error:
        raise UsageError("the messages are nested too deeply.") from error
    return tokenizer.with_bos(tokenizer.encode_pieces(pieces))


Pieces = list[str | int]


def _revealed(tokenizer: Tokenizer, text: str, mask: Mask) -> Pieces:
    """Return the control tokens in a masked text, and the text between them unmasked."""
    pieces = tokenizer.split_control(text)
    return [piece if isinstance(piece, int) else mask.reveal(piece) for piece in pieces]


def _closer(masked: Pieces, plain: Pieces) -> Pieces:
    """Return the pieces of the plain text if it has the same control tokens as the masked one.

    They differ where a template looks at the characters that were hidden, for example to escape
    a "<" for HTML.
    """
    tokens = [piece for piece in masked if isinstance(piece, int)]
    return plain if tokens == [piece for piece in plain if isinstance(piece, int)] else masked


def _constants(node: Node) -> frozenset[str]:
    """Return the texts that stand in a part of a program."""
    from jinja2 import nodes

    values = [constant.value for constant in node.find_all(nodes.Const)]
    return frozenset(value for value in values if isinstance(value, str) and value)


def spellings(metadata: Metadata) -> dict[str, str]:
    """Return the spellings of special tokens by the names that templates have for them."""
    tokens = metadata.get(TOKENS)
    texts = cast("Sequence[str]", tokens if isinstance(tokens, Sequence) else ())
    ids = ((name, metadata.get(PREFIX + key)) for name, key in TOKEN_KEYS)
    return {name: texts[i] for name, i in ids if isinstance(i, int) and 0 <= i < len(texts)}


def _source(metadata: Metadata, key: str) -> str | None:
    """Return a template of a file."""
    source = metadata.get(key)
    if source is not None and not isinstance(source, str):
        raise CheckpointError(f"{key} is no text; it should be a Jinja2 template.")
    return source


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
