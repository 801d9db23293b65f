"""Calls of tools in an answer, found while it comes: what models write, in OpenAI's terms."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass

from quantcli.server.reasoning import held

_ARGUMENTS = ("arguments", "parameters")
_ID_CHARACTERS = string.ascii_letters + string.digits
_NAME_END = "[ARGS]"
_FENCES = ("```json", "```")


@dataclass(frozen=True, slots=True)
class Style:
    """How a family of models writes calls. Each is an object with a name and arguments.

    opener      what stands before a call, or before a list of them
    closer      what stands after it
    is_bare     whether an answer that begins with such an object is a call, too
    is_named    whether the name may stand between the opener and the arguments
    argument    the key of the arguments
    """

    name: str
    opener: str = ""
    closer: str = ""
    is_bare: bool = False
    is_named: bool = False
    argument: str = "arguments"


STYLES = {
    style.name: style
    for style in (
        Style("hermes", "<tool_call>", "</tool_call>"),
        Style("mistral", "[TOOL_CALLS]", is_bare=True, is_named=True),
        Style("llama3", "<|python_tag|>", is_bare=True, argument="parameters"),
        Style("json", is_bare=True),
    )
}


def style_of(template: str) -> Style:
    """Return the style of calls that a chat template teaches; plain JSON if it teaches none."""
    if "[TOOL_CALLS]" in template:
        return STYLES["mistral"]
    if "<tool_call>" in template:
        return STYLES["hermes"]
    if "<|python_tag|>" in template or '"parameters"' in template:
        return STYLES["llama3"]
    return STYLES["json"]


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a call: id and name come in the first one of its index, arguments add up."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None

    def shape(self) -> dict[str, object]:
        """Return it as an entry of `tool_calls` in a stream."""
        function: dict[str, object] = {"arguments": self.arguments}
        if self.id is None:
            return {"index": self.index, "function": function}
        return {
            "index": self.index,
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, **function},
        }


class _CallObject:
    """Reads one call's JSON object character by character.

    raw           what was read
    name          its name, once known
    arguments     the text of its arguments, as far as it has come
    is_complete   whether the object has ended
    """

    def __init__(self, name: str | None = None) -> None:
        """Start before the first brace; with a name, the whole object is the arguments."""
        self.raw = ""
        self.name = name
        self.arguments = ""
        self.is_complete = False
        self._is_whole = name is not None
        self._depth = 0
        self._is_text = False  # within quotes
        self._is_escaped = False
        self._word = ""  # the last string at the first level, quotes and all
        self._key = ""
        self._value = ""

    def push(self, text: str) -> str:
        """Take text up to the end of the object; return what is left of it."""
        for i, c in enumerate(text):
            self.raw += c
            self._take(c)
            if self._is_whole:
                self.arguments = self.raw
            if not self._depth:
                self.is_complete = True
                self._fill_in()
                return text[i + 1 :]
        return ""

    def _take(self, c: str) -> None:
        was_text = self._is_text
        self._follow(c)
        if self._depth == 1 and (self._is_text or was_text):
            self._word = self._word + c if was_text else c
        if not (self._is_text or was_text):
            if (self._depth == 1 and c == ",") or not self._depth:
                self._end_value()
                return
            if self._depth == 1 and c == ":" and not self._key:
                self._key, self._value = _decoded(self._word), ""
                return
        self._extend(c)

    def _follow(self, c: str) -> None:
        """Keep count of quotes and braces."""
        if self._is_escaped:
            self._is_escaped = False
        elif c == '"':
            self._is_text = not self._is_text
        elif self._is_text:
            self._is_escaped = c == "\\"
        elif c in "{[":
            self._depth += 1
        elif c in "}]":
            self._depth -= 1

    def _extend(self, c: str) -> None:
        if not self._key:
            return
        self._value += c
        # Of arguments in quotes, which are JSON within JSON, nothing is certain before the end.
        if self._key in _ARGUMENTS and self._value.lstrip().startswith("{"):
            self.arguments = self._value.lstrip()

    def _end_value(self) -> None:
        """Keep a value of the object that is complete."""
        value = self._value.strip()
        if self._key == "name":
            self.name = _decoded(value)
        elif self._key in _ARGUMENTS and value.startswith('"'):
            self.arguments = _decoded(value)
        self._key = self._value = ""

    def _fill_in(self) -> None:
        self.arguments = self.arguments.strip() or "{}"


def _decoded(text: str) -> str:
    """Return the string that JSON text spells, "" if it spells none."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


