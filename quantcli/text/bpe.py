"""Byte-level BPE vocabularies (`tokenizer.ggml.model` = gpt2), through the `tokenizers` library.

Control tokens are left out of the library's vocabulary, so that plain text can never become one. A
byte that has no token of its own, such as a rare control character, is dropped, as in Hugging
Face's tokenizers and llama.cpp.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from unicodedata import category

from tokenizers import Regex
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from quantcli.text import character_bpe
from quantcli.text.merges import plain_merges
from quantcli.text.pretokenizers import DEFAULT, PreTokenizer, pretokenizer
from quantcli.text.special import classify
from quantcli.text.tokenizer import Tokenizer
from quantcli.text.vocabulary import (
    PREFIX,
    Defaults,
    Kind,
    Metadata,
    read_vocabulary,
)

# Long text goes through the library in pieces of this many characters, cut where no word can be:
# it needs some 400 bytes for each token of a piece.
PIECE = 1 << 18
LONG_PIECE = 1 << 14
# The regular expressions give up after 10 million steps back, so a piece is never longer than this.
LONGEST_PIECE = 1 << 20
# Grouping digits from the right looks ahead over a whole number: quadratic, so these are cut too.
LONGEST_NUMBER = 99  # a multiple of 3


@cache
def _long_number(all_numbers: bool) -> re.Pattern[str]:
    """Return a pattern for what is cut: decimal digits, or all that Unicode calls numbers."""
    one = r"\d"
    if all_numbers:
        characters = map(chr, range(sys.maxunicode + 1))
        one = "[" + "".join(c for c in characters if category(c)[0] == "N") + "]"
    return re.compile(f"{one}{{{LONGEST_NUMBER + 1},}}")


def _byte_characters() -> dict[int, int]:
    """Return the byte of each character that a byte-level vocabulary writes for a byte.

    Printable bytes stand for themselves, the others are counted up from U+0100. Source: GPT-2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_characters()


class ByteLevelBPE:
    """Text to ids by merging bytes, within the words that a pre-tokenizer splits off."""

    drops_leading_space = False

    def __init__(self, model: BPE, row: PreTokenizer) -> None:
        """Join the merges and the way to split text."""
        splits = [Split(Regex(pattern), "isolated") for pattern in row.patterns]
        self._pipeline = Pipeline(model)
        self._pipeline.pre_tokenizer = Sequence(
            [*splits, ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        if row.nfc:
            self._pipeline.normalizer = NFC()
        self._row = row

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of plain text; what comes before it changes nothing."""
        ids: list[int] = []
        for piece in _pieces(text, self._row):
            if len(piece) < LONG_PIECE:
                ids += self._pipeline.encode(piece, add_special_tokens=False).ids
            else:  # half the time and memory, but it starts the library's threads
                ids += self._pipeline.encode_batch_fast([piece], add_special_tokens=False)[0].ids
        return ids

    def token_bytes(self, text: str, kind: int) -> bytes:
        """Return the bytes of a token with this spelling."""
        if kind == Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        try:
            return text.translate(BYTE_OF_CHARACTER).encode("latin-1")
        except UnicodeEncodeError:  # not spelled byte by byte: an added token without its type
            return text.encode()


def build(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of a file whose `tokenizer.ggml.model` is gpt2.

    Raises UnsupportedModel for a `tokenizer.ggml.pre` that is not known, CheckpointError for a
    vocabulary that is not consistent.
    """
    name = str(metadata.get(PREFIX + "pre", DEFAULT))
    if name in character_bpe.RULES:
        return character_bpe.build(metadata)
    notes = []
    if name == DEFAULT:
        notes.append(
            f"{PREFIX}pre does not say how to split text into words, so that answers may be worse "
            "than they should be. Convert the model anew."
        )
    row = pretokenizer(name)
    vocabulary = read_vocabulary(metadata, Defaults(add_bos=row.add_bos))
    specials = classify(vocabulary)
    ids, pairs = plain_merges(metadata, vocabulary, specials)
    model = BPE(vocab=ids, merges=pairs, ignore_merges=row.ignore_merges)
    return Tokenizer(vocabulary, specials, ByteLevelBPE(model, row), notes=notes)


def _pieces(text: str, row: PreTokenizer) -> Iterator[str]:
    """Yield a long text in pieces, cut where a word ends."""
    ends = re.compile(row.cut)
    start = 0
    while start < len(text):
        stop = len(text)
        if stop - start > PIECE:
            longest = min(start + LONGEST_PIECE, stop)
            cut = ends.search(text, start + PIECE, longest)
            stop = cut.start() if cut else longest
        piece = text[start:stop]
        start = stop
        if row.groups_digits:
            yield from _cut_numbers(piece, row)
        else:
            yield piece


def _cut_numbers(text: str, row: PreTokenizer) -> Iterator[str]:
    """Yield text in pieces that hold no very long number, cut where groups of three begin."""
    start = 0
    for match in _long_number(row.all_numbers).finditer(text):
        if row.groups_words or not _goes_on(text, match.end()):
            cut = match.start() + (match.end() - match.start()) % LONGEST_NUMBER
        else:
            cut = _number_start(text, match.start()) + LONGEST_NUMBER
        while cut < match.end():
            if cut > start:
                yield text[start:cut]
            start = cut
            cut += LONGEST_NUMBER
    if start < len(text):
        yield text[start:]


def _goes_on(text: str, at: int) -> bool:
    """Return whether a word goes on here: with a letter, a mark or an underscore."""
    return at < len(text) and (text[at] == "_" or category(text[at])[0] in "LM")


def _number_start(text: str, at: int) -> int:
    """Return where numbers that are no decimal digits, such as fractions, begin before digits."""
    while at and category(text[at - 1])[0] == "N":
        at -= 1
    return at
