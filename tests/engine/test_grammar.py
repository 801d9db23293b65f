"""Answers under a grammar: what may come next, against other readers of the same grammar."""

from __future__ import annotations

import json
import re

import jsonschema
import numpy as np
import pytest
from driving import answer, engine_of, finish_all, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.grammar import Grammars, Matcher
from quantcli.engine.request import GrammarSpec, Request, SamplingParams

END = 256
PIECES: list[str | bytes] = [
    *(bytes([i]) for i in range(256)),
    "<end>",
    '{"',
    '":',
    '", "',
    '"}',
    "name",
    "true",
    "}</end>",
    "  ",
]


class Bytes(FakeTokenizer):
    """A token for each byte, the end, and some longer ones."""

    def __init__(self) -> None:
        super().__init__(PIECES, eog=(END,))

    def encode(self, text: str, **_: bool) -> list[int]:
        return list(text.encode())


TOKENIZER = Bytes()


def grammars() -> Grammars:
    return Grammars(TOKENIZER, len(PIECES))


def texts(matcher: Matcher) -> set[bytes]:
    bits = np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little")
    return {TOKENIZER.token_bytes(int(token)) for token in np.flatnonzero(bits)}


def schema(value: object) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value))


PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


def test_only_tokens_that_lead_on_are_allowed() -> None:
    matcher = grammars().matcher(schema(PERSON))
    assert texts(matcher) == {b"{", b'{"'}
    for token in TOKENIZER.encode('{"name": "'):
        assert TOKENIZER.token_bytes(token) in texts(matcher)
        matcher.accept(token)
    assert texts(matcher) == {b"A", b"B"}
    matcher.accept(ord("B"))
    assert matcher.forced()[:1] == [ord("o")]
    assert matcher.n_valid(TOKENIZER.encode('ob", "old"')) == 10
    assert matcher.n_valid(TOKENIZER.encode("obi")) == 2
    for token in TOKENIZER.encode('ob", "old": true'):
        matcher.accept(token)
    assert not matcher.is_complete
    matcher.accept(ord("}"))
    assert matcher.is_complete


def test_what_may_end_but_need_not_allows_the_end_too() -> None:
    matcher = grammars().matcher(GrammarSpec("regex", "a+"))
    assert texts(matcher) == {b"a"}
    matcher.accept(ord("a"))
    assert texts(matcher) == {b"a", b"<end>"}


def test_a_matcher_is_its_own_though_its_grammar_is_compiled_once() -> None:
    made = grammars()
    one, other = (made.matcher(GrammarSpec("regex", "ab")) for _ in range(2))
    one.accept(ord("a"))
    assert (texts(one), texts(other)) == ({b"b"}, {b"a"})


def test_forced_tokens_are_worked_out_once_and_followed() -> None:
    matcher = grammars().matcher(GrammarSpec("regex", "abcd(e|f)gh"))
    assert matcher.forced() == list(b"abcd")
    matcher.accept(ord("a"))
    assert matcher.forced() == list(b"bcd")
    for token in b"bcd":
        matcher.accept(token)
    assert matcher.forced() == []
    matcher.accept(ord("f"))
    assert matcher.forced() == list(b"gh")
    endless = GrammarSpec("lark", 'start: a{99999}\na: b{99999}\nb: "x"')
    assert grammars().matcher(endless).forced() == []