class CallParser:
    """Divides an answer that comes in pieces into text and calls.

    n_calls   calls that were found
    """

    def __init__(self, style: Style, names: Collection[str], most: int | None = None) -> None:
        """Look for calls in a style.

        names   of the tools that there are; a bare object that names another is text
        most    calls to take; None: any number
        """
        self.n_calls = 0
        self._style = style
        self._names = frozenset(names)
        self._most = most
        self._state = self._start if style.is_bare else self._text
        self._buffer = ""
        self._prefix = ""  # what stood before a call, to be given back if it is none
        self._call: _CallObject | None = None
        self._is_bare = False
        self._is_announced = False
        self._n_sent = 0  # characters of the arguments
        self._trims = False  # white space after a call means nothing
        self._out = ""
        self._deltas: list[CallDelta] = []

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Take more text; return the text and the pieces of calls that are certain."""
        self._buffer += text
        while self._state():
            pass
        return self._taken()

    def finish(self) -> tuple[str, list[CallDelta]]:
        """Return what was held back: a call that has not even a name is text."""
        if self._state == self._object and not self._is_announced:
            assert self._call is not None
            self._say(self._prefix + self._call.raw)
        elif self._state in (self._text, self._start, self._opened):
            self._say(("" if self._state == self._text else self._prefix) + self._buffer)
        self._buffer = ""
        return self._taken()

    def _taken(self) -> tuple[str, list[CallDelta]]:
        taken = self._out, self._deltas
        self._out, self._deltas = "", []
        return taken

    def _say(self, text: str) -> None:
        if self._trims:
            text = text.lstrip()
        if text:
            self._trims = False
            self._out += text

    # States: each works on the buffer and returns whether there is more to do.

    def _start(self) -> bool:
        """At the start of an answer that may be nothing but a call."""
        rest = self._buffer.lstrip()
        for fence in _FENCES:
            if rest.startswith(fence):
                rest = rest[len(fence) :].lstrip()
                break
            if fence.startswith(rest):
                return False  # more must come
        inner = rest[1:].lstrip() if rest.startswith("[") else rest
        if inner.startswith("{"):
            self._begin(self._buffer[: len(self._buffer) - len(inner)], inner, is_bare=True)
            return True
        if not inner and rest in ("", "["):
            return False
        self._state = self._text
        return True

    def _text(self) -> bool:
        """In ordinary text."""
        opener = self._style.opener
        if opener and opener in self._buffer:
            before, _, self._buffer = self._buffer.partition(opener)
            self._say(before)
            self._prefix = opener
            self._state = self._opened
            return True
        n_held = held(self._buffer, opener) if opener else 0
        n_certain = len(self._buffer) - n_held
        self._say(self._buffer[:n_certain])
        self._buffer = self._buffer[n_certain:]
        return False

    def _opened(self) -> bool:
        """After the opener."""
        rest = self._buffer.lstrip(" \n\r\t[,")
        if not rest or _NAME_END.startswith(self._buffer):
            return False
        if rest.startswith("{"):
            self._begin(self._prefix, rest)
            return True
        if self._style.is_named:
            name, found, after = rest.partition("{")
            if not found:
                return False
            name = name.split("[")[0].strip()  # [CALL_ID] and [ARGS] may follow it
            self._begin(self._prefix + rest[: len(rest) - len(after) - 1], "{" + after, name=name)
            return True
        self._buffer = self._prefix + self._buffer
        text, self._buffer = self._buffer, ""
        self._say(text)
        self._state = self._text
        return False

    def _begin(
        self, prefix: str, rest: str, *, is_bare: bool = False, name: str | None = None
    ) -> None:
        self._prefix, self._buffer = prefix, rest
        self._call = _CallObject(name)
        self._is_bare, self._is_announced, self._n_sent = is_bare, False, 0
        self._state = self._object

    def _object(self) -> bool:
        """Within a call."""
        call = self._call
        assert call is not None
        if not self._buffer:
            return False
        self._buffer = call.push(self._buffer)
        if call.name and not self._is_announced:
            if self._is_bare and call.name not in self._names:
                return self._give_up(call)
            self._announce(call.name)
        if self._is_announced:
            self._send(call)
        if not call.is_complete:
            return False
        if not self._is_announced:
            return self._give_up(call)
        self._state = self._after
        return True

    def _give_up(self, call: _CallObject) -> bool:
        """Take an object that is no call for text, and what follows as well."""
        self._say(self._prefix + call.raw)
        self._prefix = ""
        self._state = self._text
        return True

    def _announce(self, name: str) -> None:
        self._is_announced = True
        self.n_calls += 1
        if self._is_wanted:
            self._deltas.append(CallDelta(self.n_calls - 1, "", new_id(self._style), name))

    def _send(self, call: _CallObject) -> None:
        """Send what is new of the arguments; white space at the end may not belong to them."""
        arguments = call.arguments if call.is_complete else call.arguments.rstrip()
        new = arguments[self._n_sent :]
        if new and self._is_wanted:
            self._deltas.append(CallDelta(self.n_calls - 1, new))
        self._n_sent += len(new)

    @property
    def _is_wanted(self) -> bool:
        return self._most is None or self.n_calls <= self._most

    def _after(self) -> bool:
        """After a call."""
        self._trims = True
        closer = self._style.closer
        rest = self._buffer.lstrip()
        if closer and (not rest or (len(rest) < len(closer) and closer.startswith(rest))):
            return False
        if closer:
            self._buffer = rest.removeprefix(closer)
            self._state = self._text
            return True
        rest = rest.lstrip(" \n\r\t,;]")
        if not rest or _FENCES[1].startswith(rest):
            return False
        if rest.startswith("{"):
            self._begin("", rest, is_bare=self._is_bare)
            return True
        self._buffer = rest.removeprefix(_FENCES[1])
        self._state = self._text
        return True


def new_id(style: Style) -> str:
    """Return the id of a call. Mistral's templates take nothing but nine letters and digits."""
    n = 9 if style.name == "mistral" else 24
    text = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(n))
    return text if style.name == "mistral" else "call_" + text
