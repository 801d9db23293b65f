"""The words of a command line before Typer reads them, and its errors after.

Typer reads letters behind a one-letter option as that option's value: llama.cpp's `-ngl 99` would
be `-n gl`, and `-fa on` the file `a`. Here only a number may follow without a space. What is wrong
with a value is said with the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand

from quantcli.errors import UsageError

_NUMBER = re.compile(r"[+-]?\.?[0-9].*", re.DOTALL)


class Command(TyperCommand):
    """A command that takes options as llama.cpp's users write them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read a command line. Raises UsageError for an unknown option or a bad value."""
        takes_value = {
            name: not getattr(option, "is_flag", False)
            for option in self.get_params(ctx)
            if option.param_type_name == "option"
            for name in (*option.opts, *option.secondary_opts)
        }
        if not ctx.resilient_parsing:  # completion of a line that is not finished
            args = separated(args, takes_value)
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            sentence = bad_value(error)
            if sentence is None:
                raise
            raise UsageError(f"{sentence} See '{ctx.command_path} --help'.") from error


def separated(words: Iterable[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Return words with every value that is glued to a one-letter option apart from it.

    takes_value   name of an option: whether a value follows it

    Raises UsageError for a word that begins with one dash and is neither an option, nor flags,
    nor an option and its number.
    """
    result: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            return [*result, word, *left]
        name, equals, value = word.partition("=")
        if word in takes_value:
            result.append(word)
            result.extend(islice(left, 1 if takes_value[word] else 0))
        elif equals and takes_value.get(name) and not name.startswith("--"):
            result += [name, value]
        elif re.match(r"-[^-].", word, re.DOTALL) and not _are_flags(word, takes_value):
            if not takes_value.get(word[:2]) or not _NUMBER.fullmatch(word[2:]):
                raise _unknown(word, takes_value)
            result += [word[:2], word[2:]]
        else:
            result.append(word)
    return result


def _are_flags(word: str, takes_value: Mapping[str, bool]) -> bool:
    """Return whether a word is several one-letter flags in one, such as -vq."""
    return all(takes_value.get(f"-{letter}") is False for letter in word[1:])


def _unknown(word: str, takes_value: Mapping[str, bool]) -> UsageError:
    hint = ""
    if takes_value.get(word[:2]):
        hint = f" If {word[:2]} is meant, leave a space after it."
    return UsageError(f"no such option: {word}.{hint}")


def bad_value(error: BadParameter) -> str | None:
    """Return what is wrong with an option's value, the value included; None if it is not known."""
    cause: Any = error.__cause__
    if error.param is None or not hasattr(cause, "errors"):
        return None
    detail = cause.errors()[0]
    limits = detail.get("ctx", {})
    kind = str(detail["type"])
    if kind.startswith("int"):
        right = "a whole number"
    elif kind.startswith("float"):
        right = "a number"
    elif "ge" in limits:
        right = f"{limits['ge']} or more"
    elif "le" in limits:
        right = f"{limits['le']} or less"
    else:
        return None
    return f"{', '.join(error.param.opts)}: {detail['input']!r} must be {right}."
