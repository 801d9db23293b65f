"""A Hugging Face `config.json`, read by name and type: every refusal names key and value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantcli.arch.keys import show
from quantcli.errors import CheckpointError

Table = Mapping[str, object]

_MAX_ITEMS = 4096  # more than any model has layers, or dimensions of a head

# Names of the bases of RoPE that configurations have used; the first that is there counts.
_THETAS = (
    "global_rope_theta",
    "rope_global_theta",
    "rope_theta_global",
    "rope_theta",
    "rotary_emb_base",
)
_PARTS = ("partial_rotary_factor", "rope_pct", "rope_percent")
_LOCAL_THETAS = (
    "local_rope_theta",
    "rope_local_theta",
    "rope_theta_local",
    "swa_rope_theta",
    "rope_local_base_freq",
)


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The numbers of a model.

    table   config.json, with what a multimodal one nests in `text_config` at its top level, and
            what it leaves out filled in as the model's class does
    """

    table: Table

    def __contains__(self, key: str) -> bool:
        """Return whether a key is there."""
        return key in self.table

    def value(self, *keys: str) -> object:
        """Return the value of the first key that is there, or None."""
        return next((self.table[key] for key in keys if key in self.table), None)

    def integer(self, *keys: str) -> int | None:
        """Return a whole number, None if no key is there or its value is null."""
        value = self.value(*keys)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._refusal(keys, value, "a whole number")

    def needed_integer(self, *keys: str) -> int:
        """Return a whole number above 0 that every model has."""
        value = self.integer(*keys)
        if value is None or value < 1:
            raise self._refusal(keys, value, "a whole number above 0")
        return value

    def number(self, *keys: str) -> float | None:
        """Return a number, None if no key is there or its value is null."""
        value = self.value(*keys)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e38:
            return float(value)
        raise self._refusal(keys, value, "a number that f32 can hold")

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a truth value, the default if the key is missing or null."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        raise self._refusal((key,), value, "true or false")

    def word(self, key: str) -> str | None:
        """Return a text, None if the key is missing or null."""
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value
        raise self._refusal((key,), value, "a word")

    def items(self, key: str, kind: type[int | float | str], allowed: str) -> list[Any] | None:
        """Return a list of values of one kind, None if the key is missing or null."""
        value = self.value(key)
        if value is None:
            return None
        kinds = (int, float) if kind is float else (kind,)
        is_list = isinstance(value, list) and len(value) <= _MAX_ITEMS
        items: list[Any] = value if is_list else [None]  # type: ignore[assignment]
        fits = all(isinstance(item, kinds) and not isinstance(item, bool) for item in items)
        if fits and (kind is str or all(abs(item) < 1e38 for item in items)):
            return items
        raise self._refusal((key,), value, allowed)

    def _refusal(self, keys: tuple[str, ...], value: object, allowed: str) -> CheckpointError:
        key = next((key for key in keys if key in self.table), keys[0])
        got = f"is {show(value)}" if key in self.table else "is missing"
        return CheckpointError(f"config.json: {key} {got}; it must be {allowed}.")

    def rope(self) -> RopeConfig:
        """Return what is said about RoPE, wherever this version of the format says it."""
        params = self.value("rope_parameters", "rope_scaling")
        if params is not None and not isinstance(params, Mapping):
            raise self._refusal(("rope_parameters", "rope_scaling"), params, "an object")
        params = dict(params or {})
        if "full_attention" in params or "sliding_attention" in params:
            full, windowed = params.get("full_attention", params), params.get("sliding_attention")
            for value in (full, windowed):
                if value is not None and not isinstance(value, Mapping):
                    raise self._refusal(("rope_parameters",), value, "an object of objects")
            return RopeConfig(HFConfig(full), HFConfig(windowed or {}))
        if "rope_theta" not in params and (theta := self.value(*_THETAS)) is not None:
            params["rope_theta"] = theta
        if "rope_type" not in params and (kind := params.get("type")) is not None:
            params["rope_type"] = kind
        if "partial_rotary_factor" not in params and (part := self.value(*_PARTS)) is not None:
            params["partial_rotary_factor"] = part
        original = "original_max_position_embeddings"
        if original not in params and (context := self.value(original)) is not None:
            params[original] = context
        local = self.value(*_LOCAL_THETAS)
        return RopeConfig(
            HFConfig(params), HFConfig({} if local is None else {"rope_theta": local})
        )


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """RoPE of layers that see all keys, and what windowed layers have of their own."""

    full: HFConfig
    windowed: HFConfig

    @property
    def kind(self) -> str:
        """The kind of scaling, such as "yarn"; "default" if there is none."""
        value = self.full.value("rope_type")
        if value is not None and not isinstance(value, str):
            raise CheckpointError(f"config.json: rope_type is {show(value)}; it must be a word.")
        return value or "default"


Default = object | Callable[[HFConfig], object]


def completed(table: Table, defaults: Mapping[str, Default]) -> HFConfig:
    """Return a configuration with what it leaves out filled in.

    defaults   value by key; a function is called for keys that are missing or null
    """
    nested = table.get("text_config")
    merged = {**table, **nested} if isinstance(nested, Mapping) else dict(table)
    plain = {key: value for key, value in defaults.items() if not callable(value)}
    merged = {**plain, **merged}
    for key, value in _functions(defaults):
        if merged.get(key) is None:
            merged[key] = value(HFConfig(merged))
    return HFConfig(merged)


def _functions(
    defaults: Mapping[str, Default],
) -> Iterator[tuple[str, Callable[[HFConfig], object]]]:
    for key, value in defaults.items():
        if callable(value):
            yield key, value
