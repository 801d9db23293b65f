"""A pipeline with a vocabulary of its own is recognised by how it splits words."""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from quantcli.text.hf_splits import splits_like

# As these models' tokenizer.json have them.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)


def split(pattern: str) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), "isolated"), BYTES])


def pipeline(
    splitter: PreTokenizer | None, *, normalizer: object = None, ignore_merges: bool = False
) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], ignore_merges=ignore_merges))
    if splitter is not None:
        made.pre_tokenizer = splitter
    if normalizer is not None:
        made.normalizer = normalizer
    return made


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (pipeline(GPT2), "gpt-2"),
        (pipeline(GPT2, normalizer=normalizers.NFC()), "mpt"),
        (pipeline(split(_WORDS + r"\p{N}{1,3}" + _REST), ignore_merges=True), "llama-bpe"),
        (pipeline(split(_WORDS + r"\p{N}" + _REST), normalizer=normalizers.NFC()), "qwen2"),
        (pipeline(Sequence([Digits(individual_digits=True), GPT2])), "starcoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_known_ways_have_their_names(made: Tokenizer, name: str) -> None:
    assert splits_like(made) == name


@pytest.mark.parametrize(
    "made",
    [
        pipeline(None),
        pipeline(ByteLevel(add_prefix_space=True)),
        pipeline(pre_tokenizers.Whitespace()),
        pipeline(split(r"\p{L}+|\p{N}{1,4}| ?[^\s\p{L}\p{N}]+|\s+")),
        pipeline(GPT2, normalizer=normalizers.Lowercase()),
        pipeline(GPT2, ignore_merges=True),
    ],
    ids=["none", "prefix", "whitespace", "digits of four", "lowercase", "ignores merges"],
)
def test_unknown_ways_have_none(made: Tokenizer) -> None:
    assert splits_like(made) is None
