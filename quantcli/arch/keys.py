"""Reading a model's metadata by name, type and range: every refusal names the key and its value."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Final

import numpy as np

from quantcli.errors import CheckpointError

_MOST_VALUES = 64  # in an array that has not one value a layer
REQUIRED: Final = None  # the default of a key that must be there


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one architecture: `prefix.name` in a file's metadata."""

    metadata: Mapping[str, object]
    prefix: str

    def __contains__(self, name: str) -> bool:
        """Return whether a key is present."""
        return f"{self.prefix}.{name}" in self.metadata

    def value(self, name: str, default: object = REQUIRED) -> object:
        """Return a value as it is; raise CheckpointError if it is required and missing."""
        value = self.metadata.get(f"{self.prefix}.{name}", default)
        if value is REQUIRED:
            raise CheckpointError(
                f"key {self.prefix}.{name} is missing; every {self.prefix} model has it."
            )
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = REQUIRED) -> int:
        """Return a whole number in [low, high]."""
        return self._integer(name, self.value(name, default), low, high)

    def number(
        self,
        name: str,
        low: float,
        high: float,
        default: float | None = REQUIRED,
        *,
        above: bool = False,
    ) -> float:
        """Return a number in [low, high], or in (low, high] with `above`; never a NaN."""
        value = self.value(name, default)
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            number = float(value)
            if low <= number <= high and not (above and number == low):
                return number
        first = f"above {low:g} and" if above else f"from {low:g}"
        raise self._refusal(name, value, f"a number {first} up to {high:g}")

    def text(self, name: str, choices: tuple[str, ...], default: str | None = REQUIRED) -> str:
        """Return one of some words."""
        value = self.value(name, default)
        if isinstance(value, str) and value in choices:
            return value
        raise self._refusal(name, value, f"one of {', '.join(choices)}")

    def integers(self, name: str) -> list[int]:
        """Return an array of whole numbers."""
        value = self.value(name)
        if isinstance(value, np.ndarray | list | tuple) and len(value) <= _MOST_VALUES:
            return [self._integer(name, v, -(2**31), 2**31 - 1) for v in list(value)]
        raise self._refusal(name, value, f"an array of up to {_MOST_VALUES} whole numbers")

    def flag(self, name: str, default: bool | None = REQUIRED) -> bool:
        """Return a truth value."""
        value = self.value(name, default)
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise self._refusal(name, value, "true or false")

    def per_layer(
        self, name: str, n_layers: int, low: int, high: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return a whole number in [low, high] for each layer, from one value or an array."""
        if default is not None and name not in self:
            return default
        value = self.value(name)
        if not isinstance(value, np.ndarray | list | tuple):
            return (self._integer(name, value, low, high),) * n_layers
        values = self._one_each(name, value, n_layers)
        return tuple(self._integer(f"{name}[{i}]", v, low, high) for i, v in enumerate(values))

    def flag_per_layer_or_integer(
        self, name: str, n_layers: int, low: int, high: int
    ) -> tuple[bool, ...] | int | None:
        """Return a truth value for each layer if the key is an array, else a whole number."""
        if name not in self:
            return None
        value = self.value(name)
        if not isinstance(value, np.ndarray | list | tuple):
            return self._integer(name, value, low, high)
        values = self._one_each(name, value, n_layers)
        if all(v in (0, 1) for v in values):
            return tuple(bool(v) for v in values)
        raise self._refusal(name, value, "true or false for each layer")

    def _one_each(self, name: str, value: Sized, n_layers: int) -> list[object]:
        if len(value) != n_layers:  # before a long array becomes a list
            raise self._refusal(name, value, f"a single value or one for each of {n_layers} layers")
        return list(value.tolist()) if isinstance(value, np.ndarray) else list(value)  # type: ignore[call-overload]

    def _integer(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            number = int(value)
            if low <= number <= high:
                return number
        raise self._refusal(name, value, f"a whole number from {low} to {high}")

    def _refusal(self, name: str, value: object, allowed: str) -> CheckpointError:
        return CheckpointError(f"{self.prefix}.{name} is {show(value)}, but must be {allowed}.")


def show(value: object) -> str:
    """Return a value for a message: one short phrase, whatever it is."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    if isinstance(value, int | np.integer):
        return str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    return f"an array of {len(value)}" if isinstance(value, Sized) else f"a {type(value).__name__}"
