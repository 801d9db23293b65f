"""Prompt lookup: drafts without a model. What followed the last tokens before may follow again.

Source: Saxena, Prompt lookup decoding (2023); llama.cpp's `lookup` and `ngram` speculation. The
index is a request's own, so that no request learns what another one holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

KEY_TOKENS = 3  # of the shortest match: shorter ones are seldom right
_MAX_MATCH = 32  # tokens; a longer match is no better
_MAX_PLACES = 4  # where the same key ended before, newest last


class Match(NamedTuple):
    """A place where the last `length` tokens occurred before, and what followed there."""

    length: int
    tokens: list[int]


class PromptLookup:
    """Finds the last tokens of a sequence earlier in the same sequence."""

    def __init__(self) -> None:
        """Start with an empty sequence."""
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._n_indexed = 0  # tokens; keys that end before this are in the index

    def reset(self) -> None:
        """Forget a sequence whose tokens have moved."""
        self._places.clear()
        self._n_indexed = 0

    def find(self, tokens: Sequence[int], n_most: int) -> Match | None:
        """Return what followed the longest earlier match of the last tokens, at most n_most.

        tokens   the sequence; it only grows from call to call
        """
        self._index(tokens)
        stop = len(tokens)
        best, best_length = -1, 0
        for place in reversed(self._places.get(tuple(tokens[stop - KEY_TOKENS :]), ())):
            length = KEY_TOKENS
            limit = min(_MAX_MATCH, place)
            while length < limit and tokens[place - 1 - length] == tokens[stop - 1 - length]:
                length += 1
            if length > best_length:
                best, best_length = place, length
        if best < 0 or n_most < 1:
            return None
        found = list(tokens[best : best + n_most])
        while len(found) < n_most:  # the match runs into the end: it repeats itself
            found.append(found[len(found) - (stop - best)])
        return Match(best_length, found)

    def _index(self, tokens: Sequence[int]) -> None:
        """Add every key but the last tokens' own."""
        for stop in range(max(self._n_indexed, KEY_TOKENS), len(tokens)):
            places = self._places.setdefault(tuple(tokens[stop - KEY_TOKENS : stop]), [])
            places.append(stop)
            if len(places) > _MAX_PLACES:
                del places[0]
        self._n_indexed = max(self._n_indexed, len(tokens))
