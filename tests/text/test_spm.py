from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from random_texts import TEXT, TEXT_WITH_SPELLINGS
from trained_vocab import Metadata, pieces_of, spm_metadata, trained_processor

from quantcli.errors import CheckpointError
from quantcli.text import Tokenizer, from_metadata
from quantcli.text.spm import model_proto
from quantcli.text.vocabulary import Kind

USER_DEFINED = ("<table>", "  ", "   ", "\n\n", "\t", "</think>")
SPACE = "\u2581"


@cache
def theirs(add_space_prefix: bool, user_defined: tuple[str, ...] = ()) -> object:
    return trained_processor(add_space_prefix=add_space_prefix, user_defined=user_defined)


@cache
def metadata(add_space_prefix: bool, user_defined: tuple[str, ...] = ()) -> Metadata:
    pieces = pieces_of(theirs(add_space_prefix, user_defined), user_defined)
    return spm_metadata(pieces, add_space_prefix=add_space_prefix)


@cache
def ours(add_space_prefix: bool, user_defined: tuple[str, ...] = ()) -> Tokenizer:
    return from_metadata(metadata(add_space_prefix, user_defined))


@pytest.mark.parametrize("add_space_prefix", [False, True])
@given(text=TEXT_WITH_SPELLINGS)
def test_text_gives_the_ids_of_the_model_it_was_made_from(
    add_space_prefix: bool, text: str
) -> None:
    expected = theirs(add_space_prefix).encode(text)
    assert ours(add_space_prefix).encode(text, add_special=False) == expected


@given(text=st.lists(st.one_of(TEXT, st.sampled_from(USER_DEFINED))).map("".join))
def test_user_defined_pieces_are_found_as_by_the_library(text: str) -> None:
    text = text.replace(SPACE, "")  # which the library takes for a space there, llama.cpp does not
    expected = theirs(False, USER_DEFINED).encode(text)
    assert ours(False, USER_DEFINED).encode(text, add_special=False) == expected


@pytest.mark.parametrize("add_space_prefix", [False, True])
@given(text=TEXT)
def test_text_comes_back_but_for_the_sign_for_space(add_space_prefix: bool, text: str) -> None:
    tokenizer = ours(add_space_prefix)
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace(SPACE, " ")


def shown(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


def test_a_space_is_put_before_text_at_the_start_and_after_special_tokens() -> None:
    tokenizer = ours(True)
    ids = tokenizer.encode("in</s>in</s> in", parse_special=True)
    assert tokenizer.decode(ids, special=True) == "<s> in</s> in</s>  in"


def test_no_space_is_put_where_the_file_says_so() -> None:
    ids = ours(False).encode("in</s>in", parse_special=True)
    assert shown(ours(False), ids) == ["<s>", "in", "</s>", "in"]


def test_empty_text_is_bos_alone() -> None:
    assert ours(True).encode("") == [ours(True).bos]
    assert ours(True).encode("", add_special=False) == []


def test_bos_that_the_text_spells_is_not_doubled() -> None:
    tokenizer = ours(False)
    assert tokenizer.encode("<s>in", parse_special=True) == tokenizer.encode("in")


def test_plain_text_that_spells_control_tokens_makes_none() -> None:
    tokenizer = ours(False)
    ids = tokenizer.encode("<s></s><unk><0x41>", add_special=False)
    assert not any(map(tokenizer.is_control, ids))
    assert tokenizer.decode(ids) == "<s></s><unk><0x41>"


def test_a_byte_token_stands_for_its_byte() -> None:
    tokenizer = ours(False)
    token = metadata(False)["tokenizer.ggml.tokens"].index("<0xE4>")
    assert tokenizer.token_bytes(token) == b"\xe4"
    assert tokenizer.token_text(token) == "\\xe4"


def test_without_byte_tokens_an_unknown_character_is_the_unknown_token() -> None:
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("a", -1, 1), ("aa", -2, 1)]
    tokenizer = from_metadata(spm_metadata(pieces))
    assert tokenizer.encode("aaxa", add_special=False) == [4, 0, 3]


def test_a_vocabulary_may_name_no_unknown_token_or_several() -> None:
    made = spm_metadata([("<unk>", 0, 3), ("<s>", 0, 3), ("</s>", 0, 3), ("a", -1, 1)])
    assert from_metadata(made).encode("a") == [1, 3]
    made["tokenizer.ggml.token_type"] = np.array([2, 2, 2, 1], np.int32)
    assert from_metadata(made).encode("a") == [1, 3]


