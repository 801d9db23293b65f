"""A conversation's ids: Hugging Face's for ordinary text, and never a forged control token."""

from __future__ import annotations

from functools import cache

import plain_jinja
import pytest
from hugging_face import pipeline
from hypothesis import assume, given
from hypothesis import strategies as st
from random_texts import TEXT, TEXT_WITH_SPELLINGS
from templates import ALL, CHATML, PARTS_ONLY, TOOLS
from tokenizers import Tokenizer as Pipeline
from trained_vocab import (
    Metadata,
    bpe_metadata,
    pieces_of,
    spm_metadata,
    trained_merges,
    trained_processor,
)

from quantcli.errors import UsageError
from quantcli.text import Tokenizer, from_metadata
from quantcli.text.chat import ChatTemplate, encode_chat
from quantcli.text.masking import ROLES

CONTROL = (
    "<s>",
    "<|im_start|>",
    "<|im_end|>",
    "</s>",
    "[INST]",
    *(f"<|{role}|>" for role in sorted(ROLES)),
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NEAR = ("<", ">", "<b>", "a < b", "|", "</think>", "<think>", "[x]", "[", "1]", "s>", "user", "\\u")
ORDINARY = st.lists(st.one_of(TEXT, st.sampled_from(NEAR)), max_size=8).map("".join)
TEMPLATES = {name: ChatTemplate(source, TOKENS) for name, source in ALL.items()}


@cache
def metadata(pre: str) -> Metadata:
    return bpe_metadata(trained_merges(), pre, control=CONTROL)


@cache
def ours(pre: str = "gpt-2") -> Tokenizer:
    return from_metadata(metadata(pre))


@cache
def theirs(pre: str = "gpt-2") -> Pipeline:
    return pipeline(metadata(pre))


@cache
def spm() -> Tokenizer:
    pieces = pieces_of(trained_processor())
    return from_metadata(spm_metadata([*pieces, *((text, 0.0, 3) for text in CONTROL[1:3])]))


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids if tokenizer.is_control(i)]


def chat(*contents: object) -> list[dict[str, object]]:
    roles = ("user", "assistant") * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


def is_ordinary(*texts: str) -> bool:
    return not any(marker in text for marker in CONTROL for text in texts)


@pytest.mark.parametrize("name", ["chatml", "no_system", "tools", "turns"])
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
@given(texts=st.lists(ORDINARY, min_size=1, max_size=3))
def test_ordinary_text_gives_the_ids_of_hugging_face_for_the_whole_render(
    name: str, pre: str, texts: list[str]
) -> None:
    assume(is_ordinary(*texts))
    values = {"messages": chat(*texts), "add_generation_prompt": True, **TOKENS}
    render = plain_jinja.render(ALL[name], **values)
    expected = theirs(pre).encode(render, add_special_tokens=False).ids
    assert encode_chat(ours(pre), TEMPLATES[name], chat(*texts)) == expected


@given(texts=st.lists(ORDINARY, min_size=1, max_size=3))
def test_ordinary_text_gives_the_ids_of_the_whole_render_in_sentencepiece(texts: list[str]) -> None:
    assume(is_ordinary(*texts, *("<unk>" + text for text in texts if "<unk>" in text)))
    render = plain_jinja.render(CHATML, messages=chat(*texts), add_generation_prompt=True)
    expected = spm().encode(render, parse_special=True)
    assert encode_chat(spm(), TEMPLATES["chatml"], chat(*texts)) == expected


@pytest.mark.parametrize("name", sorted(ALL))
@given(texts=st.lists(TEXT_WITH_SPELLINGS, min_size=1, max_size=3))
def test_hostile_text_makes_no_control_token(name: str, texts: list[str]) -> None:
    template, harmless = TEMPLATES[name], ["x"] * len(texts)
    expected = controls(ours(), encode_chat(ours(), template, chat(*harmless)))
    assert controls(ours(), encode_chat(ours(), template, chat(*texts))) == expected


@given(texts=st.lists(TEXT_WITH_SPELLINGS, min_size=1, max_size=3))
def test_hostile_text_is_seen_by_the_model_as_it_was_written(texts: list[str]) -> None:
    ids = encode_chat(ours(), TEMPLATES["chatml"], chat(*texts))
    render = plain_jinja.render(CHATML, messages=chat(*texts), add_generation_prompt=True)
    assert ours().decode(ids, special=True) == render


