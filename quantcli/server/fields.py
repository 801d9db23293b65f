"""The fields of a request's JSON, read by name and type: null counts as absent, all is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Never

from quantcli.errors import RequestError

MAX_INT = 2**31 - 1


def refuse(message: str, param: str | None = None, code: str | None = None) -> Never:
    """Raise RequestError with status 400."""
    raise RequestError(message, param=param, code=code)


def shown(value: object) -> str:
    """Return a value for a message, cut to a length that a line can hold."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**70:
        return "a whole number of over 70 bits"
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """A JSON object of a request; names in messages are dotted from the request's top."""

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        """Read from an object that stands at a place, such as "response_format."."""
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        """Return whether a field is there and not null."""
        return self.values.get(name) is not None

    def raw(self, name: str) -> object:
        """Return a field as it is, None if it is absent."""
        return self.values.get(name)

    def wrong(self, name: str, should_be: str) -> Never:
        """Raise RequestError: a field is not what it should be."""
        seen = shown(self.values.get(name))
        refuse(f"{self.where}{name} is {seen}; it should be {should_be}.", self.where + name)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "true or false")
        return value

    def integer(self, name: str, lowest: int, highest: int = MAX_INT) -> int | None:
        """Return a whole number in a range; 3.0 is one."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            self.wrong(name, f"a whole number from {lowest} to {highest}")
        return value

    def number(self, name: str, lowest: float, highest: float) -> float | None:
        """Return a number in a range."""
        value = self.values.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= highest:  # type: ignore[operator]
            self.wrong(name, f"a number from {lowest:g} to {highest:g}")
        number = float(value)  # type: ignore[arg-type]
        assert math.isfinite(number)
        return number

    def text(self, name: str, most: int = 1 << 30) -> str | None:
        """Return a string of at most some characters."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.wrong(name, "a string")
        if len(value) > most:
            refuse(
                f"{self.where}{name} has {len(value)} characters; at most {most} are allowed.",
                self.where + name,
            )
        return value

    def one_of(self, name: str, known: tuple[str, ...], default: str) -> str:
        """Return one of some words."""
        value = self.values.get(name)
        if value is None:
            return default
        if value not in known or not isinstance(value, str):
            self.wrong(name, "one of " + ", ".join(known))
        return value

    def items(self, name: str, most: int) -> list[object]:
        """Return a list of at most some items, empty if it is absent."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(name, "a list")
        if len(value) > most:
            refuse(
                f"{self.where}{name} has {len(value)} items; at most {most} are allowed.",
                self.where + name,
            )
        return value

    def object(self, name: str) -> Fields | None:
        """Return an object, None if it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, "an object")
        return Fields(value, f"{self.where}{name}.")

    def objects(self, name: str, most: int) -> Iterator[Fields]:
        """Yield the objects of a list."""
        for i, value in enumerate(self.items(name, most)):
            place = f"{self.where}{name}[{i}]"
            if not isinstance(value, dict):
                refuse(f"{place} is {shown(value)}; it should be an object.", place)
            yield Fields(value, place + ".")