@pytest.mark.parametrize("name", ["Phi-3 mini 4k instruct", "phi3"])
def test_special_tokens_of_phi3_swallow_white_space_after_them(name: str) -> None:
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("a", -1, 1), (SPACE, -1, 1)]
    made = spm_metadata([*pieces, ("<|user|>", 0, 3), ("<0x0A>", 0, 6)])
    made["general.name"] = name
    tokenizer = from_metadata(made)
    assert tokenizer.encode("<|user|> \n\n a<s> a", parse_special=True) == [1, 5, 3, 1, 4, 3]


def test_the_model_is_written_as_the_library_reads_it() -> None:
    order = random.Random(3)
    texts = [
        "<unk>",
        *(f"{i:x}" + "\u6f22" * order.choice((0, 1, 40, 90, 1000)) for i in range(300)),
    ]
    scores = np.array([-order.random() for _ in texts], np.float32)
    kinds = [Kind.UNKNOWN, *order.choices((1, 3, 5), k=300)]
    loaded = sentencepiece.SentencePieceProcessor(
        model_proto=model_proto(texts, scores, bytes(kinds))
    )
    assert [loaded.id_to_piece(i) for i in range(301)] == texts
    assert [loaded.get_score(i) for i in range(301)] == scores.tolist()
    assert [loaded.is_control(i) for i in range(301)] == [kind == 3 for kind in kinds]
    assert [loaded.is_unused(i) for i in range(301)] == [kind == 5 for kind in kinds]


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("scores", None, "scores is missing"),
        ("scores", np.zeros(3, np.float32), r"scores has 3 entries for the \d+ of"),
        ("scores", "no", "scores is 'no'; it should be an array of numbers"),
        ("scores", "u1", "scores is an array of uint8"),
        ("scores", "nan", r"scores\[5\] is not a number"),
        ("token_type", np.zeros(3, np.int32), r"token_type has 3 entries for the \d+ of"),
        ("token_type", "f4", "token_type is an array of float32; it should be an array of integ"),
        ("tokens", [], "tokens is empty"),
        ("tokens", None, "tokens is missing"),
        ("tokens", np.zeros(3), "tokens is an array of float64; it should be an array of strings"),
        ("add_space_prefix", 3, "add_space_prefix is 3; it should be true or false"),
        ("add_bos_token", "yes", "add_bos_token is 'yes'; it should be true or false"),
        ("bos_token_id", "one", "bos_token_id is 'one'; it should be an integer"),
        ("bos_token_id", True, "bos_token_id is True; it should be an integer"),
    ],
)
def test_an_inconsistent_vocabulary_is_refused_by_key(key: str, value: object, match: str) -> None:
    made = dict(metadata(False))
    n = len(made["tokenizer.ggml.tokens"])
    if isinstance(value, str) and value in ("u1", "f4"):
        value = np.zeros(n, value)
    if value == "nan" if isinstance(value, str) else False:
        value = np.array([0.0] * 5 + [np.nan] + [0.0] * (n - 6), np.float32)
    made[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(CheckpointError, match=match):
        from_metadata(made)


def test_integer_scores_are_taken() -> None:
    made = dict(metadata(False))
    made["tokenizer.ggml.scores"] = made["tokenizer.ggml.scores"].astype(np.int32)
    text = "The quick brown fox"
    assert from_metadata(made).encode(text) == ours(False).encode(text)


def test_a_piece_that_is_a_nul_gives_way_to_its_byte_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pieces = [*pieces_of(trained_processor()), ("\0", -1.0, 1)]
    tokenizer = from_metadata(spm_metadata(pieces))
    ids = tokenizer.encode("a\0b", add_special=False)
    assert len(pieces) - 1 not in ids
    assert tokenizer.decode(ids) == "a\0b"
    assert capfd.readouterr().err == ""


def test_text_that_is_not_utf8_is_refused() -> None:
    made = spm_metadata([("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("\udcff", 0, 1)])
    with pytest.raises(CheckpointError, match="tokens holds text that is not UTF-8"):
        from_metadata(made)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a" * 5_000_000, " " * 5_000_000, "the word " * 500_000])
def test_five_megabytes_come_back(text: str) -> None:
    assert ours(False).decode(ours(False).encode(text)) == text
