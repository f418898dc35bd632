"""Reads tool calls that stand between two markers, in a notation that is read as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from .answer_parsers import Parsing
from .answer_text import AnswerText, content_before, find, partial_length, skip_space
from .answers import ContentDelta, ToolDefinition
from .json_calls import whole_call

ReadArguments = Callable[[str, ToolDefinition], Mapping[str, Any] | None]
"""The arguments in the text between head and closing marker; None: the text is no call."""
_LONGEST_HEAD = 256
"""Characters. A text without a head in them is content, so that it is not held back."""


def enclosed_calls(
    answer: AnswerText,
    tools: Sequence[ToolDefinition],
    *,
    ends: Mapping[str, str],
    head: re.Pattern[str],
    read: ReadArguments,
) -> Parsing:
    """Yield the content and the calls of an answer; see ToolCallParser.parse.

    `ends` has the closing marker by the opening one; the last call may lack it. `head` matches the
    beginning of a call behind the opening marker, up to its arguments; group 1 is the name. The
    time is linear in the length of the answer if that of `read` is linear.
    """
    known, index = {tool.name: tool for tool in tools}, 0
    while opened := (yield from content_before(answer, tuple(ends))):
        closing = ends[opened.lstrip()]
        found = yield from _wait_for_head(answer, head, closing)
        if found is None or found[1] not in known:
            yield ContentDelta(opened)
            continue
        end = yield from find(answer, closing)
        if end < 0:  # the answer was cut, and may end with a part of the marker
            end = len(answer.unread) - partial_length(answer.unread, (closing,))
        body = answer.unread[found.end() : end]
        arguments = read(body, known[found[1]])
        if arguments is None:
            yield ContentDelta(opened + answer.take(found.end() + _before_last(body, ends)))
            continue
        answer.take(found.end() + len(body) + len(closing))
        yield from whole_call(index, found[1], dict(arguments))
        index += 1
        yield from skip_space(answer)


def _wait_for_head(
    answer: AnswerText, head: re.Pattern[str], closing: str
) -> Generator[None, None, re.Match[str] | None]:
    while not (found := head.match(answer.unread, 0, _LONGEST_HEAD)):
        text = answer.unread
        if answer.is_complete or len(text) >= _LONGEST_HEAD or closing in text:
            return None
        yield None
    return found


def _before_last(body: str, ends: Mapping[str, str]) -> int:
    """Length of a text that is no call, up to the last marker in it: only that one may open a
    call. So no text is read more than twice."""
    last = max(body.rfind(marker) for marker in ends)
    return len(body[:last].rstrip()) if last >= 0 else len(body)
