"""Reads tool calls that are written as JSON objects with a name and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator
from typing import Any

from .answer_text import AnswerText, BracketScanner
from .answers import ToolCallDelta

ReadingCall = Generator[ToolCallDelta | None, None, bool]

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_ARGUMENTS = ("arguments", "parameters")
_MAX_UNORDERED = 4096
"""Characters of a call whose name does not come first. Longer text is no call, so that an answer of
many opened calls is not searched to its end for each of them."""


def json_call(answer: AnswerText, index: int, names: Collection[str]) -> ReadingCall:
    """Read `{"name": ..., "arguments": {...}}` at the front; returns whether it is a call.

    Whitespace may come before it. `names` are those of the functions that may be called.
    Arguments are yielded while they come, if the name comes before them; a call in another order is
    yielded when it is complete. Text that is not a call stays unread.
    """
    scanner, num_scanned = BracketScanner(), 0
    while True:
        text = answer.unread
        head = _HEAD.match(text)
        if head and head[1] in names:
            yield ToolCallDelta(index, name=head[1])
            answer.take(head.end())
            yield from json_arguments(answer, index)
            yield from _skip_rest(answer)
            return True
        if text.strip() and not text.lstrip().startswith("{"):
            return False
        end = scanner.scan(text[num_scanned:_MAX_UNORDERED])
        if end is not None:
            return (yield from _whole_call(answer, num_scanned + end, index, names))
        if answer.is_complete or len(text) >= _MAX_UNORDERED:
            return False
        num_scanned = len(text)
        yield None


def json_arguments(answer: AnswerText, index: int) -> ReadingCall:
    """Yield the JSON object at the front as arguments of a call; returns whether it has an end.

    Only brackets and strings are followed: the arguments are what the model wrote, as in OpenAI's
    API, even if they are not valid JSON.
    """
    scanner = BracketScanner()
    while True:
        end = scanner.scan(answer.unread)
        piece = answer.take(len(answer.unread) if end is None else end)
        if piece:
            yield ToolCallDelta(index, arguments=piece)
        if end is not None or answer.is_complete:
            return end is not None
        yield None


def whole_call(index: int, name: str, arguments: dict[str, Any]) -> tuple[ToolCallDelta, ...]:
    """The deltas of a call that is known as a whole."""
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCallDelta(index, name=name), ToolCallDelta(index, arguments=text)


def _skip_rest(answer: AnswerText) -> Generator[None, None, None]:
    """Take the rest of the object around the arguments, such as an id."""
    scanner = BracketScanner(depth=1)
    while True:
        end = scanner.scan(answer.unread)
        answer.take(len(answer.unread) if end is None else end)
        if end is not None or answer.is_complete:
            return
        yield None


def _whole_call(answer: AnswerText, length: int, index: int, names: Collection[str]) -> ReadingCall:
    call = _loads(answer.unread[:length])
    given = next((call[key] for key in _ARGUMENTS if key in call), None)
    arguments = _loads(given) if isinstance(given, str) else given
    name = call.get("name")
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return False
    answer.take(length)
    yield from whole_call(index, name, arguments)
    return True


def _loads(text: str) -> Any:
    """The JSON object that a text contains; an empty one if it contains none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
