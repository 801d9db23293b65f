"""Text out of tokens as they come, in whole characters only."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import Protocol

_Decoder = getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """What a stream needs of a tokenizer."""

    @property
    def drops_leading_space(self) -> bool:
        """Whether the space a text starts with was added by the tokenizer."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for."""
        ...

    def is_hidden(self, token: int) -> bool:
        """Return whether a token adds nothing to the text that is shown."""
        ...


class TextStream:
    """The text of tokens, pushed one by one.

    A character whose bytes come in several tokens is held back until it is whole. A byte becomes
    U+FFFD once nothing that may follow could make it part of a character.
    """

    def __init__(
        self, tokenizer: Detokenizer, *, at_start: bool = False, special: bool = False
    ) -> None:
        """Start a stream.

        at_start   the tokens begin a text, so that a leading space may stand for nothing; an
                   answer goes on after its prompt
        special    spell control tokens out, too
        """
        self._tokenizer = tokenizer
        self._decoder = _Decoder("replace")
        self._special = special
        self._drop_space = at_start and tokenizer.drops_leading_space

    def push(self, token: int) -> str:
        """Return the characters that are whole with this token."""
        if not self._special and self._tokenizer.is_hidden(token):
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._drop_space and data:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what was held back, as U+FFFD; the stream is as new, but within a text."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
