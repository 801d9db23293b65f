"""What a grammar must not exceed, so that a hostile one is refused before it costs time or stack.

The compiler behind it bounds its own work, but not everything: it takes seconds for an object of
thousands of properties, works out a text that is forced to its very end, and recurses into nested
brackets. These checks take time in proportion to the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from quantcli.engine.request import GrammarSpec
from quantcli.errors import UsageError

# Bytes of each kind. A Lark grammar may hold JSON schemas, which nobody else looks into.
MAX_NBYTES = {
    "json_schema": 64 << 10,
    "json_object": 0,
    "regex": 16 << 10,
    "gbnf": 32 << 10,
    "lark": 16 << 10,
}
MAX_DEPTH = 64  # of brackets within brackets
MAX_PROPERTIES = 500  # of one object; the compiler's time grows with their square
MAX_VALUES = 10_000  # of a schema
MAX_REPEATS = 10_000  # characters, items or properties that must be there at least

_REPEAT = re.compile(r"\{(\d{1,12})(?:,\d*)?\}")


def check_limits(spec: GrammarSpec) -> None:
    """Raise UsageError for a grammar that is too large, too deep, or repeats too much."""
    most = MAX_NBYTES[spec.kind]
    try:
        nbytes = len(spec.text.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError(f"the {spec.kind} is not valid UTF-8. Write it as UTF-8 text.") from None
    if nbytes > most:
        raise UsageError(f"the {spec.kind} has {nbytes} bytes; at most {most} are allowed.")
    if spec.kind != "json_object" and not spec.text.strip():
        raise UsageError(f"the {spec.kind} is empty. Give one, or leave it out.")
    depth = _depth(spec.text)
    if depth > MAX_DEPTH:
        raise UsageError(f"the {spec.kind} nests {depth} levels; at most {MAX_DEPTH} are allowed.")
    if spec.kind == "json_schema":
        _check_schema(_parsed(spec.text))
    elif spec.kind == "regex":
        _check_repeats(spec.text)


def _depth(text: str) -> int:
    """Return how deep brackets of any kind nest, those in strings and behind a backslash too."""
    depth = most = 0
    is_escaped = False
    for char in text:
        if is_escaped or char == "\\":
            is_escaped = not is_escaped
        elif char in "([{":
            depth += 1
            most = max(most, depth)
        elif char in ")]}":
            depth = max(0, depth - 1)
    return most


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is no valid JSON: {error}.") from None


def _check_schema(schema: object) -> None:
    if not isinstance(schema, dict | bool):
        raise UsageError('a JSON schema is an object, such as {"type": "object"}.')
    for n_values, (name, value) in enumerate(_values("", schema), 1):
        if n_values > MAX_VALUES:
            raise UsageError(f"the JSON schema has over {MAX_VALUES} values. Use a smaller one.")
        if isinstance(value, dict) and len(value) > MAX_PROPERTIES:
            raise UsageError(
                f"an object of the JSON schema has {len(value)} properties; at most "
                f"{MAX_PROPERTIES} are allowed."
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in ("minLength", "minItems", "minProperties") and is_number:
            _check_minimum(name, value)
        if name == "pattern" and isinstance(value, str):
            _check_repeats(value)
        if name == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                _check_repeats(pattern)


def _values(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield every value below one with the name of its key."""
    stack = [(name, value)]
    while stack:
        name, value = stack.pop()
        yield name, value
        if isinstance(value, dict):
            stack.extend(value.items())
        elif isinstance(value, list):
            stack.extend(("", item) for item in value)


def _check_minimum(name: str, value: object) -> None:
    if isinstance(value, int | float) and value > MAX_REPEATS:
        raise UsageError(f"{name} is {value}; at most {MAX_REPEATS} is allowed in a JSON schema.")


def _check_repeats(pattern: str) -> None:
    """Raise UsageError for a regular expression whose shortest match may be very long.

    A group counts as its content; what is repeated counts as often as it must be there.
    """
    sizes = [0]  # of the groups that are open
    last = 0  # size of what a repetition would repeat
    i = 0
    while i < len(pattern):
        repeat = _REPEAT.match(pattern, i)
        if repeat:
            sizes[-1] += last * (max(1, int(repeat[1])) - 1)
            last *= max(1, int(repeat[1]))
            i = repeat.end()
        elif pattern[i] == "(":
            sizes.append(0)
            i += 1
        elif pattern[i] == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
            i += 1
        else:
            last, i = 1, _after_atom(pattern, i)
            sizes[-1] += 1
        if max(sizes) > MAX_REPEATS:
            raise UsageError(
                f"the regular expression repeats something {max(sizes)} times or more; "
                f"at most {MAX_REPEATS} characters may be called for."
            )


def _after_atom(pattern: str, start: int) -> int:
    """Return where the character, escape or class ends that begins at `start`."""
    if pattern[start] == "\\":
        return start + 2
    if pattern[start] != "[":
        return start + 1
    end = start + 1
    while end < len(pattern) and (pattern[end] != "]" or end == start + 1):
        end += 2 if pattern[end] == "\\" else 1
    return end + 1
