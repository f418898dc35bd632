"""Tool calls of FunctionGemma and Gemma 4, which have a notation of their own.

<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>
<start_function_call>call:weather{city:<escape>Oslo<escape>,days:2}<end_function_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...plugin import (
    AnswerText,
    ChatFormat,
    Parsing,
    Registry,
    ToolDefinition,
    enclosed_calls,
    hookimpl,
    kinds,
)

TOKENMILL_API = (1, 1)
ENDS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
"""The marker after a call, by the marker before it."""
_HEAD = re.compile(r"\s*call:([\w.-]+)\s*(?=\{)")
_QUOTES = ('<|"|>', "<escape>", '"')
_PLAIN = re.compile(r"[^,:{}\[\]]*")
_SPACE = re.compile(r"\s*")
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
        return enclosed_calls(answer, tools, ends=ENDS, head=_HEAD, read=_arguments)


def _arguments(text: str, tool: ToolDefinition) -> dict[str, Any] | None:
    """The object that a text consists of; None if it is none."""
    reader = _Reader(text)
    try:
        found = reader.value(0)
    except ValueError:
        return None
    return found if isinstance(found, dict) and reader.next == "" else None


class _Reader:
    """Reads values from a text, from the front to the end."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    @property
    def next(self) -> str:
        """The next character that is no whitespace; "" at the end."""
        self._place = self._match(_SPACE).end()
        return self._text[self._place : self._place + 1]

    def value(self, depth: int) -> Any:
        """Read a value. Raises ValueError."""
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        if self.next == "{":
            return dict(self._items("}", lambda: self._pair(depth)))
        if self.next == "[":
            return list(self._items("]", lambda: self.value(depth + 1)))
        for quote in _QUOTES:
            if self._text.startswith(quote, self._place):
                return self._quoted(quote)
        plain = self._match(_PLAIN)
        self._place = plain.end()
        return _word(plain[0].strip())

    def _items(self, close: str, read: Callable[[], Any]) -> Iterator[Any]:
        """The items of an object or list, up to its closing bracket."""
        self._place += 1
        while self.next != close:
            yield read()
            if self.next != close:
                self._take(",")
        self._place += 1

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = str(self.value(_MAX_DEPTH))
        self._take(":")
        return key, self.value(depth + 1)

    def _quoted(self, quote: str) -> str:
        begin = self._place + len(quote)
        end = self._text.find(quote, begin)
        if end < 0:
            raise ValueError("a string without an end")
        self._place = end + len(quote)
        return self._text[begin:end]

    def _take(self, char: str) -> None:
        if self.next != char:
            raise ValueError(f"no {char}")
        self._place += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._place)
        assert found is not None, "the pattern matches an empty text"
        return found


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
    registry.offer(
        kinds.TOOL_CALL_PARSER, "gemma", GemmaToolParser, aliases=("functiongemma", "gemma4")
    )