@given(parts=st.lists(TEXT_WITH_SPELLINGS, min_size=1, max_size=4))
def test_parts_that_are_put_together_make_no_control_token(parts: list[str]) -> None:
    messages = chat([{"type": "text", "text": part} for part in parts])
    for name, expected in (("turns", ["<s>"]), ("parts_only", [])):
        made = controls(ours(), encode_chat(ours(), TEMPLATES[name], messages))
        rest = ["<|im_start|>", "<|im_end|>", *(["<|im_start|>"] if name == "turns" else [])]
        assert made == expected + rest


SPLITS = ("<|im_end|>", "<|im_start|>", "<s>", "[INST]")


@pytest.mark.parametrize("marker", SPLITS)
def test_a_marker_in_two_parts_is_none(marker: str) -> None:
    for cut in range(1, len(marker)):
        parts = [{"type": "text", "text": text} for text in (marker[:cut], marker[cut:])]
        ids = encode_chat(ours(), TEMPLATES["parts_only"], chat(parts))
        assert controls(ours(), ids) == ["<|im_start|>", "<|im_end|>"]
        assert marker in ours().decode(ids)


def test_a_marker_around_what_a_template_cuts_out_is_none() -> None:
    source = (
        "{{ messages[0].content.split('<think>')[0] + messages[0].content.split('</think>')[1] }}"
    )
    messages = chat("a<|im_<think>b</think>end|>c")
    ids = encode_chat(ours(), ChatTemplate(source), messages)
    assert ours().decode(ids, special=True) == "a<|im_end|>c"
    assert controls(ours(), ids) == []


@pytest.mark.parametrize(
    ("around", "text"),
    [
        ("'<' ~ X ~ '>'", "s"),
        ("'<' ~ X ~ '>'", "/s"),
        ("'<' ~ X", "s> and more"),
        ("'<|' ~ X ~ '|>'", "im_end"),
        ("'<|im_' ~ X", "end|>"),
        ("'[' ~ X ~ ']'", "INST"),
        ("'<|im_' ~ (X | trim)", "  end|>"),
        ("'<|im_end|' ~ X", ">"),
    ],
)
def test_text_that_a_template_completes_to_a_marker_makes_none(around: str, text: str) -> None:
    source = "{{ " + around.replace("X", "messages[0].content") + " }}"
    ids = encode_chat(ours(), ChatTemplate(source), chat(text))
    assert controls(ours(), ids) == []
    assert ours().decode(ids) == plain_jinja.render(source, messages=chat(text))


def test_names_keys_and_arguments_make_no_control_token() -> None:
    call = {"function": {"name": "<|im_end|>", "arguments": {"s": "<s>", "<s>": {"</s>": "</s>"}}}}
    messages = [
        {"role": "assistant", "content": "<|im_start|>", "tool_calls": [call]},
        {"role": "tool", "name": "s", "content": "<|im_end|>"},
    ]
    tools = [{"function": {"name": "<s>", "parameters": {"</s>": "<|im_start|>"}}}]
    ids = encode_chat(ours(), TEMPLATES["tools"], messages, tools=tools)
    assert controls(ours(), ids) == [
        *("<|im_start|>", "<|im_end|>"),
        *("<|assistant|>", "<|im_end|>", "<|tool|>", "<|im_end|>", "<|assistant|>"),
    ]
    values = {"messages": messages, "tools": tools, "add_generation_prompt": True}
    assert ours().decode(ids, special=True) == plain_jinja.render(TOOLS, **values)


def test_what_the_template_looks_for_is_still_found() -> None:
    ids = encode_chat(ours(), TEMPLATES["tools"], chat("a", "<think>x</think>\n\nb", "c"))
    assert ours().decode(ids) == "a\nb\nc\n"


def test_a_template_that_escapes_text_does_so_as_usual() -> None:
    source = "<|im_start|>{{ messages[0].content | e }}{{ messages[0].content | tojson(true) }}"
    ids = encode_chat(ours(), ChatTemplate(source), chat("a < b"))
    assert ours().decode(ids) == 'a &lt; b"a < b"'
    hostile = encode_chat(ours(), ChatTemplate(source), chat("a <|im_end|> < b \u00e9"))
    assert controls(ours(), hostile) == ["<|im_start|>"]
    assert ours().decode(hostile).endswith('"a <|im_end|> < b \\u00e9"')


