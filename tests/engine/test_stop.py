from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.stop import StopStrings


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    """Return what came out after each piece and at the end, and whether a stop was seen."""
    watcher = StopStrings(stops)
    out = []
    for piece in pieces:
        text, is_stopped = watcher.push(piece)
        out.append(text)
        if is_stopped:
            return out, True
    return [*out, watcher.finish()], False


def test_without_stops_text_passes_through() -> None:
    assert run((), ["a", "", "b"]) == (["a", "", "b", ""], False)


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "is_stopped"),
    [
        (("END",), ["abc", "END", "more"], ["abc", ""], True),
        (("END",), ["abcEN", "D"], ["abc", ""], True),
        (("END",), ["abcEN", "E", "ND"], ["abc", "EN", ""], True),
        (("END",), ["abcEN"], ["abc", "EN"], False),
        (("END",), ["abcENDing"], ["abc"], True),
        (("\n\n",), ["a\n", "b\n", "\nc"], ["a", "\nb", ""], True),
        (("aab",), ["aaab"], ["a"], True),
        (("aab",), ["aaaab"], ["aa"], True),
        (("aabaaa",), ["aabaabaaa"], ["aab"], True),
        (("abab",), ["aba", "abab"], ["", "aba"], True),
        (("xyz", "wxyzq"), ["wxyzq"], ["w"], True),  # the first to be complete
        (("yz", "xyz"), ["wxyz"], ["w"], True),  # of two at once, the longer
        (("été",), ["un ét", "é"], ["un ", ""], True),
        (("👍",), ["ok ", "👍"], ["ok ", ""], True),
        (("a",), ["a"], [""], True),
    ],
)
def test_text_before_the_first_stop_comes_out(
    stops: tuple[str, ...], pieces: list[str], out: list[str], is_stopped: bool
) -> None:
    assert run(stops, pieces) == (out, is_stopped)


def naive(stops: tuple[str, ...], text: str) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


# Two letters: stops overlap themselves and each other, and occur often.
@given(
    stops=st.lists(st.text(alphabet="aé", min_size=1, max_size=6), max_size=3).map(tuple),
    pieces=st.lists(st.text(alphabet="aé", max_size=4), max_size=15),
)
@settings(max_examples=400, deadline=None)
def test_pieces_make_no_difference_and_nothing_leaks(
    stops: tuple[str, ...], pieces: list[str]
) -> None:
    text, is_stopped = naive(stops, "".join(pieces))
    out, got_stopped = run(stops, pieces)
    assert ("".join(out), got_stopped) == (text, is_stopped)
    # What was out at any time was never taken back, and never held part of a stop that came.
    given_out = ""
    for piece in out:
        given_out += piece
        assert text.startswith(given_out)


@given(
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
    text=st.text(alphabet="ab", max_size=20),
)
@settings(max_examples=400, deadline=None)
def test_no_more_is_held_back_than_could_become_a_stop(stops: list[str], text: str) -> None:
    watcher = StopStrings(tuple(stops))
    out = ""
    for i, char in enumerate(text):
        piece, is_stopped = watcher.push(char)
        out += piece
        if is_stopped:
            return
        held = text[len(out) : i + 1]
        assert not held or any(stop.startswith(held) for stop in stops)
