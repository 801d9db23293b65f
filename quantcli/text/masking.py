r"""Stand-ins for what a user wrote, so that a chat template cannot make a marker of it.

A template pastes a user's text between its own markers, and the whole is then searched for control
tokens. A text that spells <|im_end|> must not be found, nor one that only helps: <|im_ in one part
and end|> in the next, or a tool named s that a template shows as <s>.

So before rendering, characters of the text are replaced, one by one, by symbols that occur nowhere
else in the conversation. Which ones:

- every first character of a control token, such as "<", so that none can begin in the text;
- the first character of a text that could be the middle or the end of a control token.

Left alone are spellings that the template looks for and that no control token shares, such as
</think>, and the words of the protocol at their places: keys of messages, the types of parts, the
usual roles, of which templates make markers. A user cannot choose how those are spelled. What was
replaced is put back after control tokens were found, so that ordinary text is tokenized as if
nothing had happened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a value is protocol rather than a user's text.

    words   texts that are left as they are
    keys    keys that are left as they are, and the shapes of their values
    rest    the shape of what lies under other keys; None if all of it is a user's

    A list has the shape of its items.
    """

    words: frozenset[str] = frozenset()
    keys: dict[str, Shape] = field(default_factory=dict)
    rest: Shape | None = None


def _keys(names: str, **shapes: Shape) -> dict[str, Shape]:
    return {name: _FREE for name in names.split()} | shapes


_FREE = Shape()
_TYPE = Shape(words=frozenset({"function", "text"}))
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_PART = Shape(keys=_keys("text", type=_TYPE))
_SCHEMA = Shape(
    keys=_keys(
        "$ref additionalProperties default description enum examples format maximum minimum "
        "pattern required strict title",
        type=Shape(
            words=frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
        ),
    )
)
_SCHEMA.keys.update(dict.fromkeys(("allOf", "anyOf", "items", "oneOf", "return"), _SCHEMA))
_SCHEMA.keys.update(dict.fromkeys(("$defs", "definitions", "properties"), Shape(rest=_SCHEMA)))
_FUNCTION = Shape(
    keys=_keys("arguments description name response strict", parameters=_SCHEMA, returns=_SCHEMA)
)
_CALL = Shape(keys=_FUNCTION.keys | _keys("id index", type=_TYPE, function=_FUNCTION))
# Of a message, and of what else a template is given. Source: OpenAI's and Hugging Face's formats.
MESSAGE = Shape(
    keys=_keys(
        "name reasoning reasoning_content refusal thinking tool_call_id",
        role=Shape(words=ROLES),
        content=_PART,
        tool_calls=_CALL,
    )
)
NAMES = {
    "tools": _CALL,
    "documents": Shape(keys=_keys("content contents id text title url", type=_TYPE)),
}


class Markers:
    """The spellings that no text of a user may turn into, and what leads to one."""

    def __init__(
        self, texts: Collection[str], literals: Collection[str], compared: Collection[str] = ()
    ) -> None:
        """Prepare for the spellings of control tokens, and for what a template's program has.

        literals   the texts and names that stand in it
        compared   those of them that it compares texts with
        """
        self.literals = literals
        self.compared = compared
        self._texts = frozenset(texts)
        self.joined = _END + _END.join(texts) + _END
        self._longest = max(map(len, texts), default=0)
        self._last = frozenset(text[-1] for text in texts)
        self.first = sorted({text[0] for text in texts})
        self.beginning = self._beginnings()

    def continues(self, text: str) -> bool:
        """Return whether a text is the middle, or starts with the end, of a marker."""
        if not text:
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

    def hide(self, value: object, shape: Shape = _FREE) -> object:
        """Return a copy of a value of JSON with its texts hidden, but for those of the protocol."""
        if isinstance(value, str):
            if value in shape.words:
                return value
            return self._hide_text(value, self._markers.compared)
        if isinstance(value, Mapping):
            return {
                key if key in shape.keys else self._hide_key(key): self.hide(
                    item, shape.keys.get(key) or shape.rest or _FREE
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.hide(item, shape) for item in value]
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
        return self._hide_text(key, self._markers.literals) if isinstance(key, str) else key

    def _hide_text(self, text: str, looked_for: Collection[str]) -> str:
        """Return a text hidden; one that is looked for may stay the middle of a marker."""
        text = whole_characters(text)
        start = len(text) - len(text.lstrip())
        inner = text[start:].rstrip()
        continues = inner not in looked_for and self._markers.continues(inner)
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