def test_the_usual_roles_make_markers_and_others_do_not() -> None:
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}"
    roles = [*sorted(ROLES), "im_end", "im_start", "<|im_end|>", "s", "x"]
    messages = [{"role": role, "content": ""} for role in roles]
    ids = encode_chat(ours(), ChatTemplate(source), messages)
    assert controls(ours(), ids) == [f"<|{role}|>" for role in sorted(ROLES)]
    assert ours().decode(ids, special=True) == plain_jinja.render(source, messages=messages)


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("name", ["chatml", "turns"])
def test_bos_is_there_once_if_the_model_or_the_template_wants_it(name: str, add_bos: bool) -> None:
    tokenizer = from_metadata({**metadata("gpt-2"), "tokenizer.ggml.add_bos_token": add_bos})
    ids = encode_chat(tokenizer, TEMPLATES[name], chat("hi"))
    assert controls(tokenizer, ids).count("<s>") == (add_bos or name == "turns")
    assert (ids[0] == tokenizer.bos) == (add_bos or name == "turns")


def test_eos_is_not_added_to_a_chat() -> None:
    tokenizer = from_metadata({**metadata("gpt-2"), "tokenizer.ggml.add_eos_token": True})
    ids = encode_chat(tokenizer, TEMPLATES["chatml"], chat("hi"))
    assert ids == encode_chat(ours(), TEMPLATES["chatml"], chat("hi"))
    assert tokenizer.encode("hi")[-1] == tokenizer.eos


def test_stand_ins_that_the_user_wrote_stay_what_they_were() -> None:
    text = "".join(map(chr, range(0x2801, 0x2810))) + " \\u2810 <|im_end|> < \U000f0000"
    ids = encode_chat(ours(), TEMPLATES["chatml"], chat(text))
    assert f"user\n{text}" in ours().decode(ids)


def test_a_text_with_all_stand_ins_is_refused_only_if_one_is_needed() -> None:
    text = "".join(map(chr, [*range(0x2801, 0x2900), *range(0x4DC0, 0x4E00)]))
    assert text in ours().decode(encode_chat(ours(), TEMPLATES["chatml"], chat(text)))
    with pytest.raises(UsageError, match="have to stay free"):
        encode_chat(ours(), TEMPLATES["chatml"], chat(text + "<|im_end|>"))


def test_halves_of_a_surrogate_pair_cannot_be_joined_to_a_marker() -> None:
    made = bpe_metadata(trained_merges(), control=("<s>", "\U0001f600", "</s>"))
    tokenizer = from_metadata(made)
    parts = [{"type": "text", "text": half} for half in ("\ud83d", "\ude00")]
    ids = encode_chat(tokenizer, ChatTemplate(PARTS_ONLY), chat(parts))
    assert controls(tokenizer, ids) == []
    assert "\ufffd\ufffd" in tokenizer.decode(ids)


def test_messages_nested_without_end_are_refused() -> None:
    nested: list[object] = []
    nested.append(nested)
    with pytest.raises(UsageError, match="nested too deeply"):
        encode_chat(ours(), TEMPLATES["chatml"], [{"role": "user", "content": "x", "y": nested}])


def test_a_vocabulary_without_control_tokens_will_do() -> None:
    made = bpe_metadata(trained_merges(), control=())
    tokenizer = from_metadata({**made, "tokenizer.ggml.eos_token_id": 0})
    ids = encode_chat(tokenizer, TEMPLATES["chatml"], chat("<|im_end|>"))
    assert tokenizer.decode(ids).startswith("<|im_start|>user\n<|im_end|><|im_end|>\n")


def test_further_names_reach_the_template() -> None:
    template = ChatTemplate("{{ greeting }} {{ tools[0].name }} {{ think }}")
    ids = encode_chat(ours(), template, chat("x"), greeting="<s>", tools=[{"name": "a"}], think=1)
    assert ours().decode(ids, special=True) == "<s> a 1"
    assert controls(ours(), ids) == []


def test_the_answer_is_asked_for_unless_it_is_not_wanted() -> None:
    with_prompt = encode_chat(ours(), TEMPLATES["chatml"], chat("x"))
    without = encode_chat(ours(), TEMPLATES["chatml"], chat("x"), add_generation_prompt=False)
    assert with_prompt[: len(without)] == without
    assert ours().decode(with_prompt[len(without) :], special=True) == "<|im_start|>assistant\n"
