"""The options that choose a chat template and what it is given."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from quantcli.text import Tokenizer
    from quantcli.text.chat import ChatTemplate

# Names that a conversation itself sets.
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
)


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Which chat template is used, and the names that it gets."""

    chat_template: Annotated[
        str | None,
        Option(
            "--chat-template",
            "--chat-template-file",
            metavar="TEMPLATE",
            help="Use another chat template: one that the model's file names, a built-in one such "
            "as chatml or llama3, or a file with a Jinja template.",
            show_default=False,
        ),
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        Option(
            "--chat-template-kwargs",
            metavar="JSON",
            help="Names for the chat template, as in '{\"enable_thinking\": false}'.",
            show_default=False,
        ),
    ] = None

    def names(self) -> dict[str, object]:
        """Return the names for the template; raise UsageError if they are not what it can take."""
        import json

        if self.chat_template_kwargs is None:
            return {}
        try:
            names = json.loads(self.chat_template_kwargs)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"--chat-template-kwargs is no JSON: {error}. Give an object such as "
                "'{\"enable_thinking\": false}'."
            ) from None
        if not isinstance(names, dict):
            raise UsageError(
                f"--chat-template-kwargs is {type(names).__name__}; it should be an object such as "
                "'{\"enable_thinking\": false}'."
            )
        for name in names:
            if name in _RESERVED or not name.isidentifier():
                raise UsageError(f"--chat-template-kwargs cannot set {name!r} for a template.")
        return names

    def template(
        self, metadata: Mapping[str, object], tokenizer: "Tokenizer", *, is_needed: bool
    ) -> "tuple[ChatTemplate | None, str | None]":
        """Return the template for a model, and one sentence if it is a guess.

        is_needed   a model without a template gets one that its control tokens tell of

        Raises UnknownName for a template that is neither known nor a file, CheckpointError for one
        that is too long.
        """
        from quantcli.text.chat import ChatTemplate
        from quantcli.text.chat_choice import instead

        names = self.names()
        if self.chat_template is not None:
            return self._chosen(metadata, self.chat_template, names), None
        found = ChatTemplate.from_metadata(metadata, defaults=names)
        if found is None and is_needed:
            return instead(metadata, list(tokenizer.control_texts), names)
        return found, None

    def _chosen(
        self, metadata: Mapping[str, object], given: str, names: dict[str, object]
    ) -> "ChatTemplate":
        from quantcli.text.chat import ChatTemplate, spellings
        from quantcli.text.chat_choice import named

        if "{{" in given or "{%" in given:  # the template itself, as llama.cpp takes it, too
            return ChatTemplate(given, spellings(metadata), defaults=names)
        try:
            return named(metadata, given, names)
        except UnknownName as unknown:
            source = _file_text(given)
            if source is None:
                raise unknown from None
            return ChatTemplate(source, spellings(metadata), defaults=names)


def _file_text(name: str) -> str | None:
    """Return the text of a file, None if there is none; raise UsageError if it is no text."""
    from pathlib import Path

    try:
        path = Path(name).expanduser()
        if not path.is_file():
            return None
    except (OSError, RuntimeError, ValueError):  # no file can have such a name
        return None
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(1 << 20)  # a template that is longer is refused
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} is no text; it should be a Jinja template.")
    return text
