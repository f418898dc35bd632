"""Tool calls of Mistral's models, after [TOOL_CALLS], in an older and a newer form.

[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}]
[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence

from ...plugin import (
    AnswerText,
    CallSyntax,
    ChatFormat,
    ContentDelta,
    Parsing,
    Registry,
    ToolCallDelta,
    ToolDefinition,
    content_before,
    hookimpl,
    json_arguments,
    json_call,
    kinds,
    skip_space,
    take_next,
)

TOKENMILL_API = (1, 1)
OPEN = "[TOOL_CALLS]"
_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_LONGEST_NAME = 256
"""Characters before the arguments. A longer text is content, so that it is not held back."""
Reading = Generator[ToolCallDelta | None, None, int]


class MistralToolParser:
    """A list of JSON objects, or names with arguments, after [TOOL_CALLS]."""

    needs_special_tokens = True
    call_syntax = CallSyntax(
        first=f"{OPEN}[",
        begin='{"name": "NAME", "arguments": ',
        end="}",
        between=", ",
        last="]",
    )
    call_id_length = 9

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        return [] if OPEN in chat.source else [f"the chat template has no {OPEN}"]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        while opened := (yield from content_before(answer, (OPEN,))):
            is_list = yield from take_next(answer, "[")
            found = yield from (_list if is_list else _named)(answer, index, names)
            if found == index:
                yield ContentDelta(f"{opened}[" if is_list else opened)
            else:
                yield from skip_space(answer)
            index = found


def _list(answer: AnswerText, index: int, names: Collection[str]) -> Reading:
    """Read a list of calls behind its bracket; return the number of calls so far."""
    while (yield from json_call(answer, index, names)):
        index += 1
        if not (yield from take_next(answer, ",")):
            yield from take_next(answer, "]")
            break
    return index


def _named(answer: AnswerText, index: int, names: Collection[str]) -> Reading:
    """Read a name and its arguments; return the number of calls so far."""
    while not (head := _NAME.match(answer.unread)):
        if answer.is_complete or len(answer.unread) > _LONGEST_NAME:
            return index
        yield None
    if head[1] not in names:
        return index
    answer.take(head.end())
    yield ToolCallDelta(index, name=head[1])
    yield from json_arguments(answer, index)
    return index + 1


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.TOOL_CALL_PARSER, "mistral", MistralToolParser)
