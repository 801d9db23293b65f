"""BERT's WordPiece vocabularies (`tokenizer.ggml.model` = bert).

GGUF spells a piece that begins a word with U+2581 before it, others as they are. Each word is cut
into the longest pieces from the left; one that cannot be is the unknown token.
"""

from __future__ import annotations

from unicodedata import category, normalize

from quantcli.text.special import classify
from quantcli.text.tokenizer import Tokenizer
from quantcli.text.vocabulary import Defaults, Kind, Metadata, flag, of_kind, read_vocabulary

SPACE = "\u2581"
# Source: llama.cpp's llama_vocab for this kind, and BERT's own vocabulary.
DEFAULTS = Defaults(bos=101, unknown=100, separator=102, add_bos=True)

_LEFT_OUT = ("Cc", "Cf", "Co")  # control, format and private characters
# Blocks of Chinese characters, each a word of its own. Source: BERT's BasicTokenizer.
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Text to ids by the longest pieces of each word."""

    drops_leading_space = True

    def __init__(
        self, ids: dict[str, int], unknown: int, *, lowercase: bool, strip_accents: bool
    ) -> None:
        """Wrap pieces by spelling.

        lowercase       text is put into small letters first
        strip_accents   accents are left out
        """
        self._ids = ids
        self._unknown = unknown
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._longest = max(map(len, ids), default=1)
        self._signs: dict[str, str] = {}

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of plain text; what comes before it changes nothing."""
        if self._strip_accents:
            text = normalize("NFD", text)
        signs = self._signs
        for character in set(text) - signs.keys():
            signs[character] = self._sign(character)
        ids: list[int] = []
        for word in "".join([signs[character] for character in text]).split():
            ids += self._pieces(SPACE + word)
        return ids

    def token_bytes(self, text: str, kind: int) -> bytes:
        """Return the bytes of a token with this spelling."""
        return text.replace(SPACE, " ").encode()

    def _sign(self, character: str) -> str:
        """Return what a character becomes: itself, nothing, a space, or a word of its own."""
        kind, code = category(character), ord(character)
        if character.isspace() and not 0x1C <= code <= 0x1F:  # separators, which Unicode calls none
            return " "
        if code in (0, 0xFFFD) or kind in _LEFT_OUT or (self._strip_accents and kind == "Mn"):
            return ""
        if self._lowercase:
            character = character.lower()
        is_word = kind[0] == "P" or (code < 0x7F and kind[0] == "S")
        if is_word or any(first <= code <= last for first, last in _CHINESE):
            return f" {character} "
        return character

    def _pieces(self, word: str) -> list[int]:
        ids, at = [], 0
        while at < len(word):
            for stop in range(min(len(word), at + self._longest), at, -1):
                token = self._ids.get(word[at:stop])
                if token is not None:
                    ids.append(token)
                    at = stop
                    break
            else:
                return [self._unknown]
        return ids


def build(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of a file whose `tokenizer.ggml.model` is bert.

    Raises CheckpointError for a vocabulary that is not consistent.
    """
    vocabulary = read_vocabulary(metadata, DEFAULTS)
    specials = classify(vocabulary)
    ids = dict(vocabulary.by_text)
    for token in of_kind(specials.kinds, Kind.CONTROL, Kind.UNKNOWN, Kind.UNUSED):
        del ids[vocabulary.texts[token]]
    lowercase = flag(metadata, "normalizer.lowercase", True)
    algorithm = WordPiece(
        ids,
        vocabulary.ids.get("unknown", 0),
        lowercase=lowercase,
        strip_accents=flag(metadata, "normalizer.strip_accents", lowercase),
    )
    return Tokenizer(vocabulary, specials, algorithm, end=vocabulary.ids.get("separator"))
