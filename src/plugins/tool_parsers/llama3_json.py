"""Tool calls of Llama 3.1 to 3.3: the answer is JSON, perhaps after <|python_tag|>.

{"name": "weather", "parameters": {"city": "Oslo"}}
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
    hookimpl,
    json_call,
    kinds,
    rest_as_content,
    skip_space,
    take_next,
)

TOKENMILL_API = (1, 1)
TAG = "<|python_tag|>"
SEPARATOR = ";"


class Llama3ToolParser:
    """An answer that is a JSON object with name and parameters, or several with `;` between."""

    needs_special_tokens = True
    call_syntax = CallSyntax(
        begin='{"name": "NAME", "parameters": ', end="}", between=f"{SEPARATOR} "
    )

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        marks = ("<|start_header_id|>", '"parameters"')
        return [f"the chat template has no {mark}" for mark in marks if mark not in chat.source]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index, skipped = {tool.name for tool in tools}, 0, ""
        if (yield from take_next(answer, TAG)):
            skipped = TAG
        while (yield from json_call(answer, index, names)):
            index, skipped = index + 1, ""
            if (yield from take_next(answer, SEPARATOR)):
                skipped = SEPARATOR
        if skipped == TAG or (skipped and answer.unread.strip()):
            yield ContentDelta(skipped)
        elif index:
            yield from skip_space(answer)
        yield from rest_as_content(answer)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.TOOL_CALL_PARSER, "llama3-json", Llama3ToolParser, aliases=("llama3", "llama4-json")
    )
