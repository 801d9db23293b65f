"""JSON schemas of requests: objects that do not say whether they may have more, may not.

JSON Schema allows properties that a schema does not name. A small model that may add some does so
until its tokens are used up, and whoever named the properties wants these. What matches the closed
schema matches the one that was sent. llama.cpp reads schemas in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_LISTS = ("anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")
# With these a property may be named in one place and required or allowed in another.
_COMBINING = (
    "allOf",
    "not",
    "if",
    "patternProperties",
    "dependentSchemas",
    "unevaluatedProperties",
)

Schema = Mapping[str, object]


def closed(schema: Schema) -> Schema:
    """Return a schema whose objects take no properties but those that they name.

    Schemas that put objects together from several parts are returned as they are.
    """
    if any(_is_combined(part) for part in _parts(schema)):
        return schema
    return _closed(schema)


def _is_combined(schema: Schema) -> bool:
    has_choices = "anyOf" in schema or "oneOf" in schema
    return any(name in schema for name in _COMBINING) or (has_choices and "properties" in schema)


def _parts(schema: Schema) -> Iterator[Schema]:
    """Yield a schema and all that it holds."""
    yield schema
    for name in _NAMED:
        named = schema.get(name)
        for child in named.values() if isinstance(named, dict) else ():
            if isinstance(child, dict):
                yield from _parts(child)
    for name in (*_LISTS, *_SINGLE):
        value = schema.get(name)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, dict):
                yield from _parts(child)


def _closed(schema: object) -> dict[str, object]:
    assert isinstance(schema, dict)
    result: dict[str, object] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            result[name] = {key: _child(child) for key, child in value.items()}
        elif name in _LISTS and isinstance(value, list):
            result[name] = [_child(child) for child in value]
        else:
            result[name] = _child(value) if name in _SINGLE else value
    if isinstance(result.get("properties"), dict):
        result.setdefault("additionalProperties", False)
    return result


def _child(value: object) -> object:
    return _closed(value) if isinstance(value, dict) else value
