"""Thoughts and answer, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantcli.server.reasoning import ReasoningSplit

CASES = [
    ("<think>a b</think>c", False, "a b", "c"),
    ("\n<think>\na\n</think>\n\nc\n", False, "a", "c\n"),
    ("a</think>c", True, "a", "c"),
    ("no thoughts", False, "", "no thoughts"),
    ("<thin", False, "", "<thin"),
    ("so <think>x</think>", False, "", "so <think>x</think>"),
    ("<think>never ends </th", False, "never ends </th", ""),
    ("<think></think>\n\nc", False, "", "c"),
    ("", False, "", ""),
    ("", True, "", ""),
    ("<think>a</think>", False, "a", ""),
    ("<think>a\n\nb</think>c", False, "a\n\nb", "c"),
]


def split(pieces: list[str], is_inside: bool) -> tuple[str, str]:
    splitter = ReasoningSplit(is_inside=is_inside)
    parts = [*map(splitter.push, pieces), splitter.finish()]
    return "".join(a for a, _ in parts), "".join(b for _, b in parts)


@pytest.mark.parametrize(("text", "is_inside", "thoughts", "answer"), CASES)
def test_thoughts_and_answer(text: str, is_inside: bool, thoughts: str, answer: str) -> None:
    assert split([text], is_inside) == (thoughts, answer)
    assert split(list(text), is_inside) == (thoughts, answer)


@given(st.lists(st.text(alphabet="<think>/ \nab", max_size=6)), st.booleans())
def test_the_cuts_make_no_difference(pieces: list[str], is_inside: bool) -> None:
    assert split(pieces, is_inside) == split(["".join(pieces)], is_inside)
