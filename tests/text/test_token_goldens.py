"""Stored texts have the ids that llama.cpp gives, but for differences that have a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from golden_texts import PRETOKENIZERS, TEXTS
from trained_vocab import Metadata, bpe_metadata, spm_metadata

from quantcli.checkpoint import open_checkpoint
from quantcli.text import Tokenizer, from_metadata

GOLDENS = Path(__file__).parent.parent / "goldens"
NORMALIZED = "Hugging Face's tokenizer has the normalizer NFC, llama.cpp has none"
MARKS = r"llama.cpp's pattern takes no marks (\p{M}) into words, the original does"
DIGITS = "the original splits digits one by one, llama.cpp keeps them together"
HTML = "</s> is HTML here, a user-defined token; llama.cpp takes it for the end of an answer"
DIFFERENCES = {
    ("bpe/command-r", "combining"): NORMALIZED,
    ("bpe/deepseek-llm", "byte_text"): DIGITS,
    ("bpe/deepseek-llm", "chinese"): DIGITS,
    ("bpe/deepseek-llm", "digits"): DIGITS,
    ("bpe/deepseek-llm", "mixed"): DIGITS,
    ("bpe/deepseek-llm", "other_numbers"): DIGITS,
    ("bpe/deepseek-llm", "urls"): DIGITS,
    ("bpe/gpt-4o", "combining"): MARKS,
    ("bpe/gpt-4o", "hindi"): MARKS,
    ("bpe/qwen2", "combining"): NORMALIZED,
    ("bpe/tekken", "combining"): MARKS,
    ("bpe/tekken", "hindi"): MARKS,
    ("gemma3", "control_text"): HTML,
}
TINY = (*(f"bpe/{pre}" for pre in PRETOKENIZERS), "spm", "spm/space")


@cache
def stored(name: str) -> dict[str, object]:
    content = json.loads((GOLDENS / f"tokens_{name}.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def tiny_metadata(case: str) -> Metadata:
    golden = stored("tiny")
    family, _, rest = case.partition("/")
    if family == "bpe":
        return bpe_metadata(golden["merges"], rest)
    pieces = [(text, score, kind) for text, score, kind in golden["pieces"]]
    return spm_metadata(pieces, add_space_prefix=rest == "space")


@cache
def tiny(case: str) -> Tokenizer:
    return from_metadata(tiny_metadata(case))


def texts_alike(case: str) -> Iterator[str]:
    return (name for name in TEXTS if (case, name) not in DIFFERENCES)


def check(case: str, tokenizer: Tokenizer, golden: dict[str, dict[str, list[int]]]) -> None:
    for name in texts_alike(case):
        text, plain = TEXTS[name], golden["plain"][name]
        special = golden["special"].get(name, plain)
        assert tokenizer.encode(text, add_special=False) == plain, name
        assert tokenizer.encode(text, add_special=False, parse_special=True) == special, name


@pytest.mark.parametrize("case", TINY)
def test_tiny_vocabularies_give_the_ids_of_llama_cpp(case: str) -> None:
    golden = stored("tiny")["cases"][case]
    check(case, tiny(case), golden)
    assert sorted(tiny(case).eog) == golden["ends"]


@pytest.mark.parametrize(("case", "name"), sorted(d for d in DIFFERENCES if d[0] in TINY))
def test_each_listed_difference_is_one(case: str, name: str) -> None:
    plain = stored("tiny")["cases"][case]["plain"][name]
    assert tiny(case).encode(TEXTS[name], add_special=False) != plain


@pytest.mark.model
def test_smollm2_gives_the_ids_of_llama_cpp(smollm2_path: Path) -> None:
    golden = stored("smollm2")
    with open_checkpoint(smollm2_path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
    check("smollm2", tokenizer, golden)
    assert sorted(tokenizer.eog) == golden["ends"]


@pytest.mark.model
def test_gemma3_gives_the_ids_of_llama_cpp(gemma3_path: Path) -> None:
    golden = stored("gemma3")
    with open_checkpoint(gemma3_path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
    check("gemma3", tokenizer, golden)
    html = tokenizer.encode("</s>", add_special=False)
    assert sorted(tokenizer.eog) == [i for i in golden["ends"] if [i] != html]
    text, there = TEXTS["control_text"], golden["plain"]["control_text"]
    assert html[0] in tokenizer.encode(text, add_special=False)
    assert html[0] not in there
