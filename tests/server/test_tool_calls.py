"""Calls found in answers: every style, however the text is cut into pieces."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantcli.server.tool_calls import STYLES, CallDelta, CallParser, style_of

NAMES = ("get_weather", "add")
PARIS = {"city": 'Paris "quoted" {[', "days": 2, "deep": {"a": [1, {"b": "}"}]}}
CALL = json.dumps({"name": "get_weather", "arguments": PARIS})
LLAMA = json.dumps({"type": "function", "name": "get_weather", "parameters": PARIS})
ADD = json.dumps({"name": "add", "arguments": {"x": 1}})

# style, answer: the text, and (name, arguments) of each call.
CASES = {
    "hermes": ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("get_weather", PARIS)]),
    "hermes, text before": (
        "hermes",
        f"Let me see. <tool_call>\n{CALL}\n</tool_call>",
        "Let me see. ",
        [("get_weather", PARIS)],
    ),
    "hermes, two": (
        "hermes",
        f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{ADD}\n</tool_call>",
        "",
        [("get_weather", PARIS), ("add", {"x": 1})],
    ),
    "hermes, text after": (
        "hermes",
        f"<tool_call>{CALL}</tool_call>\n Done <b>",
        "Done <b>",
        [("get_weather", PARIS)],
    ),
    "hermes, a tag that is none": ("hermes", "if a <tool_ b", "if a <tool_ b", []),
    "hermes, no object": ("hermes", "<tool_call>nonsense", "<tool_call>nonsense", []),
    "hermes, nothing after": ("hermes", "<tool_call>", "<tool_call>", []),
    "hermes, no name": ("hermes", '<tool_call>{"a": 1}', '<tool_call>{"a": 1}', []),
    "hermes, cut off before the name": ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    "llama3, bare": ("llama3", LLAMA, "", [("get_weather", PARIS)]),
    "llama3, tag": ("llama3", f"<|python_tag|>{LLAMA}", "", [("get_weather", PARIS)]),
    "llama3, two": ("llama3", f"{LLAMA}; {ADD}", "", [("get_weather", PARIS), ("add", {"x": 1})]),
    "llama3, text": ("llama3", "Hello { there", "Hello { there", []),
    "llama3, other JSON": ("llama3", '{"city": "Paris"} ok', '{"city": "Paris"} ok', []),
    "llama3, unknown tool": ("llama3", '{"name": "x"} ok', '{"name": "x"} ok', []),
    "mistral, list": (
        "mistral",
        f"[TOOL_CALLS] [{CALL}, {ADD}]",
        "",
        [("get_weather", PARIS), ("add", {"x": 1})],
    ),
    "mistral, name first": (
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{json.dumps(PARIS)}",
        "",
        [("get_weather", PARIS)],
    ),
    "mistral, name and id first": (
        "mistral",
        f"[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{json.dumps(PARIS)}",
        "",
        [("add", PARIS)],
    ),
    "mistral, bare list": ("mistral", f"[{CALL}]", "", [("get_weather", PARIS)]),
    "json": ("json", CALL, "", [("get_weather", PARIS)]),
    "json, fenced": ("json", f"```json\n{CALL}\n```", "", [("get_weather", PARIS)]),
    "json, a fence that holds none": ("json", "```py\nx\n```", "```py\nx\n```", []),
    "json, a list that is none": ("json", "[1, 2]", "[1, 2]", []),
    "json, no arguments": ("json", '{"name": "add"}', "", [("add", {})]),
    "json, arguments first": (
        "json",
        '{"arguments": {"x": 1}, "name": "add"}',
        "",
        [("add", {"x": 1})],
    ),
    "json, arguments in quotes": (
        "json",
        json.dumps({"name": "add", "arguments": json.dumps({"x": 1})}),
        "",
        [("add", {"x": 1})],
    ),
    "json, null arguments": ("json", '{"name": "add", "arguments": null}', "", [("add", {})]),
    "json, empty": ("json", "", "", []),
}


def read(style: str, pieces: list[str], most: int | None = None) -> tuple[str, list[CallDelta]]:
    """Return the text and the pieces of calls in an answer."""
    parser = CallParser(STYLES[style], NAMES, most)
    text, deltas = "", []
    for piece in pieces:
        more, found = parser.push(piece)
        text, deltas = text + more, deltas + found
    more, found = parser.finish()
    return text + more, deltas + found


def joined(deltas: list[CallDelta]) -> list[tuple[str | None, str]]:
    """Return name and arguments of each call, as a client puts them together."""
    calls: list[tuple[str | None, str]] = []
    for delta in deltas:
        if delta.id is not None:
            assert delta.index == len(calls)
            calls.append((delta.name, delta.arguments))
        else:
            assert delta.index == len(calls) - 1
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + delta.arguments)
    return calls


@pytest.mark.parametrize("case", CASES)
def test_calls_are_found_wherever_the_text_is_cut(case: str) -> None:
    style, answer, text, calls = CASES[case]
    random_cuts = random.Random(case)
    for n_pieces in (1, 2, 3, 7, max(1, len(answer))):
        places = range(1, max(2, len(answer)))
        cuts = sorted(random_cuts.sample(places, min(n_pieces - 1, len(places))))
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        seen, deltas = read(style, pieces)
        assert seen == text
        assert [(n, json.loads(arguments)) for n, arguments in joined(deltas)] == calls


@given(
    st.sampled_from(sorted(STYLES)),
    st.lists(st.text(alphabet='{}[]"\\,: anme<tol_c>/`', max_size=9)),
)
def test_no_text_is_lost_or_made_up_where_there_is_no_call(style: str, pieces: list[str]) -> None:
    text, deltas = read(style, pieces)
    if not deltas:
        assert text == "".join(pieces)


def test_arguments_come_while_the_call_is_being_written() -> None:
    parser = CallParser(STYLES["hermes"], NAMES)
    parser.push('<tool_call>{"name": "add", "arguments": {"x": ')
    _, deltas = parser.push('"a long te')
    assert [d.arguments for d in deltas] == [' "a long te']


def test_only_as_many_calls_as_wanted_are_told() -> None:
    answer = f"<tool_call>{CALL}</tool_call><tool_call>{ADD}</tool_call>"
    assert len(joined(read("hermes", [answer], most=1)[1])) == 1


def test_ids_are_unique_and_of_the_styles_form() -> None:
    ids = [
        delta.id
        for style in STYLES
        for delta in read(style, [f"{'' if style != 'hermes' else '<tool_call>'}{CALL}"])[1]
        if delta.id
    ]
    assert len(set(ids)) == len(STYLES)
    mistral = next(d.id for d in read("mistral", [CALL])[1] if d.id)
    assert len(mistral) == 9
    assert mistral.isalnum()


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("<tool_call>{{ x }}</tool_call>", "hermes"),
        ("<|python_tag|>", "llama3"),
        ('{"name": function name, "parameters": dictionary}', "llama3"),
        ("{{ messages }}", "json"),
    ],
)
def test_the_template_tells_the_style(template: str, name: str) -> None:
    assert style_of(template).name == name
