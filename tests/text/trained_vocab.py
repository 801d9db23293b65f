"""Vocabularies as a file's metadata: built from merges or pieces, or trained in a moment."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import sentencepiece
from golden_texts import TEXTS
from tiny_vocab import byte_alphabet
from tokenizers import Regex
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.trainers import BpeTrainer

from quantcli.text.vocabulary import Kind

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
BPE_CONTROL = (END, START, STOP)
BPE_USER_DEFINED = ("<think>", "</think>", "\t\t")
SPM_CONTROL = ("<s>", "</s>")

Metadata = dict[str, Any]


def bpe_metadata(
    merges: Sequence[str],
    pre: str = "gpt-2",
    control: Iterable[str] = BPE_CONTROL,
    user_defined: Iterable[str] = BPE_USER_DEFINED,
) -> Metadata:
    """Return the metadata of a byte-level BPE model: bytes, merges, control and other tokens."""
    plain = list(dict.fromkeys([*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]))
    tokens = [*plain, *control, *user_defined]
    kinds = [Kind.NORMAL] * len(plain)
    kinds += [Kind.CONTROL for _ in control] + [Kind.USER_DEFINED for _ in user_defined]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": len(plain),
        "tokenizer.ggml.eos_token_id": len(plain) + 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def spm_metadata(
    pieces: Sequence[tuple[str, float, int]], *, add_space_prefix: bool = False
) -> Metadata:
    """Return the metadata of a SentencePiece model from texts, scores and kinds."""
    tokens, scores, kinds = zip(*pieces, strict=True)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.unknown_token_id": tokens.index("<unk>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def corpus() -> list[str]:
    """Return lines to train on: the texts of the goldens, and their words in other orders."""
    order = random.Random(7)
    texts = [text for name, text in TEXTS.items() if "control_text" not in name]
    words = " ".join(texts).split()
    shuffled = [" ".join(order.sample(words, 40)) for _ in range(40)]
    return [*texts, *shuffled]


@cache
def trained_merges() -> tuple[str, ...]:
    """Return merges that go over all bounds of words, so that each rule for splitting shows."""
    pipeline = Pipeline(BPE())
    pipeline.pre_tokenizer = InTurn(
        [
            Split(Regex(r"[\s\S]{1,48}"), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=ByteLevel.alphabet())
    pipeline.train_from_iterator(corpus(), trainer)
    merges = json.loads(pipeline.to_str())["model"]["merges"]
    return tuple(m if isinstance(m, str) else " ".join(m) for m in merges)


def trained_processor(
    *, add_space_prefix: bool = False, user_defined: Sequence[str] = ()
) -> sentencepiece.SentencePieceProcessor:
    """Return a SentencePiece model trained on the corpus, as its makers would load it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in corpus() for line in text.splitlines() if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_space_prefix,
        split_by_whitespace=False,
        max_sentence_length=100_000,
        user_defined_symbols=[text.replace(" ", "\u2581") for text in user_defined],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_of(
    processor: sentencepiece.SentencePieceProcessor, user_defined: Sequence[str] = ()
) -> list[tuple[str, float, int]]:
    """Return texts, scores and kinds as a converter writes them."""
    pieces = []
    for i in range(processor.vocab_size()):
        kind = Kind.NORMAL
        text = processor.id_to_piece(i)
        if processor.is_unknown(i):
            kind = Kind.UNKNOWN
        elif processor.is_control(i):
            kind = Kind.CONTROL
        elif processor.is_byte(i):
            kind = Kind.BYTE
        elif processor.is_unused(i):
            kind = Kind.UNUSED
        elif text.replace("\u2581", " ") in user_defined:
            kind, text = Kind.USER_DEFINED, text.replace("\u2581", " ")
        pieces.append((text, processor.get_score(i), int(kind)))
    return pieces
