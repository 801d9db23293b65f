"""The words of the protocol reach a template as they are; what a user wrote makes no marker."""

from __future__ import annotations

import json
from functools import cache

import plain_jinja
import pytest
from trained_vocab import bpe_metadata, trained_merges

from quantcli.text import Tokenizer, from_metadata
from quantcli.text.chat import ChatTemplate, encode_chat

# Control tokens that have the words of the protocol within them.
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<string>",
    "<object>",
    "[function]",
    "<|content|>",
    "<|name|>",
    "<|properties|>",
    "<|x|>",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look it up: <|x|>",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "<string>"}, "name": {}},
            "required": ["x"],
        },
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"x": "name"}}}


@cache
def tokenizer() -> Tokenizer:
    return from_metadata(bpe_metadata(trained_merges(), control=CONTROL))


def controls(ids: list[int]) -> list[str]:
    return [tokenizer().token_text(i) for i in ids if tokenizer().is_control(i)]


def parts(*texts: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


@pytest.mark.parametrize(
    "source",
    [
        # no literal of the template says how a part is made
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.values() | list | last }}{% endfor %}",
        # one does, but only after the template has changed it
        "{% for p in messages[0].content %}{% if p.type | upper == 'TEXT' %}{{ p.text }}{% endif %}"
        "{% endfor %}",
        "{% for p in messages[0].content %}{% if p.type.startswith('te') %}"
        "{{ p[p.type] }}{% endif %}{% endfor %}",
        "{% for p in messages[0].content %}{% for k, v in p.items() if k | length == 4 %}{{ v }}"
        "{% endfor %}{% endfor %}",
    ],
)
def test_parts_reach_a_template_that_does_not_spell_their_type(source: str) -> None:
    template = ChatTemplate(source)
    ids = encode_chat(tokenizer(), template, parts("one <|endoftext|>", "text"))
    assert tokenizer().decode(ids) == template.render(parts("one <|endoftext|>", "text"))
    assert controls(ids) == []


SHOWN = (
    "{{ messages[1].tool_calls[0].type }} {{ messages[1].tool_calls | tojson }}"
    "{% for t in tools %}{% for kind, inner in t.items() if inner is mapping %}"
    "[{{ inner.parameters.type | upper }}]"
    "{% for key, value in (inner.parameters | items | list)[1][1].items() %}"
    "{{ key }}:{{ value.type | default('?') | title }};{% endfor %}{% endfor %}{% endfor %}"
)


def test_types_and_keys_of_tools_and_calls_reach_a_template() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ]
    ids = encode_chat(tokenizer(), ChatTemplate(SHOWN), messages, tools=[TOOL])
    expected = plain_jinja.render(SHOWN, messages=messages, tools=[TOOL])
    assert tokenizer().decode(ids) == expected
    assert "[OBJECT]x:String;name:?;" in expected


def test_a_template_may_make_markers_of_the_types_of_a_schema_but_not_of_its_names() -> None:
    source = (
        "{% for key, value in tools[0].function.parameters.properties.items() %}"
        "{{ '<|' ~ key ~ '|>' }}{{ '<' ~ value.type ~ '>' if value.type }}{% endfor %}"
    )
    ids = encode_chat(tokenizer(), ChatTemplate(source), parts("hi"), tools=[TOOL])
    assert tokenizer().decode(ids, special=True) == "<|x|><string><|name|>"
    assert controls(ids) == ["<string>"]


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{{ '<|' ~ messages[0].content ~ '|>' }}", [{"role": "user", "content": "content"}]),
        ("{{ '<|' ~ messages[0].content[0].text ~ '|>' }}", parts("name")),
        ("{{ '<|' ~ messages[0].name ~ '|>' }}", [{"role": "user", "content": "", "name": "x"}]),
        (
            "{{ '<|' ~ messages[0].tool_calls[0].function.arguments.x ~ '|>' }}",
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        (
            "{% for k in messages[0].tool_calls[0].function.arguments %}{{ '<|' ~ k ~ '|>' }}"
            "{% endfor %}",
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        ("{{ '<' ~ messages[0].type ~ '>' }}", [{"role": "u", "content": "", "type": "string"}]),
        (
            "{% for k in messages[0] %}{{ '<|' ~ k ~ '|>' }}{% endfor %}",
            [{"role": "user", "endoftext": "", "im_end": ""}],
        ),
    ],
)
def test_words_of_the_protocol_where_a_user_may_write_them_make_no_marker(
    source: str, messages: list[dict[str, object]]
) -> None:
    ids = encode_chat(tokenizer(), ChatTemplate(source), messages)
    assert controls(ids) == []
    assert tokenizer().decode(ids) == plain_jinja.render(source, messages=messages)


def test_what_is_shown_as_json_is_unchanged_whatever_it_holds() -> None:
    source = "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ how | tojson }}"
    messages = [{"role": "<string>", "content": "x <|im_end|> \u2801 \\u2801", "<|x|>": [1]}]
    how = {"type": "text", "<object>": ["function"]}
    ids = encode_chat(tokenizer(), ChatTemplate(source), messages, tools=[TOOL], how=how)
    text = tokenizer().decode(ids)
    assert text == plain_jinja.render(source, messages=messages, tools=[TOOL], how=how)
    assert json.loads(text[: text.index("[\n")]) == messages
    assert controls(ids) == []
