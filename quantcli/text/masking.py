r"""Stand-ins for what a user wrote, so that a chat template cannot make a marker of it.

A template pastes a user's text between its own markers, and the whole is then searched for control
tokens. A text that spells <|im_end|> must not be found, nor one that only helps: <|im_ in one part
and end|> in the next, or a tool named s that a template shows as <s>.

So before rendering, characters of the text are replaced, one by one, by symbols that occur nowhere
else in the conversation. Which ones:

- every first character of a control token, such as "<", so that none can begin in the text;
- the first character of a text that could be the middle or the end of a control token.

Left alone are spellings that the template looks for and that no control token shares, such as
</think>, and the usual roles, of which templates make markers. What was replaced is put back after
control tokens were found, so that ordinary text is tokenized as if nothing had happened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from quantcli.errors import UsageError
from quantcli.text.tokenizer import whole_characters

ROLES = frozenset(
    {
        "assistant",
        "developer",
        "environment",
        "function",
        "ipython",
        "model",
        "observation",
        "system",
        "tool",
        "user",
    }
)
# Braille patterns and hexagrams: symbols as "<" is one, without case, which Python's repr shows as
# they are and whose JSON escape is short.
_SYMBOLS = re.compile("[\u2801-\u28ff\u4dc0-\u4dff]")
_STAND_INS = [*map(chr, range(0x2801, 0x2900)), *map(chr, range(0x4DC0, 0x4E00))]
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_END = "\0"  # between markers, where all are searched at once

Message = Mapping[str, object]


class Markers:
    """The spellings that no text of a user may turn into, and what leads to one."""

    def __init__(self, texts: Collection[str], literals: Collection[str]) -> None:
        """Prepare for the spellings of control tokens and the texts that stand in a template."""
        self.literals = literals
        self._texts = frozenset(texts)
        self.joined = _END + _END.join(texts) + _END
        self._longest = max(map(len, texts), default=0)
        self._last = frozenset(text[-1] for text in texts)
        self.first = sorted({text[0] for text in texts})
        self.beginning = self._beginnings()

    def continues(self, text: str) -> bool:
        """Return whether a text is the middle, or starts with the end, of a marker."""
        if not text or text in self.literals:
            return False
        if len(text) <= self._longest and text in self.joined:
            return True
        return any(
            text[n - 1] in self._last and text[:n] + _END in self.joined
            for n in range(1, min(len(text), self._longest) + 1)
        )

    def nears(self, text: str, start: int) -> bool:
        """Return whether a text has, at a first character of markers, the second of one, too."""
        return start + 1 == len(text) or _END + text[start : start + 2] in self.joined

    def _beginnings(self) -> re.Pattern[str] | None:
        """Return a pattern for first characters of markers and for literals to be left alone."""
        if not self.first:
            return None
        pattern = "[" + "".join(map(re.escape, self.first)) + "]"
        alone = [text for text in self.literals if self._is_apart(text)]
        if alone:
            alone.sort(key=len, reverse=True)
            pattern = f"(?P<literal>{'|'.join(map(re.escape, alone))})|{pattern}"
        return re.compile(pattern)

    def _is_apart(self, literal: str) -> bool:
        """Return whether a literal holds beginnings of markers, each of which it ends otherwise."""
        starts = [i for i, character in enumerate(literal) if character in self.first]
        return bool(starts) and not any(self._begins(literal[i:]) for i in starts)

    def _begins(self, text: str) -> bool:
        """Return whether a text begins with a marker, or a marker with the text."""
        return _END + text in self.joined or any(
            text[:n] in self._texts for n in range(1, min(len(text), self._longest) + 1)
        )


class Mask:
    """The stand-ins for one conversation.

    is_ordinary   whether no text that was hidden has the first two characters of a marker
    """

    def __init__(self, markers: Markers, conversation: object) -> None:
        """Choose stand-ins that occur nowhere in what will be hidden, or in the template."""
        self._markers = markers
        self._conversation = conversation
        self._free: Iterator[str] | None = None
        self._stand_ins: dict[str, str] = {}
        self.is_ordinary = True

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to hide."""
        return not self._stand_ins

    def hide_messages(self, messages: Iterable[Message]) -> list[Message]:
        """Return a copy of messages with their texts hidden, but for the usual roles."""
        return [
            {
                self._hide_key(key): value if key == "role" and value in ROLES else self.hide(value)
                for key, value in message.items()
            }
            for message in messages
        ]

    def hide(self, value: object) -> object:
        """Return a copy of a value of JSON with its texts hidden."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, Mapping):
            return {self._hide_key(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        """Return text with what was hidden put back, also where it was escaped for JSON."""
        if self.is_empty:
            return text
        originals = {stand_in: original for original, stand_in in self._stand_ins.items()}
        if "\\u" in text:
            for stand_in, original in originals.items():
                text = text.replace(json.dumps(stand_in)[1:-1], json.dumps(original)[1:-1])
        return text.translate({ord(stand_in): text for stand_in, text in originals.items()})

    def _hide_key(self, key: str) -> str:
        return self._hide_text(key) if isinstance(key, str) else key

    def _hide_text(self, text: str) -> str:
        text = whole_characters(text)
        start = len(text) - len(text.lstrip())
        continues = self._markers.continues(text[start:].rstrip())
        if self._markers.beginning is not None:
            text = self._markers.beginning.sub(self._replaced, text)
        if continues and text[start] not in self._stand_ins.values():
            text = text[:start] + self._stand_in(text[start]) + text[start + 1 :]
        return text

    def _replaced(self, match: re.Match[str]) -> str:
        if match.lastgroup == "literal":
            return match.group()
        if self._markers.nears(match.string, match.start()):
            self.is_ordinary = False
        return self._stand_in(match.group())

    def _stand_in(self, character: str) -> str:
        if character not in self._stand_ins:
            if self._free is None:
                taken = self._taken()
                self._free = (symbol for symbol in _STAND_INS if symbol not in taken)
            stand_in = next(self._free, None)
            if stand_in is None:
                raise UsageError(
                    "the messages use nearly all Braille characters and hexagrams; some of those "
                    "have to stay free. Leave some out."
                )
            self._stand_ins[character] = stand_in
        return self._stand_ins[character]

    def _taken(self) -> set[str]:
        """Return the symbols that occur, as themselves or escaped."""
        taken: set[str] = set()
        texts = (*texts_in(self._conversation), *self._markers.literals, self._markers.joined)
        for text in texts:
            if not text.isascii():
                taken.update(_SYMBOLS.findall(text))
            if "\\u" in text:
                taken.update(chr(int(code, 16)) for code in _ESCAPE.findall(text))
        return taken


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a value of JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from texts_in(item)
