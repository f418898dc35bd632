"""Checks the tool calls of an assistant's message, for the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.errors import InvalidRequestError, named

_MAX_DEPTH = 32
"""Nesting of lists and objects in arguments. Deeper ones could exhaust Python's stack."""


def check_tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Return the calls as transformers' chat templates expect them: arguments are an object.

    In OpenAI's API the arguments are a text with JSON. Raises InvalidRequestError with param
    "messages".
    """
    if not isinstance(calls, list):
        raise _invalid(f"{named(where)} must be a list")
    return [_check_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def with_text_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose calls have their arguments as JSON text, as a few chat templates expect."""
    return [
        {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _check_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _invalid(f"{named(where)} must be an object with a function")
    if call.get("type", "function") != "function":
        raise _invalid(f'{named(where + ".type")} must be "function"')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid(f"{named(where + '.function.name')} must be the name of a function")
    arguments = _check_arguments(function.get("arguments"), named(f"{where}.function.arguments"))
    checked = {"type": "function", "function": {"name": name, "arguments": arguments}}
    call_id = call.get("id")
    if call_id is None:
        return checked
    if not isinstance(call_id, str):
        raise _invalid(f"{named(where + '.id')} must be a string")
    return {"id": call_id, **checked}


def _check_arguments(given: object, where: str) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise _invalid(f"{where} must be a JSON object, got text that is not JSON") from None
    if not isinstance(given, dict):
        raise _invalid(f"{where} must be a JSON object")
    if not _is_shallow(given, _MAX_DEPTH):
        raise _invalid(f"{where} is nested too deeply; allowed are {_MAX_DEPTH} levels")
    return given


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_shallow(value: object, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return True
    items = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in items)


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")
