from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trained_vocab import Metadata, bpe_metadata

from quantcli.text import from_metadata
from quantcli.text.special import END_OF_FILL_TEXTS, END_TEXTS, Matcher, classify
from quantcli.text.vocabulary import Defaults, Kind, read_vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = (Kind(i) for i in range(1, 6))
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"


def classified(tokens: dict[str, int], **ids: int) -> dict[str, tuple[int, bool, bool]]:
    """Return for each token its kind, whether it is hidden, and whether it is an end."""
    made: Metadata = {
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": np.array(list(tokens.values()), np.int32),
        **{f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()},
    }
    what = classify(read_vocabulary(made, Defaults()))
    return {
        text: (what.kinds[i], i in what.hidden, i in what.ends) for i, text in enumerate(tokens)
    }


@pytest.mark.parametrize("kind", [NORMAL, CONTROL, USER_DEFINED])
@pytest.mark.parametrize("text", sorted((END_TEXTS | END_OF_FILL_TEXTS) - {"</s>"}))
def test_an_end_is_known_by_name_whatever_its_type(text: str, kind: int) -> None:
    assert classified({"a": NORMAL, text: kind})[text] == (CONTROL, True, True)


@pytest.mark.parametrize("kind", [NORMAL, CONTROL])
def test_s_is_an_end_unless_it_is_user_defined(kind: int) -> None:
    assert classified({"</s>": kind})["</s>"] == (CONTROL, True, True)
    assert classified({"</s>": USER_DEFINED})["</s>"] == (USER_DEFINED, False, False)


@pytest.mark.parametrize("name", ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
def test_an_end_is_known_by_its_key(name: str) -> None:
    assert classified({"a": NORMAL, "<x>": NORMAL}, **{name: 1})["<x>"][2]


@pytest.mark.parametrize("name", ["bos", "padding", "unknown"])
def test_other_keys_make_no_end(name: str) -> None:
    assert not classified({"a": NORMAL, "<x>": CONTROL}, **{name: 1})["<x>"][2]


@pytest.mark.parametrize("others", [("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>")])
def test_an_end_of_one_message_of_several_is_no_end(others: tuple[str, str]) -> None:
    made = classified({"<|end|>": CONTROL, **dict.fromkeys(others, CONTROL)})
    assert made["<|end|>"] == (CONTROL, False, False)
    assert all(made[text][2] for text in others)
    assert classified({"<|end|>": CONTROL, others[0]: CONTROL})["<|end|>"][2]


def test_s_is_normal_text_where_tool_responses_end() -> None:
    made = classified({"</s>": NORMAL, "<|tool_response>": CONTROL})
    assert made["</s>"] == (NORMAL, False, False)


@pytest.mark.parametrize("text", ["<|im_start|>", "<|START_OF_TURN_TOKEN|>", "<\uff5cUser\uff5c>"])
def test_a_token_spelled_like_a_marker_is_control_whatever_its_type(text: str) -> None:
    assert classified({text: NORMAL})[text] == (CONTROL, True, False)
    assert classified({text: USER_DEFINED})[text] == (CONTROL, False, False)


@pytest.mark.parametrize("text", ["<|", "|>", "<||>", "<| |>", "<think>", "<|a", "a<|b|>"])
def test_other_spellings_keep_their_type(text: str) -> None:
    assert classified({text: NORMAL})[text][0] == NORMAL
    assert classified({text: USER_DEFINED})[text] == (USER_DEFINED, False, False)


@pytest.mark.parametrize("text", ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"])
def test_channel_marks_are_control_but_shown(text: str) -> None:
    assert classified({text: CONTROL})[text] == (CONTROL, False, False)


@pytest.mark.parametrize(
    ("text", "kind"), [("<bos>", CONTROL), ("[BOS]", CONTROL), (",", NORMAL), ("the", NORMAL)]
)
def test_bos_and_eos_are_control_if_they_look_so(text: str, kind: int) -> None:
    assert classified({"a": NORMAL, text: NORMAL}, bos=1, eos=1)[text][0] == kind


def test_unused_and_unknown_tokens_are_hidden() -> None:
    made = classified({"<unk>": UNKNOWN, "[x]": UNUSED, "<t>": USER_DEFINED, "a": NORMAL})
    assert [hidden for _, hidden, _ in made.values()] == [True, True, False, False]


def test_a_marker_in_a_text_with_a_nul_is_no_token() -> None:
    assert classified({"x\0<|a|>": NORMAL, "<|b|>\0": NORMAL})["x\0<|a|>"][0] == NORMAL


def longest_first(words: list[str], text: str) -> list[str]:
    """Return what Matcher.split should, slowly: at each place the longest word."""
    parts: list[str] = []
    plain, at = "", 0
    while at < len(text):
        found = max((w for w in words if text.startswith(w, at)), key=len, default="")
        if found:
            parts += [plain, found] if plain else [found]
            plain = ""
        else:
            plain += text[at]
        at += len(found) or 1
    return [*parts, plain] if plain else parts


@given(
    st.lists(st.text("ab<\n", min_size=1, max_size=5), unique=True), st.text("ab<\nc", max_size=30)
)
def test_the_longest_token_is_found_at_each_place(words: list[str], text: str) -> None:
    matcher = Matcher({word: i for i, word in enumerate(words)})
    found = [words[p] if isinstance(p, int) else p for p in matcher.split(text)]
    assert found == longest_first(words, text)


def test_many_tokens_that_share_their_beginnings_are_found() -> None:
    words = ["x" * n for n in range(1, 1200)]
    matcher = Matcher({word: len(word) for word in words})
    assert list(matcher.split("x" * 1500 + "y")) == [1199, 301, "y"]


def test_an_empty_matcher_finds_nothing() -> None:
    assert list(Matcher({}).split("abc")) == ["abc"]
    assert list(Matcher({"a": 1}).split("")) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [("<u> \n a", [0, "a"]), ("<u>", [0]), ("<u> ", [0]), ("<u> <k> a", [0, 1, " a"])],
)
def test_white_space_after_some_tokens_belongs_to_them(text: str, parts: list[str | int]) -> None:
    assert list(Matcher({"<u>": 0, "<k>": 1}, strip_after=[0]).split(text)) == parts


def test_eog_of_a_tokenizer_are_its_ends() -> None:
    tokenizer = from_metadata(bpe_metadata([]))
    assert tokenizer.eog == {tokenizer.n_vocab - 6, tokenizer.n_vocab - 4}
    assert tokenizer.eos in tokenizer.eog
