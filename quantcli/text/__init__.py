"""Text to tokens and back: what a file's vocabulary and chat template say."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.text.tokenizer import Tokenizer
from quantcli.text.vocabulary import PREFIX, Metadata, described

__all__ = ["Tokenizer", "from_metadata"]

MODEL = PREFIX + "model"
# tokenizer.ggml.model: the module that builds it
ALGORITHMS = {
    "bert": "quantcli.text.wordpiece",
    "gemma4": "quantcli.text.character_bpe",
    "gpt2": "quantcli.text.bpe",
    "llama": "quantcli.text.spm",
    "t5": "quantcli.text.unigram",
    "whitespace": "quantcli.text.character_bpe",
}
# Those that llama.cpp knows besides, and what they are.
_OTHERS = {
    "hybriddna": "BPE with words of DNA",
    "none": "a file without a vocabulary",
    "no_vocab": "a file without a vocabulary",
    "plamo2": "the tokenizer of PLaMo 2",
    "rwkv": "the tokenizer of RWKV",
}


def from_metadata(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of a file, from its metadata.

    Raises UnsupportedModel for a kind of tokenizer or a way to split text that is not known, and
    CheckpointError for a vocabulary that is missing or not consistent.
    """
    model = metadata.get(MODEL)
    if model is None:
        raise CheckpointError(f"{MODEL} is missing; the file has no vocabulary.")
    module = ALGORITHMS.get(str(model))
    if module is None:
        known = ", ".join(sorted(ALGORITHMS))
        what = _OTHERS.get(str(model), "a kind of tokenizer")
        raise UnsupportedModel(
            f"{MODEL} is {described(model)}, {what}, which quantcli does not have. Known: {known}."
        )
    return cast("Tokenizer", import_module(module).build(metadata))
