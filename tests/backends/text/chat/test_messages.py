"""Messages and template variables are checked before a template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.backends.text.chat.messages import check_messages
from tokenmill.backends.text.chat.template_variables import check_template_kwargs
from tokenmill.core.errors import InvalidRequestError


def check(*messages: Any, takes_tool_calls: bool = False) -> list[dict[str, Any]]:
    return check_messages(messages, known_roles={"ipython"}, takes_tool_calls=takes_tool_calls)


def test_text_parts_are_joined_with_newlines() -> None:
    """As vLLM does it for templates that take strings."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert check({"role": "user", "content": parts}) == [{"role": "user", "content": "one\ntwo"}]
    assert check({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_nulls_and_empty_lists_count_as_not_given() -> None:
    """Clients send back an assistant's message with fields that mean nothing."""
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    assert check(echoed) == [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_name_and_reasoning_are_passed_on(field: str) -> None:
    """Templates may use them. Some call the reasoning `reasoning`, others `reasoning_content`."""
    message = {"role": "assistant", "content": "4", "name": "bob"}
    both = {"reasoning": "2+2", "reasoning_content": "2+2"}
    assert check(message | {field: "2+2"}) == [message | both]


def call(**fields: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": '{"a": 1}'}
    return {"id": "c1", "type": "function", "function": function} | fields


def test_tool_calls_need_no_content_and_their_arguments_become_an_object() -> None:
    """As vLLM and transformers give them to templates."""
    message = {"role": "assistant", "content": None, "tool_calls": [call()]}
    [checked] = check(message, takes_tool_calls=True)
    assert checked["content"] is None
    assert checked["tool_calls"] == [call(function={"name": "add", "arguments": {"a": 1}})]
    with_object = message | {"tool_calls": checked["tool_calls"]}
    assert check(with_object, takes_tool_calls=True) == [checked]
    empty = message | {"tool_calls": [call(function={"name": "f", "arguments": ""})]}
    [checked] = check(empty, takes_tool_calls=True)
    assert checked["tool_calls"][0]["function"]["arguments"] == {}


def test_an_answer_of_a_tool_keeps_the_id_of_its_call() -> None:
    """Some templates show it."""
    message = {"role": "tool", "content": "3", "tool_call_id": "c1"}
    assert check(message) == [message]


def test_tool_calls_are_refused_where_the_template_would_drop_them() -> None:
    """The error names the reason, not the missing content."""
    with pytest.raises(InvalidRequestError, match=r"tool_calls cannot .* no tool calls"):
        check({"role": "assistant", "content": None, "tool_calls": [call()]})


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (5, r"tool_calls\[0\] must be an object with a function"),
        ({}, r"tool_calls\[0\] must be an object with a function"),
        (call(type="custom"), r"tool_calls\[0\].type must be"),
        (call(id=5), r"tool_calls\[0\].id must be a string"),
        (call(function={"arguments": "{}"}), r"tool_calls\[0\].function.name"),
        (call(function={"name": "f"}), "function.arguments must be a JSON object"),
        (call(function={"name": "f", "arguments": "{"}), "got text that is not JSON"),
        (call(function={"name": "f", "arguments": "[1]"}), "must be a JSON object"),
        (call(function={"name": "f", "arguments": '{"a": NaN}'}), "not JSON"),
        (call(function={"name": "f", "arguments": "[" * 100_000}), "not JSON"),
        (call(function={"name": "f", "arguments": '{"a":' * 40 + "1" + "}" * 40}), "too deeply"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_malformed_tool_call_is_refused_with_its_place(wrong: Any, where: str) -> None:
    """The error names the call and the field."""
    with pytest.raises(InvalidRequestError, match=where) as caught:
        check({"role": "assistant", "tool_calls": [wrong]}, takes_tool_calls=True)
    assert caught.value.param == "messages"


def test_a_role_of_the_models_own_template_is_known() -> None:
    """Besides those of the OpenAI API."""
    assert check({"role": "ipython", "content": ""})[0]["role"] == "ipython"


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("hi", r"messages\[0\] must be an object"),
        ({"content": "hi"}, r"messages\[0\].role must be a string"),
        ({"role": 3, "content": "hi"}, r"messages\[0\].role must be a string"),
        ({"role": "usr", "content": "hi"}, r"messages\[0\].role must be one of system"),
        ({"role": "<|im_end|>", "content": "hi"}, r"messages\[0\].role must be one of system"),
        ({"role": "user"}, r"messages\[0\].content is missing"),
        ({"role": "assistant", "content": None}, r"messages\[0\].content is missing"),
        ({"role": "user", "content": 5}, r"messages\[0\].content must be a string or a list"),
        ({"role": "user", "content": b"x"}, r"messages\[0\].content must be a string or a list"),
        ({"role": "user", "content": {"type": "text"}}, r"messages\[0\].content must be a string"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            r"content\[0\] must be .* 'image_url'",
        ),
        ({"role": "user", "content": ["hi"]}, r"content\[0\] must be a part of type"),
        (
            {"role": "user", "content": [{"type": "text", "text": 1}]},
            r"content\[0\].text must be a string",
        ),
        ({"role": "user", "content": "hi", "name": 7}, r"messages\[0\].name must be a string"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{}]},
            r"messages\[0\].tool_calls cannot be shown",
        ),
        ({"role": "user", "content": "hi", "nam": "x"}, "Did you mean 'name'"),
    ],
)
def test_a_malformed_message_is_refused_with_its_place(message: Any, where: str) -> None:
    """The error names the message and the field."""
    with pytest.raises(InvalidRequestError, match=where) as caught:
        check(message)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("messages", [[], "hi", None, {"role": "user"}])
def test_messages_must_be_a_list_with_something_in_it(messages: Any) -> None:
    """An empty chat is no chat."""
    with pytest.raises(InvalidRequestError, match="at least one message"):
        check_messages(messages, known_roles=(), takes_tool_calls=False)


def test_known_template_variables_are_passed_and_null_ones_left_out() -> None:
    """Each with its own type."""
    given = {
        "enable_thinking": False,
        "thinking_budget": 100,
        "reasoning_effort": "low",
        "thinking": None,
    }
    assert check_template_kwargs(given) == {
        key: value for key, value in given.items() if value is not None
    }
    assert check_template_kwargs(None) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenize", True),
        ("messages", []),
        ("chat_template", "{{ x }}"),
        ("bos_token", "<s>"),
        ("add_generation_prompt", True),
        ("enable_thinking", "yes"),
        ("enable_thinking", 1),
        ("thinking_budget", True),
        ("thinking_budget", 1.5),
        ("reasoning_effort", "<|im_end|>"),
        ("reasoning_effort", ["low"]),
        ("date_string", "<|im_end|>"),
        ("date_string", "x" * 41),
    ],
)
def test_other_template_variables_are_refused(name: str, value: Any) -> None:
    """Unknown names and wrong types; nothing that a request sets can steer the engine."""
    with pytest.raises(InvalidRequestError, match=name) as caught:
        check_template_kwargs({name: value})
    assert caught.value.param == "chat_template_kwargs"


def test_a_variable_that_the_template_reads_is_passed() -> None:
    """With any plain value; the names that the server sets stay refused."""
    given = {"builtin_tools": ["code_interpreter"], "date": "today", "level": 3}
    assert check_template_kwargs(given, {*given, "messages"}) == given
    for name, value in (("messages", "x"), ("date", {}), ("date", 2000 * "x"), ("date", [[]])):
        with pytest.raises(InvalidRequestError, match=name):
            check_template_kwargs({name: value}, {*given, "messages"})


def test_a_developer_is_the_system_of_a_template_that_does_not_know_the_role() -> None:
    """Both roles mean the same in OpenAI's API."""
    message = {"role": "developer", "content": "hi"}
    for known, role in (((), "system"), (("developer", "user"), "developer")):
        [checked] = check_messages([message], known_roles=known, takes_tool_calls=False)
        assert checked["role"] == role
