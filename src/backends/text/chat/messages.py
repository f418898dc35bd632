"""Checks a request's input to the chat template: messages, and the few variables it may set."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ....core.errors import InvalidRequestError
from ....core.interfaces import ChatMessage
from ....core.suggest import did_you_mean
from .tool_calls import check_tool_calls

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of the OpenAI API, which every model accepts; a template may know more."""

_REASONING = ("reasoning", "reasoning_content")
"""Two names for the same; templates know one of them."""
_TEXT_FIELDS = ("content", "name", "tool_call_id", *_REASONING)


def check_messages(
    messages: Sequence[ChatMessage], *, known_roles: Collection[str], takes_tool_calls: bool
) -> list[dict[str, Any]]:
    """Return the messages for the template: role, content and, if given, name, reasoning and tools.

    Text parts of a content are joined with newlines, as in vLLM. Fields that are null or an empty
    list count as absent. A message with tool calls needs no content: then it is None.
    `takes_tool_calls` says whether the template shows them. Raises InvalidRequestError with param
    "messages".
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise _invalid("messages must be a list of at least one message")
    return [
        _check_message(message, f"messages[{index}]", known_roles, takes_tool_calls)
        for index, message in enumerate(messages)
    ]


def texts_of(value: Any) -> Iterator[str]:
    """Every text in messages that were checked, the names of arguments included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts_of(name)
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


def _check_message(
    message: ChatMessage, where: str, known_roles: Collection[str], takes_tool_calls: bool
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(f"{where} must be an object with role and content")
    given = {name: value for name, value in message.items() if value is not None and value != []}
    checked: dict[str, Any] = {"role": _check_role(given.pop("role", None), where, known_roles)}
    calls = given.pop("tool_calls", None) if checked["role"] == "assistant" else None
    if calls is not None:
        if not takes_tool_calls:
            raise _invalid(
                f"{where}.tool_calls cannot be shown to this model, because its chat template has "
                "no tool calls"
            )
        checked["tool_calls"] = check_tool_calls(calls, f"{where}.tool_calls")
    checked["content"] = _check_content(message, where, is_needed=calls is None)
    given.pop("content", None)
    checked |= _check_texts(given, where)
    for name, other in zip(_REASONING, reversed(_REASONING), strict=True):
        if name in checked:
            checked.setdefault(other, checked[name])
    return checked


def _check_content(message: ChatMessage, where: str, *, is_needed: bool) -> str | None:
    content = message.get("content")
    if content is not None:
        return _join_parts(content, f"{where}.content")
    if is_needed:
        raise _invalid(f"{where}.content is missing")
    return None


def _check_texts(given: Mapping[str, Any], where: str) -> dict[str, str]:
    checked = {}
    for name, value in given.items():
        if name not in _TEXT_FIELDS:
            raise _invalid(
                f"{where}.{name} is not supported{did_you_mean(name, ('role', *_TEXT_FIELDS))}"
            )
        if not isinstance(value, str):
            raise _invalid(f"{where}.{name} must be a string")
        checked[name] = value
    return checked


def _check_role(role: object, where: str, known_roles: Collection[str]) -> str:
    if not isinstance(role, str):
        raise _invalid(f"{where}.role must be a string")
    if role not in ROLES and role not in known_roles:
        raise _invalid(f"{where}.role must be one of {', '.join(ROLES)}, got {role[:40]!r}")
    return role


def _join_parts(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise _invalid(f"{where} must be a string or a list of text parts")
    return "\n".join(_check_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _check_part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind != "text":
        raise _invalid(
            f'{where} must be a part of type "text", the only one supported, got {kind!r:.40}'
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{where}.text must be a string")
    return text


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_budget(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= 2**31


def _is_effort(value: object) -> bool:
    return value in ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _is_date(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9 ,./:-]{1,40}", value) is not None


TEMPLATE_KWARGS: dict[str, tuple[Callable[[object], bool], str]] = {
    "enable_thinking": (_is_flag, "true or false"),
    "thinking": (_is_flag, "true or false"),
    "preserve_thinking": (_is_flag, "true or false"),
    "clear_thinking": (_is_flag, "true or false"),
    "thinking_budget": (_is_budget, "an integer, -1 or more"),
    "reasoning_effort": (_is_effort, "none, minimal, low, medium, high, xhigh or max"),
    "date_string": (_is_date, "a date of at most 40 letters, digits and ' ,./:-'"),
}
"""Variables of common templates that a request may set: (check, description of valid values)."""


def check_template_kwargs(template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the variables that a request sets, without those that are null.

    Raises InvalidRequestError for a variable that is not in TEMPLATE_KWARGS, or a wrong value.
    """
    checked = {}
    for name, value in (template_kwargs or {}).items():
        if name not in TEMPLATE_KWARGS:
            raise InvalidRequestError(
                f"chat_template_kwargs may hold {', '.join(TEMPLATE_KWARGS)}, got {name!r:.40}",
                param="chat_template_kwargs",
            )
        is_valid, expected = TEMPLATE_KWARGS[name]
        if value is not None and not is_valid(value):
            raise InvalidRequestError(
                f"chat_template_kwargs.{name} must be {expected}", param="chat_template_kwargs"
            )
        checked[name] = value
    return {name: value for name, value in checked.items() if value is not None}