def test_no_text_becomes_a_control_token() -> None:
    matcher = grammars().matcher(GrammarSpec("regex", "<end>x"))
    assert texts(matcher) == {b"<"}
    assert END not in matcher.forced()


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("regex", "[0-9]{2}:[0-9]{2}", "12:34", "1:23"),
        ("regex", "(a+)+b", "aaab", "aaac"),
        ("lark", 'start: "yes" | "no"', "yes", "maybe"),
        ("lark", 'start: a+\na: "x" | "(" a ")"', "((x))x", "((x)"),
        ("gbnf", 'root ::= "yes" | "no" ws\nws ::= [ \\t]*', "no  ", "no."),
        ("gbnf", 'root ::= item{2,3}\nitem ::= [a-c] ","', "a,b,", "a,"),
        ("json_object", "", '{"a": [1, 2.5e3, {"b": null}], "c": "\\u00e9\\n"}', "[1]"),
        ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 12}', "11", "13"),
        ("json_schema", '{"type": "array", "items": {"const": 1}}', "[1, 1]", "[1, 2]"),
        ("json_schema", '{"type": "string", "pattern": "^a.c$"}', '"abc"', '"abd"'),
        ("json_schema", json.dumps(PERSON), '{\n  "name": "Ann",\n  "old": true\n}', '{"old"'),
        ("json_schema", '{"$ref": "#/$defs/d", "$defs": {"d": {"const": "x"}}}', '"x"', '"y"'),
    ],
)
def test_a_grammar_takes_what_it_describes_and_nothing_else(
    kind: str, text: str, good: str, bad: str
) -> None:
    made = grammars()
    for said, is_good in ((good, True), (bad, False)):
        matcher = made.matcher(GrammarSpec(kind, text))
        tokens = TOKENIZER.encode(said)
        n = matcher.n_valid(tokens)
        if n == len(tokens):
            for token in tokens:
                matcher.accept(token)
            is_whole = matcher.is_complete or b"<end>" in texts(matcher)
            assert is_whole == is_good, (said, n)
        else:
            assert not is_good, (said, n)


# Whole answers -----------------------------------------------------------------------------------


def noisy(history: History) -> F32:
    """Return logits without sense, but with a liking for endings."""
    row = np.random.default_rng([len(history), *history[-3:]]).standard_normal(len(PIECES))
    row[[END, *b'"}]']] += 3
    return row.astype(np.float32)


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "integer", "minimum": -5, "maximum": 500},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "number"},
            {"enum": ["a", "b c", 3, None]},
            {"type": "string", "maxLength": 5},
            {"type": "string", "pattern": "^[a-f]{1,3}$"},
            {"type": "string", "format": "date"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda s: {"type": "array", "items": s, "minItems": 1, "maxItems": 3}, inner),
        st.builds(
            lambda a, b: {
                "type": "object",
                "properties": {"first": a, "second": b},
                "required": ["first"],
                "additionalProperties": False,
            },
            inner,
            inner,
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=5,
)


@given(value=SCHEMAS, seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_an_answer_under_a_schema_is_valid_by_another_reader(
    value: dict[str, object], seed: int
) -> None:
    model = FakeModel(noisy, n_vocab=len(PIECES), context=300, cache="paged", n_sequences=1)
    request = Request((1,), SamplingParams(seed=seed, temperature=1.0), grammar=schema(value))
    text, _, finish = answer(engine_of(model, TOKENIZER), request)
    assert is_empty(model)
    if finish == "stop":
        jsonschema.validate(json.loads(text), value, jsonschema.Draft202012Validator)
    else:
        assert finish == "context", finish


def test_the_answer_ends_with_the_grammar() -> None:
    model = FakeModel(lambda history: ord("x"), n_vocab=len(PIECES), context=64)
    request = Request(
        (1,), SamplingParams(temperature=0.0), grammar=GrammarSpec("regex", "[x-z]{3}")
    )
    assert answer(engine_of(model, TOKENIZER), request) == ("xxx", [120] * 3, "stop")


def test_choices_follow_a_grammar_each_for_itself() -> None:
    model = FakeModel(noisy, n_vocab=len(PIECES), context=64)
    engine = engine_of(model, TOKENIZER)
    spec = GrammarSpec("regex", "[a-m]{4}[0-9]")
    number = engine.submit(Request((1,), SamplingParams(seed=1), n=3, grammar=spec))
    events = finish_all(engine)[number]
    said = ["".join(e.text for e in events if e.choice == i) for i in range(3)]
    assert all(re.fullmatch(spec.text, text) for text in said)
    assert len(set(said)) == 3


def test_a_request_that_bans_all_its_grammar_allows_ends_with_an_error() -> None:
    model = FakeModel(noisy, n_vocab=len(PIECES), context=64)
    engine = engine_of(model, TOKENIZER)
    params = SamplingParams(logit_bias={ord("b"): float("-inf")})
    bad = engine.submit(Request((1,), params, grammar=GrammarSpec("regex", "ab")))
    good = engine.submit(Request((1,), params, grammar=GrammarSpec("regex", "ac")))
    events = finish_all(engine)
    assert "the grammar leave no token" in str(events[bad][-1].error)
    assert "".join(e.text for e in events[good]) == "ac"
    assert is_empty(model)
