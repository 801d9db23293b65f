"""Built-in chat templates give llama.cpp's text; one is chosen by name or by control tokens."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import plain_jinja
import pytest
from conversations import CONVERSATIONS

from quantcli.errors import UnknownName
from quantcli.text.chat import ChatTemplate
from quantcli.text.chat_builtin import TEMPLATES
from quantcli.text.chat_choice import guessed, instead, named

GOLDEN = Path(__file__).parent.parent / "goldens" / "chat_builtin.json"


@cache
def golden() -> dict[str, dict[str, list[str]]]:
    content = json.loads(GOLDEN.read_text(encoding="utf-8"))["templates"]
    assert isinstance(content, dict)
    return content


def messages(key: str) -> list[dict[str, object]]:
    return [{"role": role, "content": content} for role, content in CONVERSATIONS[key]]


def test_the_names_are_those_of_llama_cpp_in_order() -> None:
    assert list(TEMPLATES) == sorted(golden())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gives_the_text_of_llama_cpp(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name])
    for key in CONVERSATIONS:
        for expected, asks in zip(golden()[name][key], (True, False), strict=True):
            how = {"messages": messages(key), "add_generation_prompt": asks}
            assert plain_jinja.render(TEMPLATES[name], **how) == expected, (key, asks)
            if name != "yandex" or key in ("user", "no_system"):  # which drops a system message
                assert template.render(messages(key), add_generation_prompt=asks) == expected


def test_a_system_message_that_llama_cpp_drops_goes_before_the_users() -> None:
    text = ChatTemplate(TEMPLATES["yandex"]).render(messages("system"))
    assert "Be kind.\n\nHello" in text


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_can_go_on_in_every_template(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name])
    text = template.render(messages("answered"), continue_final_message=True)
    whole = template.render(messages("answered"), add_generation_prompt=False)
    assert whole.startswith(text)
    assert text.endswith("2")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_message_without_text_is_empty(name: str) -> None:
    call = {"role": "assistant", "content": None}
    empty = {"role": "assistant", "content": ""}
    user = messages("user")
    assert ChatTemplate(TEMPLATES[name]).render([*user, call, *user]) == ChatTemplate(
        TEMPLATES[name]
    ).render([*user, empty, *user])


FILE = {
    "tokenizer.chat_template": "default {{ x }}",
    "tokenizer.chat_template.rag": "rag {{ x }}",
    "tokenizer.chat_template.chatml": "own {{ x }}",
}


@pytest.mark.parametrize(
    ("name", "expected"), [("default", "default 1"), ("rag", "rag 1"), ("chatml", "own 1")]
)
def test_the_files_own_templates_go_before_built_in_ones(name: str, expected: str) -> None:
    assert named(FILE, name, {"x": 1}).render(messages("user")) == expected


def test_a_built_in_template_is_found_by_name() -> None:
    assert named(FILE, "zephyr", {}).source == TEMPLATES["zephyr"]


def test_an_unknown_name_is_refused_with_what_is_known() -> None:
    with pytest.raises(UnknownName, match=r"'lama3'. Did you mean llama3\? Known: .*rag"):
        named(FILE, "lama3", {})


@pytest.mark.parametrize(
    ("tokens", "model", "expected"),
    [
        ("<|im_start|> <|im_end|> <|endoftext|>", "gpt2", "chatml"),
        ("<|start_header_id|> <|end_header_id|> <|eot_id|>", "gpt2", "llama3"),
        ("<start_of_turn> <end_of_turn> <bos>", "llama", "gemma"),
        ("[INST] [/INST] <s>", "llama", "mistral-v3"),
        ("[INST] [/INST] <s>", "gpt2", "mistral-v3-tekken"),
        ("[INST] [/INST] [SYSTEM_PROMPT]", "gpt2", "mistral-v7-tekken"),
        ("<|user|> <|assistant|> <|end|>", "llama", "phi3"),
        ("<|im_start|> <|im_end|> <|im_sep|>", "gpt2", "phi4"),
        ("<|start|> <|message|> <|channel|> <|end|>", "gpt2", "gpt-oss"),
        ("<s> </s>", "llama", None),
        ("<|endoftext|>", "gpt2", None),
    ],
)
def test_control_tokens_tell_of_a_template(tokens: str, model: str, expected: str | None) -> None:
    assert guessed({"tokenizer.ggml.model": model}, tokens.split()) == expected


def test_a_file_without_a_template_gets_one_and_a_sentence_about_it() -> None:
    template, note = instead({}, ["<start_of_turn>", "<end_of_turn>"], {"x": 1})
    assert template.source == TEMPLATES["gemma"]
    assert template.defaults == {"x": 1}
    assert "gemma is used: its control tokens are of that" in note
    template, note = instead({}, ["</s>"], {})
    assert template.source == TEMPLATES["chatml"]
    assert "chatml is used: its control tokens tell of none" in note
