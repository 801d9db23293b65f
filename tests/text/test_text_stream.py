from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from trained_vocab import bpe_metadata, spm_metadata, trained_merges

from quantcli.text import from_metadata
from quantcli.text.stream import TextStream


class Bytes:
    """A tokenizer whose tokens are given as bytes; None is a hidden one."""

    def __init__(self, tokens: list[bytes | None], *, drops_leading_space: bool = False) -> None:
        self.tokens = tokens
        self.drops_leading_space = drops_leading_space

    def token_bytes(self, token: int) -> bytes:
        data = self.tokens[token]
        return b"<hidden>" if data is None else data

    def is_hidden(self, token: int) -> bool:
        return self.tokens[token] is None


def streamed(tokens: list[bytes | None], **how: bool) -> list[str]:
    """Return what each token pushed gives, and at last what is held back."""
    drops = how.pop("drops_leading_space", False)
    stream = TextStream(Bytes(tokens, drops_leading_space=drops), **how)
    return [*(stream.push(i) for i in range(len(tokens))), stream.finish()]


@given(st.lists(st.binary(max_size=5)))
def test_the_pieces_are_the_whole_text_whatever_the_bytes(tokens: list[bytes]) -> None:
    assert "".join(streamed(list(tokens))) == b"".join(tokens).decode("utf-8", "replace")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.data())
def test_no_character_is_split(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in pairwise(cuts)]
    assert "".join(streamed(list(pieces))) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in streamed(list(pieces)))


def test_a_character_comes_with_its_last_byte() -> None:
    assert streamed([b"\xf0", b"\x9f\x98", b"\x80!"]) == ["", "", "\U0001f600!", ""]


def test_a_byte_that_can_be_no_character_is_replaced_at_once() -> None:
    assert streamed([b"a\xff", b"\xe4\xb8", b"b"]) == ["a\ufffd", "", "\ufffdb", ""]


def test_what_is_held_back_at_the_end_is_replaced() -> None:
    assert streamed([b"a", b"\xe4\xb8"]) == ["a", "", "\ufffd"]


def test_a_finished_stream_starts_anew() -> None:
    stream = TextStream(Bytes([b"\xe4", b"\xb8", b"a"]))
    assert (stream.push(0), stream.finish(), stream.finish()) == ("", "\ufffd", "")
    assert stream.push(2) == "a"


def test_hidden_tokens_give_nothing_unless_they_are_asked_for() -> None:
    assert streamed([b"a", None, b"b"]) == ["a", "", "b", ""]
    assert streamed([b"a", None], special=True) == ["a", "<hidden>", ""]


def test_one_leading_space_is_dropped_at_the_start_of_a_text_only() -> None:
    tokens: list[bytes | None] = [b"", None, b"  a", b" b"]
    assert "".join(streamed(tokens, at_start=True, drops_leading_space=True)) == " a b"
    assert "".join(streamed(tokens, at_start=True)) == "  a b"
    assert "".join(streamed(tokens, drops_leading_space=True)) == "  a b"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_stream_shows_what_decode_does(text: str) -> None:
    tokenizer = from_metadata(bpe_metadata(trained_merges()))
    stream = TextStream(tokenizer, at_start=True)
    ids = tokenizer.encode(text + "<|im_end|>", parse_special=True)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_control_tokens_are_shown_on_request() -> None:
    tokenizer = from_metadata(spm_metadata([("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)]))
    assert tokenizer.decode([1, 2]) == ""
    assert tokenizer.decode([1, 2], special=True) == "<s></s>"
