"""Chunks of a text and the tokens in them that are scored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantcli.errors import UnknownName, UsageError
from quantcli.evaluate.protocol import PROTOCOLS, cut, protocol


def test_llama_cpp_scores_255_of_512_tokens_behind_the_first_257() -> None:
    how = protocol()
    (chunk,) = cut(range(600), how, bos=None)
    assert (how.name, how.context, how.n_scored) == ("llama.cpp", 512, 255)
    assert chunk.first_row == 256
    assert chunk.targets == tuple(range(257, 512))


def test_full_scores_all_but_the_first_of_2048() -> None:
    how = protocol("full")
    first, second = cut(range(4096), how, bos=7)
    assert how.n_scored == 2047
    assert first.targets == tuple(range(1, 2048))
    assert second.tokens == tuple(range(2048, 4096))  # no BOS: only the text starts with it


def test_bos_takes_the_place_of_the_first_token_of_each_chunk() -> None:
    for how in (protocol("llama.cpp", 8), protocol("full", 8, bos=True)):
        chunks = cut(range(20), how, bos=99)
        assert [chunk.tokens[0] for chunk in chunks] == [99, 99]
        assert [chunk.tokens[1:] for chunk in chunks] == [tuple(range(1, 8)), tuple(range(9, 16))]
        assert 99 not in [t for chunk in chunks for t in chunk.targets]
    for how in (protocol("llama.cpp", 8, bos=False), protocol("full", 8)):
        assert cut(range(20), how, bos=99)[1].tokens[0] == 8
    assert cut(range(20), protocol("llama.cpp", 8), bos=None)[1].tokens[0] == 8


@given(
    name=st.sampled_from(sorted(PROTOCOLS)),
    context=st.integers(4, 40),
    n_tokens=st.integers(40, 300),
    limit=st.none() | st.integers(1, 5),
)
def test_chunks_are_whole_and_in_order(
    name: str, context: int, n_tokens: int, limit: int | None
) -> None:
    how = protocol(name, context)
    chunks = cut(range(n_tokens), how, None, n_chunks=limit)
    assert [t for chunk in chunks for t in chunk.tokens] == list(range(len(chunks) * context))
    assert len(chunks) == min(n_tokens // context, limit or n_tokens)
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert {len(chunk.targets) for chunk in chunks} == {how.n_scored}
    assert how.n_scored >= 1


def test_a_text_shorter_than_a_chunk_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="my text has 511 tokens, and a chunk 512"):
        cut(range(511), protocol(), None, source="my text")


def test_bad_names_and_lengths_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"unknown protocol 'ful'. Did you mean full"):
        protocol("ful")
    with pytest.raises(UsageError, match="--ctx 3 is too short"):
        protocol("full", 3)
