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
    "gpt2": "quantcli.text.bpe",
    "llama": "quantcli.text.spm",
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
        raise UnsupportedModel(
            f"{MODEL} is {described(model)}, a kind of tokenizer that quantcli does not have. "
            f"Known: {known}."
        )
    return cast("Tokenizer", import_module(module).build(metadata))
