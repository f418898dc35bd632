"""Tool calls of gpt-oss, which are messages to a function on the channel "commentary".

<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...plugin import (
    AnswerText,
    ChatFormat,
    ContentDelta,
    Parsing,
    Registry,
    ToolCallDelta,
    ToolDefinition,
    content_before,
    find,
    hookimpl,
    json_arguments,
    kinds,
    take_end,
)

TOKENMILL_API = (1, 1)
OPEN, BODY, CLOSE = "<|channel|>commentary to=functions.", "<|message|>", "<|call|>"
_NAME = re.compile(r"[\w.-]+")


class GptOssToolParser:
    """The calls that the reasoning parser gpt-oss leaves in the content."""

    needs_special_tokens = True
    call_syntax = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        marks = ("<|channel|>", "functions.")
        return [f"the chat template has no {mark}" for mark in marks if mark not in chat.source]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        while opened := (yield from content_before(answer, (OPEN,))):
            end = yield from find(answer, BODY)
            name = _NAME.match(answer.unread)
            if end < 0 or name is None or name[0] not in names:
                yield ContentDelta(opened)
                continue
            answer.take(end + len(BODY))
            yield ToolCallDelta(index, name=name[0])
            yield from json_arguments(answer, index)
            index += 1
            yield from take_end(answer, CLOSE)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.TOOL_CALL_PARSER, "gpt-oss", GptOssToolParser, aliases=("openai",))
