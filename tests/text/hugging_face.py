"""Hugging Face's tokenizers for the same vocabularies, put together from the library's own parts.

Patterns are spelled out again, as the models' tokenizer.json files have them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InTurn
from trained_vocab import Metadata

from quantcli.text.vocabulary import Kind

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

GPT2 = (ByteLevel(add_prefix_space=False, use_regex=True),)
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)


def _isolated(*patterns: str) -> tuple[PreTokenizer, ...]:
    return (*(Split(Regex(pattern), "isolated") for pattern in patterns), BYTES)


# name: the parts, whether text is normalized, and whether a whole word that is a token stays one
PIPELINES: dict[str, tuple[Sequence[PreTokenizer], bool, bool]] = {
    "command-r": ((Digits(individual_digits=True), *GPT2), True, False),
    "deepseek-v3": (_isolated(r"\p{N}{1,3}", CJK, DEEPSEEK3), False, False),
    "gpt-2": (GPT2, False, False),
    "gpt-4o": (_isolated(O200K), False, False),
    "llama-bpe": (_isolated(LLAMA3), False, True),
    "qwen2": (_isolated(QWEN2), True, False),
    "smollm": ((Digits(individual_digits=True), *GPT2), False, False),
    "tekken": (_isolated(TEKKEN), False, True),
}


def pipeline(metadata: Metadata) -> Pipeline:
    """Return the library's tokenizer for a vocabulary, with its control tokens as special."""
    parts, is_normalized, ignore_merges = PIPELINES[str(metadata["tokenizer.ggml.pre"])]
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {text: i for i, text in enumerate(tokens)}
    made = Pipeline(BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    made.pre_tokenizer = InTurn(list(parts))
    if is_normalized:
        made.normalizer = NFC()
    by_kind = {kind: [t for t, k in zip(tokens, kinds, strict=True) if k == kind] for kind in Kind}
    made.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in by_kind[Kind.CONTROL]]
    )
    made.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in by_kind[Kind.USER_DEFINED]]
    )
    assert made.get_vocab_size() == len(tokens)
    return made
