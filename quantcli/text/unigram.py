"""SentencePiece unigram vocabularies (`tokenizer.ggml.model` = t5), through `sentencepiece`.

The library only finds the most likely pieces. What comes before, replacing characters and marking
spaces, is done here: the library would not check the file's table of characters.
"""

from __future__ import annotations

from quantcli.text.character_map import CharacterMap
from quantcli.text.special import classify
from quantcli.text.spm import (
    SPACE,
    Processor,
    loaded,
    model_proto,
    piece_bytes,
    piece_kinds,
    read_scores,
)
from quantcli.text.tokenizer import Tokenizer
from quantcli.text.vocabulary import Defaults, Metadata, flag, read_vocabulary

# Source: llama.cpp's llama_vocab for this kind.
DEFAULTS = Defaults(eos=1, unknown=2, add_eos=True)


class SentencePieceUnigram:
    """Text to ids by the pieces whose scores add up to the most."""

    def __init__(
        self,
        processor: Processor,
        characters: CharacterMap | None,
        *,
        add_space_prefix: bool,
        merge_spaces: bool,
    ) -> None:
        """Wrap a loaded model.

        characters         what text is replaced by first, None for itself
        add_space_prefix   the first word gets a space before it
        merge_spaces       spaces in a row count as one, those at the ends as none
        """
        self._processor = processor
        self._characters = characters
        self._merge_spaces = merge_spaces
        self.drops_leading_space = add_space_prefix

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of plain text; what comes before it changes nothing."""
        if self._characters is not None:
            text = self._characters.replaced(text)
        if self._merge_spaces:  # then a space begins every word, the first one, too
            text = "".join(SPACE + word for word in text.split(" ") if word)
        else:
            prefix = SPACE if self.drops_leading_space and text.strip(" ") else ""
            text = prefix + text.replace(" ", SPACE)
        return list(self._processor.encode(text))

    def token_bytes(self, text: str, kind: int) -> bytes:
        """Return the bytes of a token with this spelling."""
        return piece_bytes(text, kind)


def build(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of a file whose `tokenizer.ggml.model` is t5.

    Raises CheckpointError for a vocabulary that is not consistent.
    """
    vocabulary = read_vocabulary(metadata, DEFAULTS)
    specials = classify(vocabulary)
    scores = read_scores(metadata, len(vocabulary.texts))
    kinds = piece_kinds(vocabulary, specials.kinds)
    algorithm = SentencePieceUnigram(
        loaded(model_proto(vocabulary.texts, scores, kinds, is_unigram=True)),
        CharacterMap.from_metadata(metadata),
        add_space_prefix=flag(metadata, "add_space_prefix", False),
        merge_spaces=flag(metadata, "remove_extra_whitespaces", False),
    )
    return Tokenizer(vocabulary, specials, algorithm)
