from __future__ import annotations

import re
from datetime import datetime

import plain_jinja
import pytest
from templates import ALL, CHATML, NO_SYSTEM, PARTS_ONLY, TOOLS, TURNS

from quantcli.errors import CheckpointError, UsageError
from quantcli.text.chat import MAX_CHARACTERS, ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": " Hello, \u4e16\u754c! "}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {"function": {"name": "look", "arguments": {"at": "<b>", "how": {"far": 3, "é": None}}}}
TOOL = {"function": {"name": "look", "parameters": {"type": "object", "x": ["\u00e9", 1.5, True]}}}
PARTS = [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]
CHAT = [USER, ANSWER, USER]


def rendered(source: str, messages: list[dict[str, object]], **extra: object) -> str:
    return ChatTemplate(source, TOKENS).render(messages, **extra)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"parts_only"}))
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_chat_is_rendered_as_by_transformers(name: str, add_generation_prompt: bool) -> None:
    how = {"messages": CHAT, "add_generation_prompt": add_generation_prompt, **TOKENS}
    got = rendered(ALL[name], CHAT, add_generation_prompt=add_generation_prompt)
    assert got == plain_jinja.render(ALL[name], **how)


def test_tools_and_calls_are_rendered_as_by_transformers() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
    messages = [USER, call, {"role": "tool", "name": "look", "content": "a & b"}]
    how = {"messages": messages, "tools": [TOOL], "add_generation_prompt": True}
    assert rendered(TOOLS, messages, tools=[TOOL]) == plain_jinja.render(TOOLS, **how)


FEATURES = (
    "{{ [{'a':1},{'a':2}]|join('-', attribute='a') }}",
    "{{ [3,1,2]|sort|join(', ') }} {{ [1,2]|sum }} {{ [{'a':1}]|sum(attribute='a') }}",
    "{{ 'a b c'|replace('b', 'x') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'x'.replace('x','yy') }}",
    "{{ '%s is %05.1f' % ('pi', 3.14159) }} {{ '%d'|format(3) }} {{ '{:>5}|{x}'.format(1, x=2) }}",
    "{{ 'a\nb'|indent(2) }} {{ 'ab'|upper }}{{ 'Ab'|lower }} {{ 'a b'|title }} {{ 'x'.center(5) }}",
    "{{ {'b':1,'a':[1,{'c':None}]}|tojson }} {{ {'b':1,'a':2}|dictsort }} {{ {'a':1}|items|list }}",
    "{{ {'b':'\u00e9<'}|tojson(ensure_ascii=True) }} {{ [1,2]|tojson(separators=(',',':')) }}",
    "{{ {'b':[1,2]}|tojson(indent=2) }} {{ {'b':1,'a':2}|tojson(sort_keys=True, indent='\t') }}",
    "{{ [1,2,3,4]|batch(3, 0)|list }} {{ [1,2,3]|slice(2)|list }} {{ [1,1,2]|unique|list }}",
    "{{ [{'r':1},{'r':2}]|selectattr('r','eq',2)|map(attribute='r')|first }} {{ [2,1]|min }}",
    "{{ 3.7|round }} {{ 3.14159|round(2) }} {{ '7'|int + 1 }} {{ 7 // 2 }}{{ 2 ** 8 }}{{ 7 % 4 }}",
    "{{ 'x' * 3 }}{{ [1] * 2 }} {{ [1] + [2] }} {{ (1, 2) }} {{ {'a': (1,)} }} {{ 1 < 2 < 3 }}",
    "{{ 'a' ~ 1 ~ none ~ [1] }} {{ 'b' in 'abc' }} {{ 1 in [1,2] }} {{ 'a' not in {'a':1} }}",
    "{{ nothing }}{{ nothing is defined }} {{ nothing or 'x' }} {{ nothing|default('d') }}",
    "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}"
    "{% if i == 1 %}{% continue %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% for i in [1,2] %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ loop.previtem }}"
    "{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for k, v in {'a':1}.items() %}{{ k }}{{ v }}"
    "{% endfor %}{% for i in [1,2,3] if i != 2 %}{{ i }}{{ loop.length }}{% endfor %}",
    "{% for i in [[1,[2]],[3]] recursive %}{{ loop.depth }}{% if i is iterable %}{{ loop(i) }}"
    "{% else %}{{ i }}{% endif %}{% endfor %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}"
    "{% call m(3) %}x{% endcall %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% filter upper %}abc{% endfilter %}{% if 'x' is string and 1 is number %}y{% endif %}",
    "{% generation %}said{% endgeneration %}{# a comment #}{% raw %}{{ x }}{% endraw %}",
    "  {% if true %}\n  kept\n  {% endif %}\n{{- 'tight' -}}\n  end\n",
    "{{ messages[0:1]|length }}{{ messages[-1].content }}{{ messages[0]['nothing'] }}",
    "{{ 'a,b'.split(',') }}{{ ' x '.strip() }}{{ 'abc'.startswith('a') }}{{ 'ab'.find('b') }}"
    "{{ ','.join(['a','b']) }}{{ 'abc'[::-1] }}{{ 'a'|safe + '<' }}{{ '<'|e }}",
    "{{ {'a':1}.get('b', 3) }}{{ {'a':1}.keys()|list }}{{ [1,2].index(2) }}{{ [1]|length }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner(';') %}"
    "{{ j() }}{{ j() }}{{ dict(a=1) }}{{ -3|abs }} {{ +1 }} {{ not true }}",
)


@pytest.mark.parametrize("source", FEATURES)
def test_what_templates_use_works_as_in_transformers(source: str) -> None:
    assert rendered(source, CHAT) == plain_jinja.render(source, messages=CHAT)


