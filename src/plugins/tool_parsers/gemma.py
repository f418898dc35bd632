"""Tool calls of FunctionGemma and Gemma 4, which have a notation of their own.

<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>
<start_function_call>call:weather{city:<escape>Oslo<escape>,days:2}<end_function_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ...plugin import (
    AnswerText,
    ChatFormat,
    ContentDelta,
    Parsing,
    Registry,
    ToolDefinition,
    content_before,
    find,
    hookimpl,
    skip_space,
    whole_call,
)

TOKENMILL_API = (1, 1)
ENDS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
"""The marker after a call, by the marker before it."""
_HEAD = re.compile(r"\s*call:([\w.-]+)\s*(?=\{)")
_QUOTES = ('<|"|>', "<escape>", '"')
_PLAIN = re.compile(r"[^,:{}\[\]]*")
_MAX_DEPTH = 32
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class GemmaToolParser:
    """Calls like call:name{key:value}, between markers."""

    needs_special_tokens = True
    call_syntax = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        if any(start in chat.source for start in ENDS):
            return []
        return [f"the chat template has neither {' nor '.join(ENDS)}"]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        while opened := (yield from content_before(answer, tuple(ENDS))):
            closing = ENDS[opened.lstrip()]
            end = yield from find(answer, closing)
            length = len(answer.unread) if end < 0 else end
            call = _read_call(answer.unread[:length])
            if call is None or call[0] not in names:
                yield ContentDelta(opened)
                continue
            answer.take(length + len(closing))
            yield from whole_call(index, *call)
            index += 1
            yield from skip_space(answer)


def _read_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a call; None if the text is no call."""
    head = _HEAD.match(text)
    if head is None:
        return None
    try:
        arguments, rest = _value(text[head.end() :], 0)
    except ValueError:
        return None
    return None if rest.strip() else (head[1], arguments)


def _value(text: str, depth: int) -> tuple[Any, str]:
    """The value at the front of a text, and the text behind it. Raises ValueError."""
    text = text.lstrip()
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if text.startswith("{"):
        return _items(text[1:], depth, is_object=True)
    if text.startswith("["):
        return _items(text[1:], depth, is_object=False)
    for quote in _QUOTES:
        if text.startswith(quote):
            inner, found, rest = text[len(quote) :].partition(quote)
            if not found:
                raise ValueError("a string without an end")
            return inner, rest
    plain = _PLAIN.match(text)
    assert plain is not None, "the pattern matches an empty text"
    return _word(plain[0].strip()), text[plain.end() :]


def _items(text: str, depth: int, *, is_object: bool) -> tuple[Any, str]:
    """The items of an object or list whose opening bracket was read."""
    pairs: list[tuple[Any, Any]] = []
    close = "}" if is_object else "]"
    text = text.lstrip()
    while not text.startswith(close):
        key: Any = None
        if is_object:
            key, text = _value(text, _MAX_DEPTH)
            text = _after(text, ":")
        value, text = _value(text, depth + 1)
        pairs.append((str(key), value))
        if not text.lstrip().startswith(close):
            text = _after(text, ",").lstrip()
        text = text.lstrip()
    return (dict(pairs) if is_object else [value for _, value in pairs]), text[1:]


def _after(text: str, char: str) -> str:
    if not text.lstrip().startswith(char):
        raise ValueError(f"no {char}")
    return text.lstrip()[1:]


def _word(text: str) -> Any:
    """A number, true, false or null; any other word is a string."""
    if not text:
        raise ValueError("an empty value")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


@hookimpl
def register(registry: Registry) -> None:
    registry.tool_call_parser("gemma", GemmaToolParser, aliases=("functiongemma", "gemma4"))
