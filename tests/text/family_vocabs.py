"""Small vocabularies of the families beside byte-level and SentencePiece BPE, as metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence

import numpy as np
import sentencepiece
from golden_texts import TEXTS
from tokenizers import Regex
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer, Replace
from tokenizers.pre_tokenizers import BertPreTokenizer, Split
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from trained_vocab import Metadata, corpus, pieces_of

from quantcli.text.vocabulary import Kind

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
GEMMA4_CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "<|turn>", "<|tool_response>")
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# What a table of characters does, in small: widths, ligatures, accents, spaces, and nothing at all.
RULES = {
    "\t": " ",
    "\n": " ",
    "\u00a0": " ",
    "\u3000": " ",
    "\u200b": "",
    "\uff0c": ",",
    "\u00bd": "1\u20442",
    "\ufb01": "fi",
    "e\u0301": "\u00e9",
    "a\u0301": "\u00e1",
    "\u00b2": "2",
}


def character_merges() -> tuple[list[str], list[str]]:
    """Return the tokens and merges of a BPE over characters, trained on lines."""
    pipeline = Pipeline(BPE())
    pipeline.normalizer = Replace(" ", SPACE)
    pipeline.pre_tokenizer = Split(Regex(r"\n+|[^\n]+"), "isolated")
    trainer = BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=120)
    pipeline.train_from_iterator([*corpus(), "a\n\n\nb\n\n\nc" * 9], trainer)
    model = json.loads(pipeline.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


def character_metadata(
    tokens: Sequence[str], merges: Sequence[str], model: str = "gemma4", pre: str = "gemma4"
) -> Metadata:
    """Return the metadata of a BPE over characters: merges, bytes, control tokens, HTML."""
    html = ("<b>", "</s>", "  ")
    plain = [token for token in tokens if token not in html]
    kinds = [Kind.NORMAL] * len(plain) + [Kind.BYTE] * 256
    kinds += [Kind.CONTROL] * len(GEMMA4_CONTROL) + [Kind.USER_DEFINED] * len(html)
    start = len(plain) + 256
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*plain, *BYTES, *GEMMA4_CONTROL, *html],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": start + 1,
        "tokenizer.ggml.bos_token_id": start + 2,
        "tokenizer.ggml.unknown_token_id": start + 3,
        "tokenizer.ggml.add_bos_token": False,
    }


def trained_unigram() -> sentencepiece.SentencePieceProcessor:
    """Return a unigram model with a table of characters, as its makers would load it."""
    model = io.BytesIO()
    lines = [line for text in corpus() for line in text.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=310,
        character_coverage=0.98,
        normalization_rule_tsv=str(_rules_file()),
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        max_sentence_length=100_000,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def _rules_file() -> str:
    import tempfile

    def code(text: str) -> str:
        return " ".join(f"{ord(character):X}" for character in text)

    with tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False) as file:
        file.writelines(f"{code(old)}\t{code(new)}\n" for old, new in RULES.items())
    return file.name


def unigram_parts(
    processor: sentencepiece.SentencePieceProcessor,
) -> tuple[list[tuple[str, float, int]], bytes]:
    """Return the pieces of a model, and its table of characters."""
    normalizer = dict(_fields(processor.serialized_model_proto()))[3]
    return pieces_of(processor), dict(_fields(normalizer))[2]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a protocol buffer that have a length."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 2:
            length = varint()
            yield tag >> 3, message[at : at + length]
            at += length
        elif tag & 7 == 0:
            varint()
        else:
            at += 8 if tag & 7 == 1 else 4


def unigram_metadata(
    pieces: Sequence[tuple[str, float, int]],
    table: bytes,
    *,
    add_space_prefix: bool = True,
    merge_spaces: bool = True,
) -> Metadata:
    """Return the metadata of a unigram model."""
    tokens, scores, kinds = zip(*pieces, strict=True)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(table, np.uint8),
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
        "tokenizer.ggml.remove_extra_whitespaces": merge_spaces,
    }


def wordpieces() -> list[str]:
    """Return BERT's pieces as their makers spell them, trained on the corpus."""
    pipeline = Pipeline(WordPiece(unk_token="[UNK]"))
    pipeline.normalizer = BertNormalizer()
    pipeline.pre_tokenizer = BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=600, show_progress=False, special_tokens=list(BERT_SPECIAL), limit_alphabet=150
    )
    pipeline.train_from_iterator([*corpus(), *TEXTS.values()], trainer)
    vocabulary = pipeline.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def wordpiece_metadata(pieces: Sequence[str], *, lowercase: bool = True) -> Metadata:
    """Return the metadata of BERT's pieces, spelled as GGUF has them."""
    special = set(BERT_SPECIAL)
    tokens = [
        piece if piece in special else piece[2:] if piece.startswith("##") else SPACE + piece
        for piece in pieces
    ]
    kinds = [Kind.CONTROL if piece in special else Kind.NORMAL for piece in pieces]
    kinds[pieces.index("[UNK]")] = Kind.UNKNOWN
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.padding_token_id": pieces.index("[PAD]"),
        "tokenizer.ggml.unknown_token_id": pieces.index("[UNK]"),
        "tokenizer.ggml.bos_token_id": pieces.index("[CLS]"),
        "tokenizer.ggml.seperator_token_id": pieces.index("[SEP]"),
        "tokenizer.ggml.mask_token_id": pieces.index("[MASK]"),
        "tokenizer.ggml.normalizer.lowercase": lowercase,
    }