def test_the_date_is_todays() -> None:
    before = datetime.now()
    got = rendered("{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%-d %-m') }}", CHAT)
    days = {(f"{d:%Y-%m-%d}", f"{d.day} {d.month}") for d in (before, datetime.now())}
    assert tuple(got.split(" ", 1)) in days


@pytest.mark.parametrize(
    ("source", "line", "match"),
    [
        ("a\nb\n{{ 1 / 0 }}", 3, "division by zero"),
        ("\n\n\n{% for x in none %}{% endfor %}", 4, "'NoneType' object is not iterable"),
        (
            "{% macro m() %}\n{{ nothing.x }}\n{% endmacro %}\n{{ m() }}",
            2,
            "'nothing' is undefined",
        ),
        ("a\n{% if %}", 2, "Expected an expression"),
        ("\n{{ 'a' + 1 }}", 2, "can only concatenate str"),
        ("{{ messages[0].content.x.y }}", 1, "has no attribute 'x'"),
        ("{{ 'x'|urlize }}", 1, "No filter named 'urlize'"),
        ("x\n{% include 'other' %}", 2, "no loader"),
        ("\n{{ messages|tojson }}{{ nothing|tojson }}", 2, "not JSON serializable"),
    ],
)
def test_an_error_names_line_and_message(source: str, line: int, match: str) -> None:
    with pytest.raises(CheckpointError, match=f"chat_template, line {line}: .*{re.escape(match)}"):
        rendered(source, CHAT)


def test_a_template_that_refuses_the_conversation_is_the_requests_fault() -> None:
    with pytest.raises(UsageError, match="refuses this conversation: roles must alternate"):
        rendered(TURNS, [USER, USER])


def test_a_system_message_goes_before_the_users_if_the_template_knows_none() -> None:
    got = rendered(NO_SYSTEM, [SYSTEM, USER])
    assert got == rendered(NO_SYSTEM, [{**USER, "content": "Be kind.\n\n Hello, \u4e16\u754c! "}])
    assert rendered(CHATML, [SYSTEM, USER]).startswith("<|im_start|>system\nBe kind.")


def test_a_system_message_in_parts_goes_before_the_users_too() -> None:
    source = NO_SYSTEM.replace(
        "m['content'] | trim", "(m['content'] | map(attribute='text') | join)"
    )
    got = rendered(source, [SYSTEM, {"role": "user", "content": PARTS}])
    assert "user\nBe kind.\n\n one two<|im_end|>" in got
    silent = [{"role": "system", "content": None}, {"role": "user", "content": PARTS}]
    assert "user\n\n\n one two<|im_end|>" in rendered(source, silent)


def test_without_a_user_a_system_message_stays() -> None:
    with pytest.raises(UsageError, match="System role not supported"):
        rendered(NO_SYSTEM, [SYSTEM])
    with pytest.raises(UsageError, match="System role not supported"):
        rendered(NO_SYSTEM, [SYSTEM, ANSWER])


def test_parts_are_passed_on_to_a_template_that_takes_them() -> None:
    assert "user\nonetwo<|im_end|>" in rendered(TURNS, [{"role": "user", "content": PARTS}])


def test_parts_become_text_for_a_template_that_takes_no_parts() -> None:
    got = rendered(CHATML, [{"role": "user", "content": PARTS}, ANSWER])
    assert "user\n one \ntwo<|im_end|>" in got


def test_text_becomes_a_part_for_a_template_that_takes_parts_only() -> None:
    template = ChatTemplate(PARTS_ONLY)
    assert (template.takes_text, template.takes_parts, template.takes_system) == (0, 1, 1)
    empty = {"role": "assistant", "content": None}
    assert "user: Hello" in template.render([USER])
    with pytest.raises(CheckpointError, match="'NoneType' object is not iterable"):
        template.render([USER, empty])


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "there are no messages"),
        (["hello"], "message 1 has no role"),
        ([USER, {"content": "x"}], "message 2 has no role"),
        ([{"role": 3, "content": "x"}], "message 1 has no role"),
        ([{"role": "user", "content": 3}], "content of message 1 is int; it should be text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 1 has a part that is not"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1 has a part that is not"),
        ([{"role": "user", "content": ["x"]}], "message 1 has a part that is not text"),
    ],
)
def test_messages_that_no_template_can_take_are_refused(messages: list, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        rendered(CHATML, messages)


def test_a_file_without_a_template_has_none() -> None:
    assert ChatTemplate.from_metadata({}) is None


def test_a_template_knows_the_spellings_of_its_files_special_tokens() -> None:
    template = ChatTemplate.from_metadata(
        {
            "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ x }}",
            "tokenizer.ggml.tokens": ["<a>", "<b>", "<c>"],
            "tokenizer.ggml.bos_token_id": 2,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.ggml.unknown_token_id": 3,
        }
    )
    assert template is not None
    assert template.render([USER]) == "<c><a>"


def test_a_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(CheckpointError, match="chat_template is no text"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 5})


def test_a_template_that_is_too_long_is_refused() -> None:
    with pytest.raises(CheckpointError, match=f"has {MAX_CHARACTERS + 1} characters; at most"):
        ChatTemplate("x" * (MAX_CHARACTERS + 1))


def test_literals_are_the_texts_and_names_in_the_program() -> None:
    literals = ChatTemplate("a{{ 'b' + x['c'].d }}{% if y == 'e' %}f{% endif %}").literals
    assert set(literals) == {"b", "c", "d", "e"}


def test_messages_are_not_changed() -> None:
    messages = [SYSTEM, {"role": "user", "content": list(PARTS)}]
    copy = [dict(message) for message in messages]
    rendered(NO_SYSTEM, messages)
    assert messages == copy
