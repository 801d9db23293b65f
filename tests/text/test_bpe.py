from __future__ import annotations

from functools import cache

import pytest
from hugging_face import PIPELINES, pipeline
from hypothesis import given
from hypothesis import strategies as st
from random_texts import SPELLINGS, TEXT, TEXT_WITH_SPELLINGS
from tokenizers import Tokenizer as Pipeline
from trained_vocab import BPE_USER_DEFINED, Metadata, bpe_metadata, trained_merges

from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.text import Tokenizer, bpe, from_metadata
from quantcli.text.pretokenizers import PRETOKENIZERS
from quantcli.text.vocabulary import Kind

HTML = ("<html>", "<b>", "  ", "caf\u00e9")


@cache
def metadata(pre: str, user_defined: tuple[str, ...] = BPE_USER_DEFINED) -> Metadata:
    return bpe_metadata(trained_merges(), pre, user_defined=user_defined)


@cache
def ours(pre: str, user_defined: tuple[str, ...] = BPE_USER_DEFINED) -> Tokenizer:
    return from_metadata(metadata(pre, user_defined))


@cache
def theirs(pre: str, user_defined: tuple[str, ...] = BPE_USER_DEFINED) -> Pipeline:
    return pipeline(metadata(pre, user_defined))


def ids_of(made: Pipeline, text: str) -> list[int]:
    return list(made.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("pre", sorted(PIPELINES))
@given(text=TEXT)
def test_ordinary_text_gives_the_ids_of_hugging_face(pre: str, text: str) -> None:
    assert ours(pre).encode(text) == ids_of(theirs(pre), text)


@pytest.mark.parametrize("pre", sorted(PIPELINES))
@given(text=TEXT_WITH_SPELLINGS)
def test_parsed_specials_give_the_ids_of_hugging_face(pre: str, text: str) -> None:
    assert ours(pre).encode(text, parse_special=True) == ids_of(theirs(pre), text)


@given(text=TEXT_WITH_SPELLINGS)
def test_plain_text_holds_no_control_token_and_decodes_to_itself(text: str) -> None:
    for pre in ("gpt-2", "llama-bpe"):
        ids = ours(pre).encode(text)
        assert not any(map(ours(pre).is_control, ids))
        assert ours(pre).decode(ids) == text


@given(text=TEXT_WITH_SPELLINGS)
def test_plain_text_is_split_at_user_defined_tokens_as_by_hugging_face(text: str) -> None:
    made = theirs("gpt-2", HTML)
    made.encode_special_tokens = True
    assert ours("gpt-2", HTML).encode(text) == ids_of(made, text)


def test_a_control_token_that_is_a_whole_word_is_never_made_from_text() -> None:
    made = bpe_metadata(trained_merges(), "llama-bpe", control=("PAD", "<|im_start|>", "<s>"))
    tokenizer = from_metadata(made)
    pad = tokenizer.encode("PAD", parse_special=True)
    assert len(pad) == 1
    assert pad[0] not in tokenizer.encode("PAD PAD")


def test_merges_that_make_a_control_token_are_left_out() -> None:
    made = bpe_metadata(["i n", "in g"])
    tokens, kinds = made["tokenizer.ggml.tokens"], made["tokenizer.ggml.token_type"]
    kinds[tokens.index("ing")] = Kind.CONTROL
    tokenizer = from_metadata(made)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("ing")] == ["in", "g"]


def test_a_byte_without_a_token_is_dropped() -> None:
    made = bpe_metadata([])
    del made["tokenizer.ggml.tokens"][7]
    del made["tokenizer.ggml.token_type"]
    tokenizer = from_metadata(made)
    assert tokenizer.decode(tokenizer.encode("a\x07b")) == "ab"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_bytes_of_a_token_are_those_of_its_text(spelling: str) -> None:
    tokenizer = ours("gpt-2")
    ids = tokenizer.encode(spelling, parse_special=True)
    assert b"".join(map(tokenizer.token_bytes, ids)) == spelling.encode()


def test_tokens_are_shown_as_text_or_as_escaped_bytes() -> None:
    tokenizer = ours("gpt-2")
    ids = tokenizer.encode("\u4e00<|im_end|>", parse_special=True)
    assert [tokenizer.token_text(i) for i in ids] == ["\\xe4", "\\xb8", "\\x80", "<|im_end|>"]


