"""Tool calls in XML: Qwen 3.5 and 3 Coder, Nemotron 3, Step; and GLM, Ling and Laguna.

<tool_call><function=weather><parameter=city>Oslo</parameter></function></tool_call>
<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plugin import (
    AnswerText,
    CallSyntax,
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
OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class XMLToolParser:
    """Calls in <tool_call> whose arguments are elements."""

    mark: str
    """Text that only the chat templates of this family have."""
    call: re.Pattern[str]
    """Groups: the name, and all arguments."""
    argument: re.Pattern[str]
    """Groups: the name of an argument, and its value."""
    needs_special_tokens: bool = True
    call_syntax: CallSyntax | None = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        marks = (OPEN, self.mark)
        return [f"the chat template has no {mark}" for mark in marks if mark not in chat.source]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        known, index = {tool.name: tool for tool in tools}, 0
        while opened := (yield from content_before(answer, (OPEN,))):
            end = yield from find(answer, CLOSE)
            length = len(answer.unread) if end < 0 else end
            call = self.call.fullmatch(answer.unread[:length].strip())
            if call is None or call[1] not in known:
                yield ContentDelta(opened)
                continue
            answer.take(length + len(CLOSE))
            schemas = known[call[1]].parameters.get("properties", {})
            found = self.argument.findall(call[2])
            arguments = {name: _value(text, schemas.get(name)) for name, text in found}
            yield from whole_call(index, call[1], arguments)
            index += 1
            yield from skip_space(answer)


def _value(text: str, schema: Any) -> Any:
    """The value of an argument: JSON, unless the schema says that it is a string."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


QWEN = XMLToolParser(
    mark="<function=",
    call=re.compile(r"<function=([^<>\s]+)>(.*?)(?:</function>)?", re.DOTALL),
    argument=re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
)
GLM = XMLToolParser(
    mark="<arg_key>",
    call=re.compile(r"([^<>\s]+)\s*((?:<arg_key>.*)?)", re.DOTALL),
    argument=re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
)


@hookimpl
def register(registry: Registry) -> None:
    registry.tool_call_parser("qwen3-xml", lambda: QWEN, aliases=("qwen3-coder",))
    registry.tool_call_parser("glm", lambda: GLM, aliases=("glm45", "glm47"))
