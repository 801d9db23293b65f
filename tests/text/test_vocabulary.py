from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trained_vocab import Metadata, bpe_metadata

from quantcli.errors import CheckpointError
from quantcli.text.vocabulary import Defaults, Kind, Vocabulary, read_vocabulary, spelled_like


def vocabulary(tokens: list[str], kinds: list[int] | None = None, **keys: object) -> Vocabulary:
    made: Metadata = {"tokenizer.ggml.tokens": tokens}
    if kinds is not None:
        made["tokenizer.ggml.token_type"] = np.array(kinds, np.int32)
    made |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return read_vocabulary(made, Defaults(bos=1))


def test_ids_outside_the_vocabulary_are_dropped_with_a_note() -> None:
    read = vocabulary(["a", "b"], bos_token_id=2, eos_token_id=np.uint32(1))
    assert read.ids == {"eos": 1}
    assert read.notes == (
        "tokenizer.ggml.bos_token_id is 2, but there are 2 tokens; it is ignored.",
    )


def test_a_default_id_outside_the_vocabulary_is_dropped_without_a_note() -> None:
    read = vocabulary(["a"])
    assert read.ids == {}
    assert read.notes == ()


def test_empty_entries_become_unused_with_names_of_their_own() -> None:
    read = vocabulary(["a", "", "b", ""], [1, 1, 1, 1])
    assert read.texts == ["a", "[UNUSED_1]", "b", "[UNUSED_3]"]
    assert list(read.kinds) == [Kind.NORMAL, Kind.UNUSED, Kind.NORMAL, Kind.UNUSED]
    assert read.by_text == {text: i for i, text in enumerate(read.texts)}


def test_padding_entries_that_converters_add_are_unused() -> None:
    read = vocabulary(["a", "[PAD1]", "[PAD7]", "[PAD]"], [1, 4, 4, 3])
    assert list(read.kinds) == [1, Kind.UNUSED, 4, 3]


@pytest.mark.parametrize("unused", [0, 2])
def test_of_two_equal_tokens_an_unused_one_is_renamed(unused: int) -> None:
    kinds = [1, 1, 1]
    kinds[unused] = Kind.UNUSED
    read = vocabulary(["a", "b", "a"], kinds)
    assert read.texts[unused] == f"[UNUSED_{unused}]"
    assert read.by_text["a"] == 2 - unused


def test_two_equal_tokens_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokens\[0\] and \[2\] are both 'a'"):
        vocabulary(["a", "b", "a"], [1, 1, 3])


def test_a_byte_token_with_another_spelling_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokens\[1\] is '0x41', but .* calls it a byte"):
        vocabulary(["a", "0x41"], [1, 6])


def test_types_that_mean_nothing_count_as_normal() -> None:
    assert list(vocabulary(["a", "b", "c"], [0, 7, -1]).kinds) == [1, 1, 1]


def test_without_types_bytes_and_special_tokens_are_inferred() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x0g>", "a"]
    read = vocabulary(tokens, eos_token_id=2, unknown_token_id=0)
    assert list(read.kinds) == [2, 3, 3, 6, 1, 1]


def test_a_wrong_eos_does_not_make_an_everyday_token_special() -> None:
    assert list(vocabulary(["a", ",", "b"], eos_token_id=1).kinds) == [1, 1, 1]


@given(st.lists(st.text("ab<>|\0", max_size=4)))
def test_one_search_finds_the_texts_that_match_from_end_to_end(texts: list[str]) -> None:
    pattern = re.compile("<[^<>\0]+>|aa")
    found = [t for t in spelled_like(texts, pattern) if t in texts]
    assert set(found) >= {t for t in texts if pattern.fullmatch(t)}
    assert all(pattern.fullmatch(text) for text in found)


@pytest.mark.parametrize("key", ["token_type", "tokens"])
def test_a_plain_list_will_do(key: str) -> None:
    made = bpe_metadata([])
    made[f"tokenizer.ggml.{key}"] = list(made[f"tokenizer.ggml.{key}"])
    read = read_vocabulary(made, Defaults())
    assert len(read.texts) == len(read.kinds)


def test_wrong_values_are_told_briefly() -> None:
    with pytest.raises(CheckpointError, match="tokens is a text of 1000 characters; it should be"):
        read_vocabulary({"tokenizer.ggml.tokens": "x" * 1000}, Defaults())
