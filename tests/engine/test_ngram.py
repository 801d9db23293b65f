"""Prompt lookup against a search through all earlier places."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.ngram import KEY_TOKENS, PromptLookup


def test_what_followed_the_last_tokens_is_found() -> None:
    match = PromptLookup().find([1, 2, 3, 4, 5, 6, 9, 2, 3, 4], 2)
    assert match is not None
    assert (match.length, match.tokens) == (3, [5, 6])


def test_the_longest_match_goes_before_the_newest() -> None:
    tokens = [7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3]
    match = PromptLookup().find(tokens, 1)
    assert match is not None
    assert (match.length, match.tokens) == (4, [50])
    match = PromptLookup().find([*tokens[:10], 9, 1, 2, 3], 1)  # of equal ones, the newest
    assert match is not None
    assert (match.length, match.tokens) == (3, [60])


def test_a_text_that_repeats_itself_goes_on_repeating() -> None:
    match = PromptLookup().find([1, 2] * 4, 5)
    assert match is not None
    assert match.tokens == [1, 2, 1, 2, 1]


def test_without_a_match_or_room_there_is_nothing() -> None:
    lookup = PromptLookup()
    assert lookup.find([], 4) is None
    assert lookup.find([1, 2], 4) is None
    assert lookup.find([1, 2, 3, 4], 4) is None
    assert lookup.find([1, 2, 3, 1, 2, 3], 0) is None


def test_after_a_reset_only_the_new_tokens_count() -> None:
    lookup = PromptLookup()
    assert lookup.find([1, 2, 3, 4, 1, 2, 3], 1) is not None
    lookup.reset()
    assert lookup.find([9, 1, 2, 3], 1) is None
    match = lookup.find([9, 1, 2, 3, 9, 1, 2, 3], 1)
    assert match is not None
    assert match.tokens == [9]


@given(tokens=st.lists(st.integers(0, 2), max_size=80), n_steps=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_a_match_is_one_and_growing_by_steps_changes_nothing(
    tokens: list[int], n_steps: int
) -> None:
    grown, whole = PromptLookup(), PromptLookup()
    for stop in range(0, len(tokens), n_steps):
        grown.find(tokens[:stop], 3)
    match = grown.find(tokens, 3)
    assert match == whole.find(tokens, 3)
    key = tokens[len(tokens) - KEY_TOKENS :]
    earlier = [
        stop
        for stop in range(KEY_TOKENS, len(tokens))
        if tokens[stop - KEY_TOKENS : stop] == key and len(key) == KEY_TOKENS
    ]
    assert (match is None) == (not earlier)
    if match is not None:
        endless = [*tokens]
        for token in match.tokens:
            endless.append(token)
        assert any(endless[stop : stop + 3] == match.tokens for stop in earlier)
