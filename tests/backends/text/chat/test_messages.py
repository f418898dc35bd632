"""Messages and template variables are checked before a template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.backends.text.chat.messages import check_messages, check_template_kwargs
from tokenmill.core.errors import InvalidRequestError


def check(*messages: Any) -> list[dict[str, str]]:
    return check_messages(messages, known_roles={"ipython"})


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


def test_name_and_reasoning_are_passed_on() -> None:
    """Templates may use them."""
    message = {"role": "assistant", "content": "4", "name": "bob", "reasoning_content": "2+2"}
    assert check(message) == [message]


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
            r"messages\[0\].tool_calls is not supported",
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
        check_messages(messages, known_roles=())


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
