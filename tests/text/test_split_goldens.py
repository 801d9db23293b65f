"""Every way to split text that llama.cpp has gives its ids, but for differences with a reason."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from golden_texts import LLAMA_CPP_NAMES, SPLIT_TEXTS, TEXTS
from trained_vocab import bpe_metadata

from quantcli.text import Tokenizer, from_metadata
from quantcli.text.character_bpe import RULES
from quantcli.text.pretokenizers import PRETOKENIZERS

GOLDENS = Path(__file__).parent.parent / "goldens"
ALL_TEXTS = {**TEXTS, **SPLIT_TEXTS}

# The model's own tokenizer decides where llama.cpp departs from it. Reasons, and the texts:
# its tokenizer.json brings text to normal form C, llama.cpp does not;
NFC = frozenset({"combining", "hangul_parts"})
# its pattern takes marks into words, llama.cpp's has only letters;
MARKS = frozenset({"combining", "hindi"})
# its pattern splits where a capital follows, llama.cpp's regular expressions see letters only;
CASES = frozenset({"accented_capitals"})
# it splits digits one by one, llama.cpp keeps them together;
DIGITS = frozenset(
    {"digits", "other_numbers", "urls", "chinese", "byte_text", "mixed", "long_numbers"}
    | {"number_kinds", "mixed_scripts"}
)
# \b and \d know Unicode in it; in llama.cpp they are ASCII's, and letters count as no word.
BOUNDS = frozenset({"mixed", "long_numbers"})
DECIMALS = frozenset({"number_kinds"})
DIFFERENCES: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ["command-r", "deepseek-r1-qwen", "f2llmv2", "hunyuan", "kormo", "megrez"], NFC
    ),
    **dict.fromkeys(["modern-bert", "mpt", "olmo", "qwen2", "qwen35", "stablelm2"], NFC),
    **dict.fromkeys(["gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie", "tekken"], MARKS),
    "cohere2moe": CASES | BOUNDS,
    "deepseek-llm": DIGITS,
    "kimi-k2": CASES | MARKS,
    "superbpe": DECIMALS,
    "tiny_aya": CASES | BOUNDS,
    "youtu": CASES,
}


@cache
def golden() -> dict[str, dict[str, object]]:
    content = json.loads((GOLDENS / "tokens_splits.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@cache
def merges() -> list[str]:
    content = json.loads((GOLDENS / "tokens_tiny.json").read_text(encoding="utf-8"))
    return list(content["merges"])


@cache
def tokenizer(name: str) -> Tokenizer:
    return from_metadata(bpe_metadata(merges(), name))


def expected(name: str) -> dict[str, list[int]]:
    found = golden()["names"][name]
    if isinstance(found, str):  # the same as another's
        return expected(found)
    return {**golden()["base"], **found}


def test_every_name_of_llama_cpp_is_known() -> None:
    names = {*LLAMA_CPP_NAMES.split(), "gemma4", "granite-embed-multi-311m", "sarvam-moe"}
    assert names | {"whitespace"} == PRETOKENIZERS.keys() | RULES.keys() | {"default"}


@pytest.mark.parametrize("name", LLAMA_CPP_NAMES.split())
def test_a_way_to_split_text_gives_the_ids_of_llama_cpp(name: str) -> None:
    ids = expected(name)
    wrong = {
        key
        for key, text in ALL_TEXTS.items()
        if tokenizer(name).encode(text, add_special=False) != ids[key]
    }
    assert wrong == DIFFERENCES.get(name, frozenset())


@pytest.mark.parametrize("name", LLAMA_CPP_NAMES.split())
def test_text_comes_back(name: str) -> None:
    for text in ALL_TEXTS.values():
        decoded = tokenizer(name).decode(tokenizer(name).encode(text, add_special=False))
        if not PRETOKENIZERS[name].nfc:
            assert decoded == text
