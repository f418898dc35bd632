"""Tool calls of Hermes, Qwen 2.5 and 3, and others: JSON in <tool_call>.

<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plugin import (
    AnswerText,
    CallSyntax,
    ChatFormat,
    ContentDelta,
    Parsing,
    Registry,
    ToolDefinition,
    content_before,
    hookimpl,
    json_call,
    kinds,
    take_end,
)

TOKENMILL_API = (1, 1)
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OTHERS = ("<function=", "<arg_key>")
"""Families that write XML between the same markers."""


class HermesToolParser:
    """JSON objects with name and arguments, each between <tool_call> and </tool_call>."""

    needs_special_tokens = True  # of some models <tool_call> is one
    call_syntax = CallSyntax(
        begin='<tool_call>\n{"name": "NAME", "arguments": ',
        end="}\n</tool_call>",
        between="\n",
    )

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        missing = [mark for mark in (OPEN, '"arguments"') if mark not in chat.source]
        if missing:
            return [f"the chat template has no {mark}" for mark in missing]
        return [f"the chat template has {other}" for other in _OTHERS if other in chat.source]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        while opened := (yield from content_before(answer, (OPEN,))):
            if (yield from json_call(answer, index, names)):
                index += 1
                yield from take_end(answer, CLOSE)
            else:
                yield ContentDelta(opened)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.TOOL_CALL_PARSER, "hermes", HermesToolParser, aliases=("qwen",))
