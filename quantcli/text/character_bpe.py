"""BPE over characters, with SentencePiece's sign for spaces and bytes for what is unknown.

Gemma 4's vocabulary is one (`tokenizer.ggml.model` = gemma4). Merges run over whole lines, as no
word ends at a space: it is the sign U+2581 within a token. `tokenizer.ggml.model` = whitespace has
such tokens without that sign: white space only parts words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE

from quantcli.text.merges import plain_merges
from quantcli.text.special import classify
from quantcli.text.tokenizer import Tokenizer
from quantcli.text.vocabulary import PREFIX, Defaults, Kind, Metadata, flag, read_vocabulary

SPACE = "\u2581"
# A line is merged as a whole, in pieces of at most this many characters.
LONGEST_LINE = 1 << 20

_LINES = re.compile("\n+|[^\n]+")


@dataclass(frozen=True, slots=True)
class Rule:
    """How a `tokenizer.ggml.pre` of this family treats text.

    joins_newlines   newlines in a row that are a token are that token, whatever the merges say
    adds_bos         a prompt starts with BOS even if the file denies it
    drops_spaces     white space parts words and is lost
    """

    joins_newlines: bool = False
    adds_bos: bool = False
    drops_spaces: bool = False


_GEMMA4 = Rule(joins_newlines=True, adds_bos=True)
# Source: the defaults in llama.cpp's llama_vocab for these names.
RULES = {
    "gemma4": _GEMMA4,
    "granite-embed-multi-311m": _GEMMA4,
    "sarvam-moe": Rule(),
    "whitespace": Rule(drops_spaces=True),
}


class CharacterBPE:
    """Text to ids by merging characters, line by line."""

    drops_leading_space = False

    def __init__(self, model: BPE, ids: dict[str, int], rule: Rule, *, lowercase: bool) -> None:
        """Join the merges, the ids of plain tokens and the rule for text."""
        self._pipeline = Pipeline(model)
        self._ids = ids
        self._rule = rule
        self._lowercase = lowercase

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of plain text; what comes before it changes nothing."""
        if self._rule.drops_spaces:
            words = (text.lower() if self._lowercase else text).split()
        else:
            words = _LINES.findall(text.replace(" ", SPACE))
        ids: list[int] = []
        for word in words:
            token = self._ids.get(word) if word[0] == "\n" and self._rule.joins_newlines else None
            if token is not None:
                ids.append(token)
                continue
            for start in range(0, len(word), LONGEST_LINE):
                piece = word[start : start + LONGEST_LINE]
                ids += self._pipeline.encode(piece, add_special_tokens=False).ids
        return ids

    def token_bytes(self, text: str, kind: int) -> bytes:
        """Return the bytes of a token with this spelling."""
        if kind == Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        return (text if self._rule.drops_spaces else text.replace(SPACE, " ")).encode()


def build(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of a file whose model or `tokenizer.ggml.pre` is of this family.

    Raises CheckpointError for a vocabulary that is not consistent.
    """
    model = str(metadata.get(PREFIX + "model"))
    rule = RULES[model if model in RULES else str(metadata.get(PREFIX + "pre"))]
    vocabulary = read_vocabulary(metadata, Defaults())
    if rule.adds_bos:
        vocabulary = replace(vocabulary, add_bos=True)
    specials = classify(vocabulary)
    ids, pairs = plain_merges(metadata, vocabulary, specials)
    merges = BPE(vocab=ids, merges=pairs, byte_fallback=True)
    lowercase = flag(metadata, "normalizer.lowercase", False)
    return Tokenizer(vocabulary, specials, CharacterBPE(merges, ids, rule, lowercase=lowercase))
