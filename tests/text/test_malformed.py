"""Whatever a file says of its vocabulary, it ends in a tokenizer or in one clear error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_vocab import byte_level_bpe, spm
from trained_vocab import Metadata

from quantcli.errors import ModelError
from quantcli.text import from_metadata
from quantcli.text.chat import ChatTemplate

SOURCES = {"bpe": byte_level_bpe().metadata(), "spm": spm().metadata()}
KEYS = sorted({key for made in SOURCES.values() for key in made} | {"tokenizer.ggml.add_eos_token"})
ODD_TEXT = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "<0x41>", "<0xZZ>", "\0", "a b", " ", "\udc80", "<s>"]),
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(),
    ODD_TEXT,
    st.lists(ODD_TEXT, max_size=4),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(lambda v: np.array(v, np.int32)),
    st.lists(st.floats(width=32), max_size=4).map(lambda v: np.array(v, np.float32)),
)


def tried(made: Metadata) -> None:
    """Open a vocabulary and use it; ModelError is the only way to fail."""
    try:
        tokenizer = from_metadata(made)
        ChatTemplate.from_metadata(made)
    except ModelError as error:
        told = str(error)
    else:
        ids = tokenizer.encode("the <|im_end|> \u4eca\x00\n", parse_special=True)
        told = tokenizer.decode(ids) + "".join(map(tokenizer.token_text, range(tokenizer.n_vocab)))
    assert isinstance(told, str)


@pytest.mark.parametrize("source", sorted(SOURCES))
@given(key=st.sampled_from(KEYS), value=ODD)
def test_a_key_with_any_value(source: str, key: str, value: object) -> None:
    tried({**SOURCES[source], key: value})


@pytest.mark.parametrize("source", sorted(SOURCES))
@given(edits=st.lists(st.tuples(st.integers(0, 270), ODD_TEXT), min_size=1, max_size=4))
def test_tokens_with_any_texts(source: str, edits: list[tuple[int, str]]) -> None:
    tokens = list(SOURCES[source]["tokenizer.ggml.tokens"])
    for at, text in edits:
        tokens[at] = text
    tried({**SOURCES[source], "tokenizer.ggml.tokens": tokens})


@pytest.mark.parametrize("source", sorted(SOURCES))
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 270), st.integers(-1, 9), st.floats(width=32)), max_size=30
    )
)
def test_tokens_with_any_types_and_scores(source: str, edits: list[tuple[int, int, float]]) -> None:
    kinds = list(SOURCES[source]["tokenizer.ggml.token_type"])
    scores = np.zeros(len(kinds), np.float32)
    for at, kind, score in edits:
        kinds[at], scores[at] = kind, score
    made = {**SOURCES[source], "tokenizer.ggml.token_type": np.array(kinds, np.int32)}
    tried({**made, "tokenizer.ggml.scores": scores})


@given(
    merges=st.lists(st.one_of(ODD_TEXT, st.sampled_from(["t h", "th e", "in g", "e t h", "a "])))
)
def test_any_merges(merges: list[str]) -> None:
    tried({**SOURCES["bpe"], "tokenizer.ggml.merges": merges})
