"""What a model thinks before it answers, between <think> and </think>, apart from the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def held(text: str, marker: str) -> int:
    """Return how many characters at a text's end could be the start of a marker."""
    for n in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:n]):
            return n
    return 0


class ReasoningSplit:
    """Divides an answer that comes in pieces into thoughts and answer.

    Only an answer that begins with <think> has thoughts; a later mention of it is text.
    """

    def __init__(self, *, is_inside: bool) -> None:
        """Start; `is_inside` if the prompt ends in <think>, so that the answer begins with one."""
        self._state = "think" if is_inside else "start"
        self._buffer = ""
        self._has_thoughts = False  # so that line breaks belong to them

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; return the (thoughts, answer) that are certain."""
        if self._state == "answer":
            return "", text
        if self._state == "between":
            return "", self._after(text)
        self._buffer += text
        if self._state == "start":
            start = self._buffer.lstrip()
            if len(start) < len(OPEN) and OPEN.startswith(start):
                return "", ""
            if not start.startswith(OPEN):
                self._state = "answer"
                return "", self._rest()
            self._state, self._buffer = "think", start[len(OPEN) :]
        if not self._has_thoughts:
            self._buffer = self._buffer.lstrip("\n")
        thoughts, found, answer = self._buffer.partition(CLOSE)
        if found:
            self._state, self._buffer = "between", ""
            return thoughts.rstrip("\n"), self._after(answer)
        # White space before </think> is not part of the thoughts, nor is that after <think>.
        n_certain = len(self._buffer) - held(self._buffer, CLOSE)
        certain = self._buffer[:n_certain].rstrip("\n")
        self._buffer = self._buffer[len(certain) :]
        self._has_thoughts = self._has_thoughts or bool(certain)
        return certain, ""

    def finish(self) -> tuple[str, str]:
        """Return what was held back."""
        rest = self._rest()
        return (rest.rstrip("\n"), "") if self._state == "think" else ("", rest)

    def _after(self, answer: str) -> str:
        answer = answer.lstrip("\n")
        if answer:
            self._state = "answer"
        return answer

    def _rest(self) -> str:
        rest, self._buffer = self._buffer, ""
        return rest
