"""Tool calls in XML: Qwen 3.5 and 3 Coder, Nemotron 3, Step; and GLM, Ling and Laguna.

<tool_call><function=weather><parameter=city>Oslo</parameter></function></tool_call>
<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...plugin import (
    AnswerText,
    CallSyntax,
    ChatFormat,
    Parsing,
    Registry,
    ToolDefinition,
    argument_value,
    enclosed_calls,
    hookimpl,
    kinds,
)

TOKENMILL_API = (1, 1)
OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class XMLToolParser:
    """Calls in <tool_call> whose arguments are elements."""

    mark: str
    """Text that only the chat templates of this family have."""
    head: re.Pattern[str]
    """The beginning of a call up to its arguments. Group 1: the name."""
    argument: re.Pattern[str]
    """The text before the value of an argument. Group 1: its name."""
    argument_end: str
    has_lines: bool = False
    """Whether values stand on lines of their own."""
    needs_special_tokens: bool = True
    call_syntax: CallSyntax | None = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        marks = (OPEN, self.mark)
        return [f"the chat template has no {mark}" for mark in marks if mark not in chat.source]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        return enclosed_calls(answer, tools, ends={OPEN: CLOSE}, head=self.head, read=self._read)

    def _read(self, body: str, tool: ToolDefinition) -> dict[str, Any]:
        found, place = {}, 0
        while opened := self.argument.search(body, place):
            place = body.find(self.argument_end, opened.end())
            if place < 0:
                break
            text = body[opened.end() : place]
            if self.has_lines:
                text = text.removeprefix("\n").removesuffix("\n")
            found[opened[1]] = argument_value(text, opened[1], tool)
        return found


QWEN = XMLToolParser(
    mark="<function=",
    head=re.compile(r"\s*<function=([^<>\s]+)>"),
    argument=re.compile(r"<parameter=([^<>\s]+)>"),
    argument_end="</parameter>",
    has_lines=True,
)
GLM = XMLToolParser(
    mark="<arg_key>",
    head=re.compile(rf"\s*([^<>\s]+)\s*(?=<arg_key>|{CLOSE})"),
    argument=re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>"),
    argument_end="</arg_value>",
)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.TOOL_CALL_PARSER, "qwen3-xml", lambda: QWEN, aliases=("qwen3-coder",))
    registry.offer(kinds.TOOL_CALL_PARSER, "glm", lambda: GLM, aliases=("glm45", "glm47"))
