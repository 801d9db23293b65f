"""Grammars that are refused: wrong, not supported, or made to cost time."""

from __future__ import annotations

import json
import sys

import pytest
from test_grammar import grammars, schema

from quantcli.engine.request import GrammarSpec
from quantcli.errors import UsageError


def nested(n: int) -> object:
    value: object = {"type": "integer"}
    for _ in range(n):
        value = {"type": "array", "items": value}
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"not": {"type": "string"}}, 'Unimplemented keys: ."not"'),
        ({"not": {}, "x-guidance": {"lenient": True}}, "Unimplemented keys"),
        ({"type": "string", "format": "shoe-size"}, "Unknown format: shoe-size"),
        ({"$ref": "http://localhost:1/schema.json"}, "does not fetch"),
        ({"$ref": "file:///etc/hostname"}, "cannot be followed"),
        ({"$ref": "#/$defs/missing"}, "does not exist"),
        ({"$ref": "#"}, "cannot be followed"),
        ({"allOf": [{"$ref": "#"}]}, "cannot be followed"),
        (False, "cannot be followed"),
        (7, "a JSON schema is an object"),
        ({"type": "string", "pattern": "(a"}, "cannot be followed"),
        ({"type": "string", "pattern": "a{99999999}"}, "repeats something 99999999 times"),
        ({"type": "string", "pattern": "((a{100}){100}){100}"}, "repeats something"),
        ({"patternProperties": {"(ab){60000}": {}}}, "repeats something"),
        ({"type": "string", "minLength": 10**9}, "minLength is 1000000000; at most 10000"),
        ({"type": "array", "minItems": 1e300}, "minItems is 1e"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(501)}}, "501 properties"),
        ({"enum": [f"v{i}" for i in range(20_000)]}, "at most 65536"),
        ({"enum": [1] * 11_000}, "over 10000 values"),
        (nested(100), "nests 101 levels; at most 64"),
        (
            {
                "allOf": [
                    {"oneOf": [{"properties": {f"{i}{j}": {}}} for j in "ab"]} for i in range(9)
                ]
            },
            "cannot be followed",
        ),
    ],
)
def test_a_schema_is_refused_in_one_line(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        grammars().matcher(schema(value))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "{", "no valid JSON"),
        ("json_schema", '{"type": "strin\ud800"}', "not valid UTF-8"),
        ("json_schema", "", "is empty"),
        ("json_schema", "[" * 10_000 + "]" * 10_000, "nests 10000 levels"),
        ("json_schema", '"' * 70_000, "70000 bytes"),
        ("json_object", "x", "1 bytes; at most 0"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "(" * 10_000 + "a" + ")" * 10_000, "20001 bytes"),
        ("regex", "(" * 100 + "a" + ")" * 100, "nests 100 levels"),
        ("regex", "((a{100}){100}){100}", "repeats something"),
        ("regex", "[^]]{20000}", "repeats something 20001 times"),
        ("regex", "   ", "is empty"),
        ("regex", "[^\\s\\S]", "cannot be followed"),
        ("lark", "start: foo", "unknown name"),
        ("lark", "start: a\na: a", "cannot be followed"),
        ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nests 5000 levels"),
        ("lark", '%llguidance {"no_forcing": false}\nstart: "a"', "may not set %llguidance"),
        ("gbnf", "root ::= (", "cannot be read"),
        ("gbnf", 'start ::= "a"', "No 'root' rule"),
        ("gbnf", "root ::= b", "Rule 'b' not found"),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nests 5000 levels"),
    ],
)
def test_a_grammar_is_refused_in_one_line(kind: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        grammars().matcher(GrammarSpec(kind, text))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "a{9000}"),
        GrammarSpec("regex", r"\({3}[]{]{2}\{99999\}"),
        GrammarSpec("regex", "(((a|b|c|d){1,50}){1,50}){1,50}x"),
        GrammarSpec("regex", "[ab]*a[ab]{25}"),
        GrammarSpec("lark", 'start: a{300000}\na: "a"'),
        GrammarSpec("lark", 'start: a{3000}\na: b{3000}\nb: "a"{3000}'),
        GrammarSpec("gbnf", "root ::= [a-z]{1,100000}"),
        schema(True),
        schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}}),
        schema({"type": "string", "pattern": "^a*$", "minLength": 1000}),
        schema({"type": "array", "minItems": 9000, "items": {"type": "array", "minItems": 9000}}),
        schema({"enum": [f"value {i}" for i in range(4000)]}),
        schema(nested(30)),
    ],
)
def test_large_grammars_within_the_limits_take_their_first_tokens(spec: GrammarSpec) -> None:
    matcher = grammars().matcher(spec)
    for _ in range(5):
        bits = [i for i in range(256) if matcher.allowed()[i // 32] >> (i % 32) & 1]
        matcher.accept(bits[0])


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="unknown kind of grammar"):
        GrammarSpec("ebnf", "x")


def test_without_llguidance_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install 'quantcli\[serve\]'"):
        grammars().matcher(GrammarSpec("regex", "a"))


def test_a_model_without_an_end_cannot_follow_a_grammar() -> None:
    from fakes import FakeTokenizer

    from quantcli.engine.grammar import Grammars

    with pytest.raises(UsageError, match="this model has none"):
        Grammars(FakeTokenizer(), 64).matcher(GrammarSpec("json_object"))  # type: ignore[arg-type]


def test_depth_is_not_counted_in_what_is_escaped() -> None:
    assert grammars().matcher(GrammarSpec("regex", r"\(" * 200)).n_valid([40] * 200) == 200
    assert json.dumps(nested(3)).count("[") == 0
