"""No parser: tool calls stay part of the content."""

from __future__ import annotations

from collections.abc import Sequence

from ...plugin import (
    AnswerText,
    ChatFormat,
    Parsing,
    Registry,
    ToolDefinition,
    hookimpl,
    kinds,
    rest_as_content,
)

TOKENMILL_API = (1, 1)


class NoToolParser:
    """Finds no calls. "auto" takes it if no other parser fits the model's chat template."""

    needs_special_tokens = False
    call_syntax = None
    parses = False

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        return []

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        yield from rest_as_content(answer)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.TOOL_CALL_PARSER, "none", NoToolParser)
