"""Schemas of requests are closed where that changes nothing but what nobody asked for."""

from __future__ import annotations

import copy

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from quantcli.server.schemas import closed


class Part(BaseModel):
    name: str
    parts: list[Part] = []
    note: str | None = None


def test_objects_that_name_their_properties_take_no_others() -> None:
    schema = Part.model_json_schema()
    before = copy.deepcopy(schema)
    result = closed(schema)
    assert schema == before
    validator = Draft202012Validator(result)
    good = {"name": "a", "parts": [{"name": "b", "parts": [], "note": None}]}
    assert validator.is_valid(good)
    assert not validator.is_valid(good | {"more": 1})
    assert not validator.is_valid({"name": "a", "parts": [{"name": "b", "more": 1}]})


def test_what_a_schema_says_of_more_properties_stands() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}
    assert closed(schema) == schema


def test_objects_that_name_nothing_stay_open() -> None:
    for schema in ({}, {"type": "object"}, {"type": "array", "items": {"type": "object"}}):
        assert closed(schema) == schema


def test_names_and_values_that_look_like_schemas_are_left_alone() -> None:
    schema = {
        "properties": {"properties": {"const": {"properties": {"a": 1}}}, "not": {"type": "null"}},
        "default": {"properties": {"x": 1}},
        "enum": [{"properties": {}}],
    }
    result = closed(schema)
    assert result == schema | {"additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
        {"properties": {"x": {"properties": {}, "patternProperties": {"^a": {}}}}},
        {"$defs": {"a": {"if": {"properties": {"b": {}}}}}, "properties": {}},
    ],
)
def test_objects_put_together_from_parts_are_left_alone(schema: dict[str, object]) -> None:
    assert closed(schema) == schema
