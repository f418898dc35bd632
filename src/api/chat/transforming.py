"""Passes the messages of a conversation through the transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...core.contract.providers.transforming import RequestText
from ...core.requests.request_options import RequestOptions
from ..parsing.chosen_parsers import AnswerParsers
from ..parsing.transforms import TransformedAnswers, transform_request
from .conversation import Conversation, message_fields

_TEXTS = ("content", "reasoning", "reasoning_content")


def transform_messages(
    given: Conversation, parsers: AnswerParsers, options: RequestOptions
) -> tuple[Conversation, TransformedAnswers]:
    """The conversation with its texts replaced. Raises what `transform_request` raises."""
    messages = message_fields(given.messages)
    texts: list[RequestText] = []
    setters: list[Callable[[str], None]] = []

    def show(role: str, fields: dict[str, Any], name: str) -> None:
        if isinstance(text := fields.get(name), str):
            texts.append(RequestText(text=text, role=role))
            setters.append(partial(fields.__setitem__, name))

    for message in messages:
        role = message["role"]
        for name in _TEXTS:
            show(role, message, name)
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            show(role, part, "text")
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
                show(role, function, "arguments")
    done = transform_request(parsers.transforms, texts, options)
    for change, text in zip(setters, done.texts, strict=True):
        change(text)
    return replace(given, messages=messages), done
