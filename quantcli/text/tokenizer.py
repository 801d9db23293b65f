"""The tokenizer that everything else sees: text to ids and back, with the rules for specials."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol

from quantcli.text.special import Matcher, Specials
from quantcli.text.vocabulary import Kind, Vocabulary, of_kind

_SURROGATES = re.compile("[\ud800-\udfff]")


class Algorithm(Protocol):
    """How a family of vocabularies cuts plain text into tokens."""

    drops_leading_space: bool

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of text in which no special token is looked for; never a control token.

        after_special   whether a special token or nothing at all comes before
        """
        ...

    def token_bytes(self, text: str, kind: int) -> bytes:
        """Return the bytes of a normal, unused or byte token with this spelling."""
        ...


class Tokenizer:
    """Text to ids and back.

    n_vocab   how many tokens there are; the model's output may have more rows, which mean nothing
    bos, eos  the ids of the tokens that begin and end a text, if the model has them
    eog       every token that ends an answer
    add_bos   whether a prompt starts with BOS
    notes     what was odd about the vocabulary but could be mended, one sentence each
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        specials: Specials,
        algorithm: Algorithm,
        *,
        strip_after: Collection[int] = (),
        end: int | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        """Join a vocabulary, what its special tokens are, and the algorithm for it.

        strip_after   control tokens that swallow the white space after them
        end           the token behind a whole text; None for EOS, if the vocabulary says so
        """
        texts, kinds = vocabulary.texts, specials.kinds
        self.n_vocab = len(texts)
        self.bos = vocabulary.ids.get("bos")
        self.eos = vocabulary.ids.get("eos")
        self.eog = specials.ends
        self.add_bos = vocabulary.add_bos and self.bos is not None
        self.notes = (*vocabulary.notes, *notes)
        self._end = self.eos if end is None and vocabulary.add_eos else end
        self._texts, self._kinds = texts, kinds
        self._hidden = specials.hidden
        self._algorithm = algorithm
        control = of_kind(kinds, *_CONTROL)
        self._control = Matcher({texts[i]: i for i in control}, strip_after)
        user_defined = of_kind(kinds, Kind.USER_DEFINED)
        self._user_defined = Matcher({texts[i]: i for i in user_defined})

    @property
    def control_texts(self) -> Iterable[str]:
        """The spellings of the control tokens."""
        return self._control.tokens.keys()

    @property
    def drops_leading_space(self) -> bool:
        """Whether one space before a whole text stands for nothing."""
        return self._algorithm.drops_leading_space

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of a text.

        add_special     add BOS and EOS where the model wants them; a BOS that the text spells and
                        `parse_special` finds is not doubled
        parse_special   read spellings of control tokens as those tokens. Never for a user's text.

        User-defined tokens are always found, as in Hugging Face's tokenizers. Halves of surrogate
        pairs are joined; a half that stands alone becomes U+FFFD.
        """
        text = whole_characters(text)
        pieces = self.split_control(text) if parse_special else (text,)
        ids = self.encode_pieces(pieces)
        if not add_special:
            return ids
        ids = self.with_bos(ids)
        return ids if self._end is None else [*ids, self._end]

    def split_control(self, text: str) -> Iterable[str | int]:
        """Return the control tokens that a text spells, and the text between them, in order."""
        return self._control.split(text)

    def encode_pieces(self, pieces: Iterable[str | int]) -> list[int]:
        """Return the ids of plain texts and of the control tokens between them."""
        ids: list[int] = []
        after_special = True
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
                continue
            for part in self._user_defined.split(piece):
                if isinstance(part, int):
                    ids.append(part)
                else:
                    ids += self._algorithm.encode(part, after_special=after_special)
                after_special = isinstance(part, int)
        return ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """Return ids with BOS before them, if the model wants it and it is not there."""
        if not self.add_bos or self.bos is None or ids[:1] == [self.bos]:
            return ids
        return [self.bos, *ids]

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids, as that of a whole text; what is not UTF-8 becomes U+FFFD.

        special   spell control tokens out, too
        """
        data = b"".join(
            self.token_bytes(token) for token in ids if special or token not in self._hidden
        )
        if self.drops_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for, of a control token those of its spelling."""
        text, kind = self._texts[token], self._kinds[token]
        if kind in _SPELLED:
            return text.encode()
        return self._algorithm.token_bytes(text, kind)

    def token_text(self, token: int) -> str:
        r"""Return a token for display: its text, or bytes like \xe2 if it is no whole character."""
        return self.token_bytes(token).decode("utf-8", "backslashreplace")

    def is_control(self, token: int) -> bool:
        """Return whether a token is one that never comes out of a user's text."""
        return self._kinds[token] in _CONTROL

    def is_hidden(self, token: int) -> bool:
        """Return whether a token adds nothing to the text that is shown."""
        return token in self._hidden


_CONTROL = frozenset({Kind.CONTROL, Kind.UNKNOWN})
_SPELLED = frozenset({Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED})


def whole_characters(text: str) -> str:
    """Return text without lone surrogates: pairs are joined, single halves become U+FFFD."""
    if _SURROGATES.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
