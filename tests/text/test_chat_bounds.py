"""No template, however hostile, takes much time or memory, or reaches Python's insides."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantcli.errors import CheckpointError, QuantcliError, UsageError
from quantcli.text.chat import ChatTemplate
from quantcli.text.chat_budget import MOST_BITS, Budget

CHAT = [{"role": "user", "content": "Hi"}]
MILLION = "('a' * 1000000)"
# Two dicts that hold one dict twice, that one another twice, 60 levels deep.
DEEP = (
    "{% set ns = namespace(x='a', y='a') %}{% for i in range(60) %}"
    "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% set ns.y = dict(a=ns.y, b=ns.y) %}{% endfor %}"
)
DEEP_TUPLE = (
    "{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}"
    "{% set ns.t = (ns.t,) + (ns.t,) %}{% endfor %}"
)

# Texts and nested dicts that come one by one, from where no list of them is.
ONE_BY_ONE = "(range(99999) | map(attribute='none', default=X))"
MILLIONS = ONE_BY_ONE.replace("X", MILLION)
PATH = "{% set path = (['a'] * 30000) | join('.') %}"
NESTED = (
    "{% set ns = namespace(x={}) %}{% for i in range(30000) %}{% set ns.x = dict(a=ns.x) %}"
    "{% endfor %}"
)


def doubling(assignment: str) -> str:
    return f"{{% set ns = namespace(x='a') %}}{{% for i in range(60) %}}{assignment}{{% endfor %}}"


STEPS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if j > i %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "{% for x in [1,2] recursive %}{% if loop.depth < 90 %}{{ loop([1,2]) }}{% endif %}"
    "{% endfor %}",
    "{% set x = range(99999)|list %}{% for i in x %}{% if 'q' in x %}{% endif %}{% endfor %}",
    f"{{% set x = {MILLION} %}}{{% for i in range(99999) %}}{{% set y = x[1:] %}}{{% endfor %}}",
    f"{{% set x = {MILLION} %}}{{{{ x.rfind('a' * 500000 ~ 'b') }}}}",
    f"{{% set x = {MILLION} %}}{{{{ x.strip('b' * 500000 ~ 'c') }}}}",
    f"{{% set x = {MILLION} %}}{{{{ x|trim('b' * 500000 ~ 'c') }}}}",
    NESTED + PATH + "{% for i in range(9999) %}{{ [ns.x] | map(attribute=path) | list }}"
    "{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' in range(99999) }}{% endfor %}",
)
SIZES = (
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ ('a' * 10**5) * 10**5 }}",
    doubling("{% set ns.x = ns.x + ns.x %}"),
    doubling("{% set ns.x = ns.x ~ ns.x %}"),
    doubling("{% set ns.x = [ns.x, ns.x]|join %}"),
    doubling("{% set ns.x = ''.join([ns.x, ns.x]) %}"),
    doubling("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    doubling("{% set ns.x = '%s%s'|format(ns.x, ns.x) %}"),
    doubling("{% set ns.x = '{}{}'.format(ns.x, ns.x) %}"),
    doubling("{% set ns.x = '{a}{a}'.format_map({'a': ns.x}) %}"),
    doubling("{% set ns.x = ns.x.replace('a', 'aa') %}"),
    doubling("{% set ns.x = ns.x|replace('a', 'aa') %}"),
    doubling("{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"),
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubling("{% set ns.x = m(ns.x) %}"),
    doubling(
        "{% set t %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}"
        "{% set ns.x = t %}"
    ),
    "{{ [1] * 10**9 }}",
    "{{ (1, 2) * 10**9 }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(999) %}"
    "{% set ns.l = ns.l + ['a' * 10**6 ~ i] %}{% endfor %}",
    "{{ ('a' * 1000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 1000).replace('a', 'b' * 100000) }}",
    "{{ ('\n' * 100000)|indent(9999) }}",
    "{{ ('\t' * 100000).expandtabs(9999) }}",
    "{{ ('%s' * 1000) % (('b' * 10000,) * 1000) }}",
    "{{ ('{0}' * 1000).format('b' * 10000) }}",
    "{{ range(99999)|list|tojson(indent=9999) }}",
    "{{ [range(99)|list] * 9999 }}",
    "{{ (['a' * 100000] * 100000)|join }}",
    "{{ ''.join(['a' * 100000] * 100000) }}",
    "{{ ''.join((['a' * 100000] * 100)|map('upper')) }}",
    "{{ ([[1]] * 100000)|sum(start=[]) }}",
    f"{{{{ {MILLIONS} | sort | length }}}}",
    f"{{{{ {MILLIONS} | unique | list | length }}}}",
    f"{{{{ {MILLIONS} | max | length }}}}",
    f"{{{{ {ONE_BY_ONE.replace('X', '{1: ' + MILLION + '}')} | groupby(1) | length }}}}",
    f"{{{{ {MILLION} in {ONE_BY_ONE.replace('X', MILLION + ' ~ 1')} }}}}",
    f"{{{{ {MILLION} is in {ONE_BY_ONE.replace('X', MILLION + ' ~ 1')} }}}}",
    f"{{% for x in {MILLIONS} %}}{{{{ loop.length }}}}{{% endfor %}}",
    NESTED + PATH + f"{{{{ {ONE_BY_ONE.replace('X', 'ns.x')} | map(attribute=path) | list }}}}",
    "{{ ('f' * 1000000) | int(0, 16) % 7 }}",
    "{{ ('%x' * 900) % ((('f' * 1000000) | int(0, 16),) * 900) }}",
    "{{ ('{0:b}' * 999).format(2**4095 - 1) * 9 }}",
    "{{ 10**(10**9) }}",
    "{{ (10**999)**9 }}",
    "{% set ns = namespace(x=2) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    *(
        DEEP + use
        for use in (
            "{{ ns.x }}",
            "{{ ns }}",
            "{{ [ns] }}",
            "{{ {'a': ns.x} }}",
            "{{ ns.x == ns.y }}",
            "{{ ns.x in [ns.y] }}",
            "{{ ns.x is eq ns.y }}",
            "{{ [ns.y].index(ns.x) }}",
            "{{ ns.x|tojson }}",
            "{{ ns.x|string }}",
            "{{ [ns.x]|sort }}",
            "{{ [ns.x]|join }}",
            "{{ ns.x.values()|list }}",
            "{{ ns.x.values()|join }}",
            "{{ dict(c=namespace(d=ns.x)) }}",
            "{{ [ns.x, ns.y]|unique|list }}",
            "{{ 'a' ~ ns.x }}",
            "{{ '%s' % (ns.x,) }}",
            "{{ '{}'.format(ns.x) }}",
            "{% for i in range(3) %}{{ loop.changed(ns.x if i is odd else ns.y) }}{% endfor %}",
        )
    ),
    doubling("{% set ns.x = [ns.x, ns.x] %}"),
    doubling("{% set ns.x = (ns.x, ns.x) %}"),
    doubling("{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
    DEEP_TUPLE + "{{ {ns.t: 1} }}",
    DEEP_TUPLE + "{{ {}.get(ns.t) }}",
    DEEP_TUPLE + "{{ {}[ns.t] }}",
)
WIDTHS = (
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ '{0:{1}}'.format(1, 10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.rjust(10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ 'a\t'.expandtabs(10**9) }}",
    "{{ 'a\nb'|indent(10**9) }}",
    "{{ [1]|batch(10**9, 'x')|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ 1.5|round(10**9) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ strftime_now('%Y' * 1000) }}",
)
INSIDES = (
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''|attr('__class__') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ dict.fromkeys([1]) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].clear }}",
    "{{ 'a'.encode() }}",
    "{{ 'x'.translate({120: 'y' * 10**6}) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ 1.5.hex() }}",
)
OTHERWISE = (
    "{% for i in range(10**9) %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ a" + ".b" * 20000 + " }}",
    "{{ " + "[" * 200 + "]" * 200 + " }}",
    "{% for a in b %}" * 60 + "{% endfor %}" * 60,
    "{{ 9" + "9" * 5000 + " }}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{{ lipsum(n=10**9) }}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'|wordwrap(1) }}",
)


def refused(source: str, match: str = "tokenizer.chat_template") -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        ChatTemplate(source).render(CHAT)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("source", STEPS)
def test_too_many_steps_are_refused(source: str) -> None:
    refused(source, "takes .*; it is broken or hostile")


@pytest.mark.parametrize("source", SIZES)
def test_what_would_grow_too_large_is_refused_before_it_does(source: str) -> None:
    refused(source, "makes .* it is broken or hostile")


@pytest.mark.parametrize("source", WIDTHS)
def test_great_widths_are_refused(source: str) -> None:
    refused(source, "is not for templates")


@pytest.mark.parametrize("source", INSIDES)
def test_insides_are_out_of_reach(source: str) -> None:
    refused(source, "is not for templates")


@pytest.mark.parametrize("source", OTHERWISE)
def test_other_ways_to_run_on_are_refused(source: str) -> None:
    refused(source)


def test_a_hostile_constant_is_not_computed_when_compiling() -> None:
    constants = "{{ 'a\nb'|indent(1000000000) }}{{ [1]|batch(1000000000, 'x')|list }}"
    assert ChatTemplate("{% if false %}" + constants + "{% endif %}x").render(CHAT) == "x"


def test_limits_hold_on_any_thread() -> None:
    told: list[str] = []

    def run() -> None:
        try:
            ChatTemplate(SIZES[3]).render(CHAT)
        except QuantcliError as error:
            told.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4


def test_a_template_may_be_used_by_many_threads() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    got: dict[int, str] = {}

    def run(i: int) -> None:
        got[i] = template.render([{"role": "user", "content": f"{i} "}] * 50)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {i: f"{i} " * 50 for i in range(8)}


def test_a_long_conversation_is_within_the_limits() -> None:
    source = (
        "{% set ns = namespace(all='', list=[]) %}{% for m in messages %}"
        "{% set ns.all = m.content ~ '' %}{% set ns.list = ns.list + [m] %}"
        "{% if m.content == 'x' or 'y' in m.content %}{% endif %}{{ m.content|trim }}"
        "{% for part in m.content.split('z') %}{{ part }}{% endfor %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 2000}] * 300
    assert len(ChatTemplate(source).render(messages)) == 300 * (9999 + 10_000)


def test_a_probe_that_runs_out_is_not_tried_again() -> None:
    template = ChatTemplate(STEPS[0])
    with pytest.raises(CheckpointError, match="it is broken or hostile"):
        _ = template.takes_text


def test_a_budget_that_is_spent_says_so() -> None:
    budget = Budget(0)
    with pytest.raises(CheckpointError, match="an integer of 4097 bits, over 4096"):
        budget.make_integer(MOST_BITS + 1)
    assert budget.is_spent


WORDS = """
    {{ }} {% %} {# #} -%} {%- {{- for in if else endif endfor set macro endmacro call filter
    recursive x y messages range(9) ' " + ~ * ** % | . ( ) [ ] { } , : = == 1 99 'a' join upper
    tojson list loop.index namespace(a=1) ns.a is not defined _ __class__
"""


@given(st.lists(st.sampled_from([*WORDS.split(), "\n"]), max_size=30).map(" ".join))
def test_any_program_ends_in_text_or_one_clear_error(source: str) -> None:
    try:
        result = ChatTemplate(source).render(CHAT)
    except (CheckpointError, UsageError) as error:
        result = str(error)
    assert isinstance(result, str)