def test_a_token_that_is_not_spelled_byte_by_byte_stands_for_its_text() -> None:
    made = bpe_metadata([], user_defined=("\u4eca\u5929",))
    made["tokenizer.ggml.token_type"][-1] = Kind.NORMAL
    tokenizer = from_metadata(made)
    assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == "\u4eca\u5929".encode()


@pytest.mark.parametrize("pre", ["gpt-2", "gpt-4o", "llama-bpe"])
def test_long_text_gives_the_ids_of_the_whole(pre: str) -> None:
    text = ("One two  three, 4567!\n\n" * 12_000) + "word " * 60_000 + "x" * 300_000
    assert len(text) > 2 * bpe.PIECE
    assert ours(pre).encode(text) == ids_of(theirs(pre), text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pre", "character"),
    [
        *(("gpt-4o", character) for character in ("a", "A", " ", "\n", "1", "!", "\u4eca")),
        ("superbpe", "1"),
        ("tiny_aya", "1"),
    ],
)
def test_five_megabytes_of_one_character_come_back(pre: str, character: str) -> None:
    text = character * (5_000_000 // len(character.encode()))
    assert ours(pre).decode(ours(pre).encode(text)) == text


@given(
    before=st.sampled_from(["", "a", " ", "x1", "\u00bd"]),
    one=st.sampled_from(["1", "\u0661", "\u00bd"]),
    n=st.integers(1, 1300),
    after=st.sampled_from(["", "a", " ", "_", "\u0301", ".5", "\u0661", "\n"]),
)
@pytest.mark.parametrize("pre", ["afmoe", "superbpe", "tiny_aya"])
def test_long_numbers_are_grouped_as_by_the_pattern(
    pre: str, before: str, one: str, n: int, after: str
) -> None:
    text = before + "123456789"[: n % 9] + one * (n - n % 9) + after
    whole = ours(pre)._algorithm._pipeline
    assert ours(pre).encode(text) == ids_of(whole, text)


def test_a_byte_token_stands_for_its_byte() -> None:
    made = bpe_metadata([], user_defined=("<0x0A>",))
    made["tokenizer.ggml.token_type"][-1] = Kind.BYTE
    tokenizer = from_metadata(made)
    assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == b"\n"


def test_every_way_to_split_text_opens() -> None:
    for pre in PRETOKENIZERS:
        tokenizer = from_metadata(bpe_metadata(["h i"], pre))
        assert tokenizer.decode(tokenizer.encode("hi there, 12345\n")) == "hi there, 12345\n"


def test_an_unknown_way_to_split_text_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"'no-such'.*Known: .*llama-bpe.*smollm"):
        from_metadata(bpe_metadata([], "no-such"))


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_file_that_does_not_say_how_to_split_text_is_noted(pre: str | None) -> None:
    made = bpe_metadata(trained_merges(), "default")
    if pre is None:
        del made["tokenizer.ggml.pre"]
    (note,) = from_metadata(made).notes
    assert "tokenizer.ggml.pre does not say" in note


@pytest.mark.parametrize(
    ("merges", "match"),
    [
        (["ab"], r"merges\[0\] is 'ab'; it should be two tokens"),
        (["i n", " x"], r"merges\[1\] is ' x'; it should be two tokens"),
        (["i n", "in zzz"], r"merges\[1\] is 'in zzz', but 'zzz' is not in"),
        (5, "merges is 5; it should be an array of strings"),
        (None, "merges is missing"),
    ],
)
def test_wrong_merges_are_refused(merges: object, match: str) -> None:
    made = bpe_metadata(["i n"])
    made["tokenizer.ggml.merges"] = merges
    with pytest.raises(CheckpointError, match=match):
        from_metadata(made)


@pytest.mark.parametrize(("pre", "adds"), [("gpt-2", False), ("llama-bpe", True), ("tekken", True)])
def test_the_way_to_split_text_says_whether_bos_is_added(pre: str, adds: bool) -> None:
    made = bpe_metadata([], pre)
    del made["tokenizer.ggml.add_bos_token"]
    tokenizer = from_metadata(made)
    assert tokenizer.add_bos is adds
    assert tokenizer.encode("a")[0] == (tokenizer.bos if adds else ord("a"))
