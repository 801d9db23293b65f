"""Stop strings: text is held back while it could still become one, and no part of one gets out."""

from __future__ import annotations


class StopStrings:
    """Watches text that comes in pieces for the first string of a set to be complete.

    Character by character, so that the pieces' ends make no difference.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Prepare for some strings, none of them empty; with none, text passes through."""
        assert all(stops), stops
        self._stops = tuple((stop, _borders(stop)) for stop in stops)
        self._matched = [0] * len(stops)  # characters of each stop that the held text ends in
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Take more text; return what is certain, and whether a stop string is complete.

        After one is complete, the rest of the text is dropped and nothing more may be pushed.
        """
        if not self._stops:
            return piece, False
        text = self._held + piece
        for end in range(len(self._held), len(text)):
            if n := self._advance(text[end]):
                self._held = ""
                return text[: end + 1 - n], True
        n_certain = len(text) - max(self._matched)
        self._held = text[n_certain:]
        return text[:n_certain], False

    def finish(self) -> str:
        """Return the text held back: it will not become a stop string any more."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Take one character; return the length of the longest stop it completes, or 0."""
        completed = 0
        for i, (stop, borders) in enumerate(self._stops):
            n = self._matched[i]
            while n and stop[n] != char:
                n = borders[n - 1]
            n += stop[n] == char
            if n == len(stop):
                completed = max(completed, n)
            self._matched[i] = n
        return completed


def _borders(stop: str) -> list[int]:
    """Return, for each prefix, the length of its longest proper prefix that is also its suffix.

    Source: Knuth, Morris and Pratt, Fast pattern matching in strings, SIAM J. Comput. 6 (1977).
    """
    borders = [0]
    for char in stop[1:]:
        n = borders[-1]
        while n and stop[n] != char:
            n = borders[n - 1]
        borders.append(n + (stop[n] == char))
    return borders
