"""Hostile chat templates end in one error, soon, without much memory; others render as before."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tokenmill.backends.text.chat.template import ChatTemplate
from tokenmill.core.errors import ConfigError, InvalidRequestError

CHAT = [
    {"role": "user", "content": "one\ntwo"},
    {"role": "assistant", "content": "x" * 1000},
    {"role": "user", "content": "  '<a>' & 日本  "},
]
MAX_MEGABYTES = 200
"""More than a rendering may take, and much less than these templates would."""


def render(source: str, chat: list[dict[str, str]] = CHAT) -> str:
    return ChatTemplate(source, {}, "model-x").render(
        chat, add_generation_prompt=True, continuation_mark=None, template_kwargs={}
    )


def repeated(expression: str, start: str, times: int = 64) -> str:
    """A template that sets x to an expression of itself again and again."""
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for a in range({times}) %}}"
        f"{{% set ns.x = {expression} %}}{{% endfor %}}"
    )


TOO_MANY_STEPS = {
    "loops in loops": "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
    "loops over nothing": (
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "call blocks": (
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}{% macro g(n) %}"
        "{% call f() %}{% if n %}{{ g(n-1) }}{% endif %}{% endcall %}{% endmacro %}{{ g(50) }}"
    ),
    "filters": "{% for i in range(99999) %}{{ range(99999)|select('odd')|first }}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "lists added": repeated("ns.x + ns.x", "[1]"),
    "texts of a block": (
        "{% set x %}{% for a in range(99999) %}"
        + "x{% if a %}y{% endif %}" * 1000
        + "{% endfor %}{% endset %}"
    ),
}


LARGE = "{% set a = 'a' * 1000000 %}"

TOO_MUCH_TEXT = {
    "joined to itself": repeated("ns.x ~ ns.x", "'ab'"),
    "added to itself": repeated("ns.x + ns.x", "'ab'"),
    "lists of lists": repeated("[ns.x, ns.x]", "'ab'") + "{{ ns.x }}",
    "objects of objects": repeated("{'a': ns.x, 'b': ns.x}", "1") + "{{ ns.x|tojson }}",
    "calls of dict": repeated("dict(a=ns.x, b=ns.x)", "'ab'") + "{{ ns.x|tojson }}",
    "tuples in sets": repeated("(ns.x, ns.x)", "'ab'") + "{{ ns.x|string }}",
    "times": "{{ 'x' * 10**10 }}",
    "times from the left": "{{ 10**10 * 'x' }}",
    "list times": "{{ [1] * 10**10 }}",
    "replace": LARGE + "{{ a.replace('a', a) }}",
    "replace filter": LARGE + "{{ a|replace('a', a) }}",
    "join": LARGE + "{{ a.join(range(9999)|map('string')) }}",
    "join filter": LARGE + "{{ range(9999)|join(a) }}",
    "translate": LARGE + "{{ a.translate({97: a}) }}",
    "percent": "{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}",
    "format": "{{ ('{0}' * 100000).format('x' * 1000000) }}",
    "mapped": "{{ range(9999)|map('string')|map('center', 99999)|join }}",
    "split": "{{ ('a ' * 20000000).split() }}",
    "indent": "{{ ('\n' * 1000000)|indent(1000) }}",
    "slices": "{% set a = 'a' * 30000000 %}{% set b = a[1:] %}{% set c = a[2:] %}",
    "text of a macro": (
        "{% macro f() %}{% for a in range(9999) %}"
        + "x" * 99999
        + "{% endfor %}{% endmacro %}{{ f() }}"
    ),
    "list that grows": (
        "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}"
        "{% set ns.x = ns.x + ['x' * 10000 ~ a] %}{% endfor %}"
    ),
}

WIDE = {
    "center": "{{ 'x'.center(10**10) }}",
    "center filter": "{{ 'x'|center(10**10) }}",
    "zfill": "{{ '1'.zfill(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**10, 1) }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "format nested": "{{ '{:>{}}'.format(1, 10**10) }}",
    "format map": "{{ '{a:>10000000000}'.format_map({'a': 1}) }}",
    "format filter": "{{ '%10000000000d'|format(1) }}",
    "format attribute": "{{ ('{:>10000000000}'|attr('format'))(1) }}",
    "json": "{{ [1]|tojson(indent=10**9) }}",
    "json text": "{{ [1]|tojson(indent='x' * 99999) }}",
    "batch": "{{ [1]|batch(10**10, 'x')|list }}",
    "slice": "{{ [1]|slice(10**10)|list }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
    "power": "{{ 9**(9**9) }}",
    "squares": repeated("ns.x * ns.x", "9"),
    "sum of lists": "{{ ([[1]] * 9999)|sum(start=[]) }}",
    "namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "deep list": repeated("[ns.x]", "[]", times=99),
}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        *((TOO_MANY_STEPS[name], "takes too many steps") for name in TOO_MANY_STEPS),
        *((TOO_MUCH_TEXT[name], "makes too much text") for name in TOO_MUCH_TEXT),
        *((WIDE[name], "the model's chat template was stopped: it") for name in WIDE),
    ],
    ids=[*TOO_MANY_STEPS, *TOO_MUCH_TEXT, *WIDE],
)
def test_a_template_that_needs_too_much_is_stopped(source: str, why: str) -> None:
    """The error names the reason."""
    with pytest.raises(InvalidRequestError, match=why):
        render(source)


@pytest.mark.parametrize("name", ["joined to itself", "times", "split", "slices", "join filter"])
def test_a_template_that_makes_much_text_is_stopped_before_it_takes_the_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError):
            render(TOO_MUCH_TEXT[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_MEGABYTES * 2**20


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{% block a %}{{ self.a() }}{% endblock %}", "RecursionError"),
        ("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", "RecursionError"),
        ("{{ lipsum(n=100000) }}", "UndefinedError"),
        ("{% include 'file' %}", "TypeError"),
    ],
)
def test_other_endless_templates_end_in_python_s_own_errors(source: str, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"cannot render these messages \({what}\)"):
        render(source)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("x" * 200_000, "has 200000 characters, more than 131072"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", r"cannot be compiled \(RecursionError\)"),
        ("{{ " + "+".join(["1"] * 20000) + " }}", r"cannot be compiled \(RecursionError\)"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, r"cannot be compiled \(SyntaxError\)"),
        ("{{ 'x'|urlize }}", "is not valid, line 1: No filter named 'urlize'"),
    ],
    ids=["long", "brackets", "sum", "loops", "filter for web pages"],
)
def test_a_template_that_cannot_be_compiled_is_refused_at_start(source: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"the chat template of model-x {what}"):
        ChatTemplate(source, {}, "model-x")


def test_long_chats_may_take_more_steps() -> None:
    """The limit grows with the messages, for templates that look at all earlier ones."""
    source = (
        "{% for m in messages %}{% for other in messages[:loop.index] %}"
        "{% if other.role == 'user' and other.content|length > 3 %}{{ '.' }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    num_users = [
        sum(other["role"] == "user" for other in (CHAT * 200)[: n + 1]) for n in range(600)
    ]
    assert len(render(source, CHAT * 200)) == sum(num_users)


SAME_AS_TRANSFORMERS = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.revindex }}{{ m['content'] }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ loop.previtem.role if loop.previtem is defined }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': messages}.items() %}{{ k ~ '=' ~ v }}{% endfor %}",
    "{% for k, v in messages[0]|items %}{{ k }}{{ v|tojson(indent=2) }}{% else %}none{% endfor %}",
    "{% for a in [[1, [2]], [3]] recursive %}{{ a if a is not iterable else loop(a) }}{% endfor %}",
    "{% for a in range(9) %}{% if a == 3 %}{% continue %}{% elif a > 5 %}{% break %}{% endif %}"
    "{{ loop.cycle('a', 'b') }}{{ a }}{% endfor %}",
    "{% set a, b = messages[0].role, messages[1:] %}{{ a }}{{ b }}{{ (a, b)|tojson }}",
    "{% macro f(x, y=2) %}<{{ x * y }}{{ caller() }}>{% endmacro %}{% call f(1) %}c{% endcall %}",
    "{% set ns = namespace(n=0, t='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.t = ns.t ~ m.role %}{% endfor %}{{ ns.n }}{{ ns.t }}",
    "{{ messages|map(attribute='role')|join(', ') }}{{ ','.join(messages|map(attribute='role')) }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|length }}",
    "{{ messages|groupby('role')|list }}{{ messages|sort(attribute='content')|first }}",
    "{{ messages[0].content.split('\n')[-1].strip().upper().replace('T', 'tt') ~ none ~ 1.5 }}",
    "{{ '%s-%05.1f' % ('a', 2) }}{{ '{:>9}|{a}'.format('b', a=[1]) }}{{ '%s'|format('c') }}",
    "{{ 7 // 2 }}{{ 7 % 2 }}{{ 2 ** 10 }}{{ -3 * 'a' }}{{ [1] * 2 + [3] }}{{ 'a' * 3 }}",
    "{{ [] }}{{ {} }}{{ () }}{{ [1, 'a', none, [true]] }}{{ {'a': [1], 'b': {}} }}",
    "{{ messages is defined }}{{ nothing is defined }}{{ nothing is none }}{{ nothing }}",
    "{{ 'one' in messages[0].content }}{{ 1 < 2 < 3 }}{{ messages is sequence }}{{ 3 is odd }}",
    "{% set x %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ x|upper|indent(2) }}",
    "{% filter upper %}{{ messages[0].content }}{% endfilter %}{{ messages[0].content|trim|e }}",
    "{{ messages|tojson }}{{ messages|tojson(indent=4) }}{{ messages[2].x|default('y', true) }}",
    "{{ messages[0].content|truncate(5) }}{{ 'a\tb'.expandtabs(4) }}{{ 'a'|center(7) }}",
    "{{ (messages|last).content | replace('日', 'sun') | wordcount }}{{ 12345|string|reverse }}",
    "{{ dict(messages[0], extra=1) }}{{ {'a': 1}|dictsort }}{{ [3, 1]|sort|sum }}",
    "{{ [1, 1]|unique|list }}{{ [1, 2]|batch(2)|list }}",
    "{{ messages[0].content.splitlines() }}{{ 'x'.join(['a', 'b']) }}{{ 'abc'[::-1] }}",
]


@pytest.mark.parametrize("source", SAME_AS_TRANSFORMERS)
def test_everything_else_renders_as_in_transformers(source: str) -> None:
    """The budget changes no value."""
    given: dict[str, Any] = {"chat_template": source, "add_generation_prompt": True}
    [expected], _ = render_jinja_template([CHAT], **given)
    assert render(source) == expected
