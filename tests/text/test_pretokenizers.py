from __future__ import annotations

import pytest
from hypothesis import given
from random_texts import TEXT
from tokenizers import Regex
from tokenizers.pre_tokenizers import PreTokenizer as Part
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.pre_tokenizers import Split

from quantcli.errors import UnsupportedModel
from quantcli.text.pretokenizers import PRETOKENIZERS, pretokenizer


def splitter(pre: str) -> Part:
    return InTurn([Split(Regex(p), "isolated") for p in pretokenizer(pre).patterns])


def words(pre: str, text: str) -> list[str]:
    return [word for word, _ in splitter(pre).pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", sorted(PRETOKENIZERS))
@given(text=TEXT)
def test_splitting_loses_nothing(pre: str, text: str) -> None:
    assert "".join(words(pre, text)) == text


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'll pay 1234\n\n now", ["I", "'ll", " pay", " 1234", "\n\n", " now"]),
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("llama-bpe", "I'LL pay 1234!\n", ["I", "'LL", " pay", " ", "123", "4", "!\n"]),
        ("qwen2", "x12 (a)\r\n", ["x", "1", "2", " (", "a", ")\r\n"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("qwen2", "e\u0301a", ["e", "\u0301a"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("tekken", "HelloWorld's 12", ["Hello", "World", "'s", " ", "1", "2"]),
        (
            "deepseek-v3",
            "a\u4eca\u5929b +x 1234",
            ["a", "\u4eca\u5929", "b", " +", "x", " ", "123", "4"],
        ),
        ("deepseek-coder", "a.b 12", ["a", ".", "b", " ", "1", "2"]),
        ("falcon", "a=b 1234", ["a", "=", "b", " ", "123", "4"]),
        ("superbpe", "to be 1234567", ["to be ", "1", "234", "567"]),
        ("tiny_aya", "1234567 a1234b", ["1", "234", "567", " a", "123", "4", "b"]),
        ("ufakzeka", "Ankara'da 12", ["Ankara", "'da", " ", "1", "2"]),
        ("bloom", "one, two", ["one", ",", " two"]),
        ("exaone-moe", "one two 3", ["one two", " ", "3"]),
        ("youtu", "\uac00\u4eca\uff01aB", ["\uac00", "\u4eca", "\uff01", "a", "B"]),
        ("minicpm5", "a1234", ["a", "123", "4"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("chameleon", "a\t  IMGIMGAZb", ["a", "\t", "  ", "IMGIMGAZ", "b"]),
    ],
)
def test_text_is_split_as_the_models_were_trained(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


def test_the_table_is_sorted() -> None:
    assert list(PRETOKENIZERS) == sorted(PRETOKENIZERS)


COMMON = """
    llama-bpe llama3 lfm2 falcon3 pixtral dbrx smaug-bpe glm4 chatglm-bpe qwen2 deepseek-r1-qwen
    megrez stablelm2 hunyuan qwen35 gpt-4o llama4 tekken gpt-2 phi-2 mpt olmo exaone4 modern-bert
    smollm starcoder refact command-r codeshell exaone mellum2 deepseek-v3 hunyuan-dense joyai-llm
    deepseek-llm deepseek-coder falcon bloom viking superbpe minicpm5 default
"""


@pytest.mark.parametrize("pre", COMMON.split())
def test_the_common_names_are_known(pre: str) -> None:
    assert pretokenizer(pre).patterns


@pytest.mark.parametrize("pre", ["gemma4", "kimi-k3", "LLAMA-BPE", ""])
def test_a_name_that_is_not_in_the_table_is_refused(pre: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"tokenizer.ggml.pre is '{pre}'.*Known: a.x-4.0, "):
        pretokenizer(pre)
