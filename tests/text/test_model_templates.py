"""Templates in the manner of today's models give what Hugging Face's Jinja2 gives."""

from __future__ import annotations

from functools import cache
from typing import Any

import plain_jinja
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from model_templates import ALL, BRACKETS, CHANNELS, DOCUMENTS, HEADERS, THOUGHTS
from random_texts import TEXT_WITH_SPELLINGS
from trained_vocab import bpe_metadata, trained_merges

from quantcli.errors import UsageError
from quantcli.text import Tokenizer, from_metadata
from quantcli.text.chat import ChatTemplate, encode_chat

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
    *("<|START|>", "<|END|>", "<|endoftext|>"),
)
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place in \u00dcrz\u00fcr",
        "parameters": {
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "where <here>"},
                "how": {"type": "string", "enum": ["near", "far"], "default": "near"},
                "boxes": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"x": {"type": "number"}}},
                },
                "why": {"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}]},
            },
            "required": ["at"],
        },
    },
}
NAP = {"type": "function", "function": {"name": "nap", "description": "Rest", "parameters": {}}}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "caf\u00e9 <b>", "how": "far"}},
}
USER = {"role": "user", "content": " What's there? \n"}
SYSTEM = {"role": "system", "content": "Be kind. "}
ANSWER = {"role": "assistant", "content": "<think>\nhm, \n</think>\n\nA shop."}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"seen": "\u00e9", "n": [1]}'}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER, ANSWER],
    "called": [USER, CALLING, RESULT],
    "more": [SYSTEM, USER, CALLING, RESULT, ANSWER, USER],
}
NAMES: list[dict[str, Any]] = [
    {},
    {"tools": [LOOK, NAP]},
    {"enable_thinking": False, "reasoning_effort": "high", "date_string": "1 May"},
    {"builtin_tools": ["look", "code_interpreter"], "tools_in_user_message": False},
    {"documents": [{"title": "T", "text": "<|END|> of it"}, {"text": "x", "id": 3}]},
]


@cache
def tokenizer() -> Tokenizer:
    return from_metadata(bpe_metadata(trained_merges(), control=CONTROL))


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(ALL[name], TOKENS)


def theirs(name: str, chat: list[dict[str, Any]], **names: Any) -> str:
    values = {"tools": None, "documents": None, **TOKENS, **names, "messages": chat}
    return plain_jinja.render(ALL[name], **values)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_is_rendered_as_by_hugging_face(name: str, chat: str) -> None:
    for names in NAMES:
        for asks in (True, False):
            how = {**names, "add_generation_prompt": asks}
            try:
                expected = theirs(name, CHATS[chat], **how)
            except TemplateError as error:
                with pytest.raises(UsageError, match=str(error)):
                    template(name).render(CHATS[chat], **how)
                continue
            assert template(name).render(CHATS[chat], **how) == expected
            ids = encode_chat(tokenizer(), template(name), CHATS[chat], **how)
            assert tokenizer().decode(ids, special=True) == expected


def test_what_each_template_is_here_for_is_shown() -> None:
    tools = {"tools": [LOOK]}
    assert "(_: {\n// where <here>\nat: string,\nhow?: " in template("channels").render(
        CHATS["one"], **tools
    )
    assert '"near" | "far" // default: "near"' in template("channels").render(CHATS["one"], **tools)
    assert 'look.call(at="caf\u00e9 <b>", how="far")<|eom_id|>' in template("headers").render(
        CHATS["called"], builtin_tools=["look"]
    )
    assert '"id": "abcdefghi"}]</s>' in template("brackets").render(CHATS["called"])
    assert "<think>\nHm.\n</think>\n\n<tool_call>" in template("thoughts").render(CHATS["called"])
    assert "<think>\n\n</think>\n\n" in template("thoughts").render(
        CHATS["one"], enable_thinking=False
    )


@pytest.mark.parametrize("name", ALL)
@given(texts=st.lists(TEXT_WITH_SPELLINGS, min_size=6, max_size=6))
def test_hostile_texts_anywhere_make_no_control_token(name: str, texts: list[str]) -> None:
    a, b, c, d, e, f = texts
    filled = [_filled(a, b, c, d, e, f), _filled(*"uvwxyz")]
    made = []
    for messages, names in filled:
        ids = encode_chat(tokenizer(), template(name), messages, **names)
        made.append([i for i in ids if tokenizer().is_control(i)])
    assert made[0] == made[1]


def _filled(
    a: str, b: str, c: str, d: str, e: str, f: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    call = {"name": a, "arguments": {"at": b, "k" + c: {d: [e]}}}
    messages = [
        {"role": "user", "content": "q" + f},
        {"role": "assistant", "content": c, "tool_calls": [{**CALL, "function": call}]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": d},
    ]
    function = {"name": "n" + e, "description": f, "parameters": LOOK["function"]["parameters"]}
    tools = [{"type": "function", "function": function}]
    return messages, {"tools": tools, "documents": [{"title": a, "text": b}]}


@pytest.mark.parametrize("name", ["brackets", "channels", "documents", "headers", "thoughts"])
@pytest.mark.parametrize("text", ["Well", "Well, ", " Well\n"])
def test_an_answer_goes_on(name: str, text: str) -> None:
    chat = [USER, {"role": "assistant", "content": text}]
    got = template(name).render(chat, continue_final_message=True)
    whole = theirs(name, chat, add_generation_prompt=False)
    assert whole.startswith(got)
    strips = name in ("brackets", "headers")
    assert got.endswith(text.strip() if strips else text)
    ids = encode_chat(tokenizer(), template(name), chat, continue_final_message=True)
    assert tokenizer().decode(ids, special=True) == got


def test_an_answer_in_parts_goes_on() -> None:
    source = "{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": parts}]
    assert ChatTemplate(source).render(chat, continue_final_message=True) == "[x][ab "


@pytest.mark.parametrize(
    ("source", "last", "match"),
    [
        ("{{ messages[-1].content }}", USER, "the last message is of another role"),
        ("{{ messages[-1].content }}", {"role": "assistant"}, "the last message is empty"),
        ("x", {"role": "assistant", "content": "a"}, "does not show the message"),
    ],
)
def test_what_cannot_go_on_is_refused(source: str, last: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ChatTemplate(source).render([USER, last], continue_final_message=True)


def test_a_file_may_have_a_template_of_its_own_for_tools() -> None:
    file = {
        "tokenizer.chat_template": "plain {{ tools is none }} {{ x }}",
        "tokenizer.chat_template.tool_use": "with {{ tools | length }} {{ x }}",
    }
    several = ChatTemplate.from_metadata(file, defaults={"x": 7})
    assert several is not None
    assert several.render([USER]) == "plain True 7"
    assert several.render([USER], tools=[]) == "plain False 7"
    assert several.render([USER], tools=[LOOK, NAP]) == "with 2 7"
    ids = encode_chat(tokenizer(), several, [USER], tools=[LOOK])
    assert tokenizer().decode(ids) == "with 1 7"


def test_the_templates_are_those_that_are_compared() -> None:
    assert set(ALL.values()) == {BRACKETS, CHANNELS, DOCUMENTS, HEADERS, THOUGHTS}
