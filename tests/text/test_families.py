"""The other kinds of tokenizers: ids of llama.cpp, and of the libraries they come from."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import pytest
from family_vocabs import (
    BERT_SPECIAL,
    SPACE,
    character_metadata,
    trained_unigram,
    unigram_metadata,
    unigram_parts,
    wordpiece_metadata,
)
from golden_texts import SPLIT_TEXTS, TEXTS
from hypothesis import assume, given
from random_texts import TEXT
from tokenizers import Regex
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer, Replace
from tokenizers.pre_tokenizers import BertPreTokenizer, Split
from trained_vocab import Metadata

from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.text import Tokenizer, from_metadata
from quantcli.text.stream import TextStream
from quantcli.text.vocabulary import Kind

GOLDENS = Path(__file__).parent.parent / "goldens"
ALL_TEXTS = {**TEXTS, **SPLIT_TEXTS}
CASES = (
    *("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"),
    *("t5", "t5/spaces", "t5/bare", "bert", "bert/cased"),
)
# </s> is HTML here, a user-defined token, as in Gemma's own tokenizer; llama.cpp makes it a normal
# one, which its merges do not reach.
HTML = frozenset({"control_text"})
# BERT's tokenizer decomposes all of Hangul and leaves out marks of the kind Mn; llama.cpp keeps the
# first part of a syllable, and leaves out all marks.
MARKS = frozenset({"hangul_parts", "hindi", "korean", "marks_alone"})
DIFFERENCES = {
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"), HTML),
    "bert": MARKS,
}


@cache
def golden() -> dict[str, Any]:
    content = json.loads((GOLDENS / "tokens_families.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def metadata(case: str) -> Metadata:
    made = golden()
    family, _, how = case.partition("/")
    if family == "t5":
        table = base64.b64decode(made["table"])
        bare, spaces = how == "bare", how != ""
        return unigram_metadata(
            made["pieces"], table, add_space_prefix=not bare, merge_spaces=not spaces
        )
    if family == "bert":
        return wordpiece_metadata(made["words"], lowercase=how == "")
    model = {"gemma4": "gemma4", "whitespace": "whitespace"}.get(family, "gpt2")
    return character_metadata(made["tokens"], made["merges"], model, family)


@cache
def tokenizer(case: str) -> Tokenizer:
    return from_metadata(metadata(case))


@pytest.mark.parametrize("case", CASES)
def test_small_vocabularies_give_the_ids_of_llama_cpp(case: str) -> None:
    ids, ours = golden()["cases"][case], tokenizer(case)
    for special in (False, True):
        expected = ids["plain"] | (ids["special"] if special else {})
        wrong = {
            name
            for name, text in ALL_TEXTS.items()
            if ours.encode(text, add_special=False, parse_special=special) != expected[name]
        }
        assert wrong == DIFFERENCES.get(case, frozenset())
    assert ours.encode("a b") == ids["whole"]
    assert sorted(ours.eog) == ids["ends"]


@pytest.mark.parametrize("case", ["gemma4", "sarvam-moe", "t5/spaces", "t5/bare"])
@given(text=TEXT)
def test_plain_text_makes_no_control_token(case: str, text: str) -> None:
    ids = tokenizer(case).encode(text + "<eos><turn|></s>", add_special=False)
    known = {i for i in ids if tokenizer(case).is_control(i)}
    assert {tokenizer(case).token_text(i) for i in known} <= {"<unk>"}


@given(text=TEXT)
def test_characters_and_bytes_come_back_but_for_the_sign_for_space(text: str) -> None:
    for case in ("gemma4", "sarvam-moe"):
        ids = tokenizer(case).encode(text, add_special=False)
        assert tokenizer(case).decode(ids) == text.replace(SPACE, " ")


@pytest.mark.parametrize("case", CASES)
@given(text=TEXT)
def test_a_stream_shows_what_decode_does(case: str, text: str) -> None:
    ids = tokenizer(case).encode(text)
    stream = TextStream(tokenizer(case), at_start=True)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer(case).decode(ids)


@pytest.mark.parametrize("character", [" ", "a", "\u0301", "1"])
def test_a_long_run_of_one_character_comes_back(character: str) -> None:
    text = character * 200_000
    assert tokenizer("gemma4").decode(tokenizer("gemma4").encode(text)) == text


@cache
def their_lines() -> Pipeline:
    made = metadata("sarvam-moe")
    kinds = made["tokenizer.ggml.token_type"]
    vocab = {
        text: i
        for i, text in enumerate(made["tokenizer.ggml.tokens"])
        if kinds[i] in (Kind.NORMAL, Kind.BYTE)
    }
    merges = [tuple(merge.split(" ")) for merge in made["tokenizer.ggml.merges"]]
    pipeline = Pipeline(BPE(vocab=vocab, merges=merges, byte_fallback=True))
    pipeline.normalizer = Replace(" ", SPACE)
    pipeline.pre_tokenizer = Split(Regex(r"\n+|[^\n]+"), "isolated")
    return pipeline


@given(text=TEXT)
def test_merges_over_lines_give_the_ids_of_hugging_face(text: str) -> None:
    text = text.replace("  ", " x").replace("<b>", "")  # those are user-defined
    expected = their_lines().encode(text, add_special_tokens=False).ids
    assert tokenizer("sarvam-moe").encode(text, add_special=False) == expected


def test_newlines_in_a_row_are_one_token_where_there_is_one() -> None:
    made = metadata("gemma4")
    made["tokenizer.ggml.merges"] = [m for m in made["tokenizer.ggml.merges"] if "\n" not in m]
    ids = from_metadata(made).encode("a\n\nb\n", add_special=False)
    assert [from_metadata(made).token_text(i) for i in ids] == ["a", "\n\n", "b", "\n"]


def test_gemma4_starts_with_bos_whatever_the_file_says() -> None:
    assert tokenizer("gemma4").encode("a")[0] == tokenizer("gemma4").bos
    assert tokenizer("sarvam-moe").encode("a")[0] != tokenizer("sarvam-moe").bos


@cache
def unigram() -> tuple[Any, Tokenizer]:
    theirs = trained_unigram()
    return theirs, from_metadata(unigram_metadata(*unigram_parts(theirs)))


@given(text=TEXT)
def test_unigram_gives_the_ids_of_sentencepiece(text: str) -> None:
    theirs, ours = unigram()
    text = text.replace(SPACE, "")  # which the library takes for a space, llama.cpp does not
    assert ours.encode(text, add_special=False) == theirs.encode(text)


def test_unigram_ends_in_eos_and_decodes_without_the_first_space() -> None:
    ids = tokenizer("t5").encode("one two")
    assert ids[-1] == tokenizer("t5").eos
    assert tokenizer("t5").decode(ids) == "one two"


# "a" has a replacement, which begins at 3 of 1 byte.
LEADS_AWAY = np.zeros(4 + 4 * 256 + 1, np.uint8)
LEADS_AWAY[:1028].view("<u4")[[0, 1 + 97, 1 + 96]] = (1024, 1 << 10 | 1 << 8 | 97, 3)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (5, "precompiled_charsmap is 5; it should be an array of bytes"),
        (np.zeros(3), "is an array of float64; it should be an array of bytes"),
        (np.zeros(3, np.uint8), "has 3 bytes, which do not fit its trie"),
        (np.full(9, 255, np.uint8), "has 9 bytes, which do not fit its trie of 4294967295"),
        (np.array([4, 0, 0, 0, 0, 255, 255, 127, 0], np.uint8), "its trie leads beyond its end"),
        (LEADS_AWAY, "a replacement lies beyond its end"),
    ],
)
def test_a_broken_table_of_characters_is_refused(table: object, match: str) -> None:
    made = metadata("t5")
    made["tokenizer.ggml.precompiled_charsmap"] = table
    with pytest.raises(CheckpointError, match=match):
        from_metadata(made).encode("abc")


@given(data=TEXT, seed=TEXT)
def test_a_table_of_any_bytes_ends_in_text_or_one_clear_error(data: str, seed: str) -> None:
    made = metadata("t5")
    table = bytearray(base64.b64decode(golden()["table"]))
    for i, byte in enumerate(seed.encode()):
        table[4 + (i * 7919 + byte * 31) % (len(table) - 4)] ^= byte
    made["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(bytes(table), np.uint8)
    try:
        from_metadata(made).encode(data)
    except CheckpointError as error:
        assert "precompiled_charsmap" in str(error)  # noqa: PT017


@cache
def their_words(lowercase: bool) -> Pipeline:
    words = golden()["words"]
    model = WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    model.max_input_chars_per_word = 10_000
    pipeline = Pipeline(model)
    pipeline.normalizer = BertNormalizer(lowercase=lowercase)
    pipeline.pre_tokenizer = BertPreTokenizer()
    return pipeline


@pytest.mark.parametrize("case", ["bert", "bert/cased"])
@given(text=TEXT)
def test_wordpiece_gives_the_ids_of_hugging_face(case: str, text: str) -> None:
    assume(all(category(character) != "Cn" for character in text))  # tables of Unicode differ
    # Those they leave out, where llama.cpp has spaces; and GGUF's own sign for spaces.
    assume(not set(text) & {"\v", "\f", "\x85", SPACE})
    expected = their_words(case == "bert").encode(text, add_special_tokens=False).ids
    assert tokenizer(case).encode(text, add_special=False) == expected


def test_wordpiece_stands_between_cls_and_sep() -> None:
    ids = tokenizer("bert").encode("Hello [SEP]", parse_special=True)
    shown = [tokenizer("bert").token_text(i) for i in ids]
    assert (shown[0], shown[-2:]) == ("[CLS]", ["[SEP]", "[SEP]"])
    assert set(BERT_SPECIAL) <= set(tokenizer("bert").control_texts)


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "no_vocab", "frob"])
def test_a_kind_of_tokenizer_that_is_not_there_is_refused_by_name(model: str) -> None:
    made = metadata("bert") | {"tokenizer.ggml.model": model}
    with pytest.raises(UnsupportedModel, match=f"is '{model}', .*Known: bert, gemma4, gpt2, "):
        from_metadata(made)
